/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check that a program's gradients are a function of the slot: the first slots of a
 * session are computed twice, and the gradients of the two computations are compared by
 * their digests, tensor by tensor. Nothing is sent before the two are the same, so a
 * gradient that is not deterministic reaches no server.
 *
 *     OFF --verify_begin()--> FIRST --verify_again()--> SECOND --verify_begin()--> ...
 *
 * A slot that is not verified stays OFF, and its gradients are sent as they are pushed.
 */
#ifndef TERN_CLIENT_VERIFY_H
#define TERN_CLIENT_VERIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Room for what verify_describe() writes, with a name of 100 bytes. */
#define VERIFY_TEXT_BYTES 500u

enum verify_phase {
	VERIFY_OFF,
	VERIFY_FIRST,
	VERIFY_SECOND,
};

struct verify {
	enum verify_phase phase; /* of the present slot */
	uint64_t left;           /* number of slots that are still to be verified */
	/* By the number of the tensor: in VERIFY_FIRST the digest of its gradient, in
	 * VERIFY_SECOND the exclusive or of the two digests (0: they are equal). */
	uint64_t *digests;
	double loss; /* of the first computation */
};

/* A slot begins. */
void verify_begin(struct verify *v);

/* The slot that is being verified was revoked: another one is verified in its place. */
void verify_revoked(struct verify *v);

/* Takes over a gradient that the program pushes: copies it from `from` to `to`, where that
 * is needed, and keeps its digest or compares it. `from` NULL: the gradient is in `to`.
 * Several threads may call this at the same time, for different tensors. */
void verify_take(
	struct verify *v, uint32_t id, float *to, const float *from, size_t bytes);

/* As verify_take(), but copies nothing. */
void verify_see(struct verify *v, uint32_t id, const float *values, size_t bytes);

/* The program does not push this tensor: that differs from any gradient. */
void verify_unpushed(struct verify *v, uint32_t id);

/* The first computation has ended with this loss, and the second one follows. */
void verify_again(struct verify *v, double loss);

/* After the second computation: the number of tensors, of `count`, whose gradients differ,
 * and the first of them in *first. */
uint32_t verify_differing(const struct verify *v, uint32_t count, uint32_t *first);

/* Which slot was computed twice, and by which worker. */
struct verify_slot {
	uint32_t worker, slot;
	uint64_t step;
};

/* Writes the sentence of a worker whose gradients differ. */
void verify_describe(char *text, size_t bytes, const struct verify_slot *slot,
	const char *tensor, uint32_t differing, uint32_t count);

/* After the second computation, whose gradients are the same: returns false if its loss
 * differs, with a sentence in `text`. */
bool verify_loss(const struct verify *v, double loss, const struct verify_slot *slot,
	char *text, size_t bytes);

#endif
