/* SPDX-License-Identifier: Apache-2.0 */
/* What `tern status` and `tern top` share: the question to a job, and the picture of the job
 * for people. */
#ifndef TERN_TOOLS_STATUS_H
#define TERN_TOOLS_STATUS_H

#include <stdio.h>

#include "tools/ask.h"

/*
 * Asks what the job does. The answer is that of server 0 (server/status.c), with all workers;
 * "asked" is the address that has answered. If server 0 cannot be reached, it is the answer of
 * another server, and "partial" says why. The caller releases it.
 *
 * Errors of ask_job(); `error` has one line.
 */
int status_ask(struct ask *ask, json_t **answer, struct message *error);

/* Writes the answer as lines of text. Of the workers at most `rows` are listed: first those
 * about which there is something to say, then the others by number. Texts of the answer
 * are not escaped. */
void status_show(FILE *to, const json_t *answer, unsigned rows);

#endif
