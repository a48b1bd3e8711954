/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that a program computes twice, and how they differ. */
#include "client/verify.h"

#include <stdio.h>
#include <string.h>

#include "base/digest.h"
#include "base/util.h"

/* Stands for a gradient that was not pushed. */
#define UNPUSHED 0x756e70757368ull /* "unpush" */

void verify_begin(struct verify *v)
{
	v->phase = v->left > 0 ? VERIFY_FIRST : VERIFY_OFF;
	v->left -= v->left > 0;
}

void verify_revoked(struct verify *v)
{
	/* The phase stays, since other threads may still push. */
	v->left += v->phase != VERIFY_OFF;
}

void verify_take(
	struct verify *v, uint32_t id, float *to, const float *from, size_t bytes)
{
	switch (v->phase) {
	case VERIFY_OFF:
		if (from)
			memcpy(to, from, bytes);
		break;
	case VERIFY_FIRST: /* nothing of it is sent, so it is not copied */
		v->digests[id] = tern_digest(from ? from : to, bytes);
		break;
	case VERIFY_SECOND:
		v->digests[id] ^=
			from ? tern_digest_copy(to, from, bytes) : tern_digest(to, bytes);
		break;
	}
}

void verify_unpushed(struct verify *v, uint32_t id)
{
	switch (v->phase) {
	case VERIFY_OFF:
		break;
	case VERIFY_FIRST:
		v->digests[id] = UNPUSHED;
		break;
	case VERIFY_SECOND:
		v->digests[id] ^= UNPUSHED;
		break;
	}
}

void verify_see(struct verify *v, uint32_t id, const float *values, size_t bytes)
{
	if (v->phase == VERIFY_FIRST)
		v->digests[id] = tern_digest(values, bytes);
	else if (v->phase == VERIFY_SECOND)
		v->digests[id] ^= tern_digest(values, bytes);
}

void verify_again(struct verify *v, double loss)
{
	tern_assert(v->phase == VERIFY_FIRST);
	v->phase = VERIFY_SECOND;
	v->loss = loss;
}

uint32_t verify_differing(const struct verify *v, uint32_t count, uint32_t *first)
{
	uint32_t differing = 0;

	for (uint32_t id = count; id-- > 0;) {
		if (v->digests[id] == 0)
			continue;
		*first = id;
		differing++;
	}
	return differing;
}

void verify_describe(char *text, size_t bytes, const struct verify_slot *slot,
	const char *tensor, uint32_t differing, uint32_t count)
{
	snprintf(text, bytes,
		"worker %u computed slot %u of step %llu twice, and %u of %u gradients "
		"differ, first that of tensor %.100s. Usual causes: random numbers not "
		"from the slot's seed, data not chosen by the slot, state kept between "
		"slots, threads (tern run --verify-first 0 switches this check off)",
		slot->worker, slot->slot, (unsigned long long)slot->step, differing,
		count, tensor);
}

bool verify_loss(const struct verify *v, double loss, const struct verify_slot *slot,
	char *text, size_t bytes)
{
	if (memcmp(&v->loss, &loss, sizeof(loss)) == 0)
		return true;
	snprintf(text, bytes,
		"worker %u computed slot %u of step %llu twice: the gradients are the "
		"same, but the losses are %.9g and %.9g",
		slot->worker, slot->slot, (unsigned long long)slot->step, v->loss, loss);
	return false;
}
