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
 * another server, and "partial" says why. The caller releases it. All questions together take at
 * most wait_ns of `ask`, and some 0.5 s for their ends.
 *
 * Errors of ask_job(), or -EPROTO: the workers of later answers do not continue those of the
 * first one. `error` has one line.
 */
int status_ask(struct ask *ask, json_t **answer, struct message *error);

/* Appends the workers of the answer `page` to those of `answer`, and takes its "next". False: the
 * page is empty, has more workers than the job, or does not name the worker after its last one as
 * the next. */
bool status_add_page(json_t *answer, const json_t *page);

/* Writes the answer as lines of text. Of the workers at most `rows` are listed: first those
 * about which there is something to say, then the others by number. Texts of the answer
 * are not escaped. */
void status_show(FILE *to, const json_t *answer, unsigned rows);

#endif
