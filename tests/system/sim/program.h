/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated program that trains in a session (tern/train.h), without tasks and threads,
 * only through the public interface. It takes its time, declares and pushes tensors in a
 * random order, looks at parameters that arrive, makes mistakes that must be refused, fails or hangs in the middle of a
 * slot, goes on with a slot that was revoked, and saves the results when it is the
 * finisher. Its gradients count records (ledger.h), but for tensors that it pushes rarely
 * (rare.h). Some programs compute wrong gradients,
 * other ones each time: the session must find that out, and nothing of them may be counted.
 */
#ifndef TERN_TESTS_SYSTEM_SIM_PROGRAM_H
#define TERN_TESTS_SYSTEM_SIM_PROGRAM_H

#include "tests/system/sim/job.h"

struct program;

/* Makes the program of worker `index`, whose context exists already, and starts its
 * session. If the program finds that the session breaks a promise of tern/train.h, it
 * sets j->broken. */
struct program *program_new(struct job *j, struct member *m, unsigned index);
/* Frees the program and its session, after the context. NULL is allowed. */
/* The process of the program has crashed, and its member is another one's. NULL is allowed. */
void program_is_gone(struct program *p);
void program_free(struct program *p);

/* Makes the job's workers programs, and sets how their results are checked. given: which
 * tensors have given initial values, as job.given. */
void program_describe(struct job *j, unsigned given);
/* Chooses which tensors travel as bf16. In async mode, where a worker that is lost leaves
 * some chunks updated, all of them have the same types, so that the chunks are those of the
 * ledger. A session sorts by types before names, so here the types are sorted, too. */
void program_choose_types(struct job *j, uint64_t seed);

#endif
