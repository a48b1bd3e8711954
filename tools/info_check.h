/* SPDX-License-Identifier: Apache-2.0 */
/* `tern info --check`: tests whether the fabrics and RDMA devices of this machine really
 * move tensors. */
#ifndef TERN_TOOLS_INFO_CHECK_H
#define TERN_TOOLS_INFO_CHECK_H

#include "tools/fabric.h"

/*
 * Moves tensors between two contexts over every fabric that works on this machine (over
 * verbs once per device and active port with an IP address). Prints a line for each test,
 * and for what is skipped, or one JSON object for all. Returns an enum exit_code: EXIT_JOB
 * if a test failed, or if the fabrics cannot be listed. Each test has a time limit. It
 * forks: no thread may have been started, and no domain opened.
 */
int info_check(const struct fabric_settings *settings, bool json);

#endif
