/* SPDX-License-Identifier: Apache-2.0 */
/* `tern info --check`: tests whether the fabrics and devices that are there really
 * move tensors. */
#ifndef TERN_TOOLS_INFO_CHECK_H
#define TERN_TOOLS_INFO_CHECK_H

#include "tools/fabric.h"

/*
 * Moves tensors between two contexts over every fabric that works on this machine, verbs
 * over each device, and prints a line for each, or one JSON object. Returns an enum
 * exit_code: EXIT_JOB if any of them failed. Each test has a fixed time limit. Forks: no
 * thread may have been started, and no domain opened.
 */
int info_check(const struct fabric_settings *settings, bool json);

#endif
