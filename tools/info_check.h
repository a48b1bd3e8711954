/* SPDX-License-Identifier: Apache-2.0 */
/* `tern info --check`: does what works here really move tensors? */
#ifndef TERN_TOOLS_INFO_CHECK_H
#define TERN_TOOLS_INFO_CHECK_H

#include "tools/fabric.h"

/*
 * Moves tensors between two contexts over every fabric that works on this machine, verbs
 * over each device, and prints a line for each, or one JSON object. An enum exit_code:
 * EXIT_JOB if any of them failed. Never takes longer than a fixed time for each of them.
 * Forks: no thread may have been started, and no domain opened.
 */
int info_check(const struct fabric_settings *settings, bool json);

#endif
