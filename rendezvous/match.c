/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/match.h"

#include <errno.h>

#define FIRST_BITS 6u
#define MOST_BITS  30u

static struct tern_list *bucket_of(
	const struct tern_match *match, const struct tern_triple *t)
{
	return &match->buckets[t->hash >> match->shift];
}

static uint32_t bucket_count(const struct tern_match *match)
{
	return 1u << (32 - match->shift);
}

static struct tern_list *new_buckets(uint32_t count)
{
	struct tern_list *buckets = malloc(count * sizeof(*buckets));

	for (uint32_t i = 0; buckets && i < count; i++)
		tern_list_init(&buckets[i]);
	return buckets;
}

int tern_match_init(struct tern_match *match, const struct tern_match_secret *secret)
{
	*match = (struct tern_match){.secret = *secret, .shift = 32 - FIRST_BITS};
	/* word[2] is made odd: the channel number is multiplied by it, so 0 would hide
	 * the channel from the hash. */
	match->secret.word[2] |= 1;
	match->buckets = new_buckets(1u << FIRST_BITS);
	return match->buckets ? 0 : -ENOMEM;
}

void tern_match_fini(struct tern_match *match)
{
	tern_assert(match->ring_count == 0);
	free(match->buckets);
	match->buckets = NULL;
}

static struct tern_match_node *in_bucket(struct tern_list *n)
{
	return tern_list_entry(n, struct tern_match_node, bucket);
}

static struct tern_match_node *in_ring(struct tern_list *n)
{
	return tern_list_entry(n, struct tern_match_node, ring);
}

/* Doubles the number of buckets. If there is no memory for that, the lists in the buckets
 * become longer, and nothing fails. */
static void grow(struct tern_match *match)
{
	struct tern_list *old = match->buckets;
	uint32_t old_count = bucket_count(match);
	struct tern_list *buckets = new_buckets(old_count * 2);

	if (!buckets)
		return;
	match->buckets = buckets;
	match->shift--;
	for (uint32_t i = 0; i < old_count; i++) {
		struct tern_list *n;

		while ((n = tern_list_pop(&old[i]))) {
			const struct tern_match_node *node = in_bucket(n);

			tern_list_push(bucket_of(match, &node->triple), n);
		}
	}
	free(old);
}

static bool same(const struct tern_match_node *node, const struct tern_triple *t,
	enum tern_match_kind kind)
{
	return node->triple.key == t->key && node->triple.step == t->step &&
	       node->triple.channel == t->channel && node->kind == kind;
}

static struct tern_match_node *oldest(const struct tern_list *bucket,
	const struct tern_triple *triple, enum tern_match_kind kind)
{
	for (struct tern_list *n = bucket->next; n != bucket; n = n->next)
		if (same(in_bucket(n), triple, kind))
			return in_bucket(n);
	return NULL;
}

void tern_match_add(
	struct tern_match *match, struct tern_match_node *node, enum tern_match_kind kind)
{
	struct tern_list *bucket = bucket_of(match, &node->triple);
	struct tern_match_node *first = oldest(bucket, &node->triple, kind);

	tern_assert(!node->waits);
	node->kind = kind;
	node->waits = true;
	match->count_of[kind]++;
	if (first) {
		tern_list_push(&first->ring, &node->ring);
		return;
	}
	tern_list_push(bucket, &node->bucket);
	if (match->ring_count++ >= bucket_count(match) && match->shift > 32 - MOST_BITS)
		grow(match);
}

void tern_match_remove_waiting(struct tern_match *match, struct tern_match_node *node)
{
	struct tern_match_node *next = in_ring(node->ring.next);

	node->waits = false;
	match->count_of[node->kind]--;
	if (tern_list_linked(&node->bucket)) {
		if (next != node) /* next becomes the oldest */
			tern_list_push_front(&node->bucket, &next->bucket);
		else
			match->ring_count--;
	}
	tern_list_remove(&node->bucket);
	tern_list_remove(&node->ring);
}

struct tern_match_node *tern_match_search(const struct tern_match *match,
	const struct tern_triple *triple, enum tern_match_kind kind)
{
	return oldest(bucket_of(match, triple), triple, kind);
}

struct tern_match_node *tern_match_search_and_remove(struct tern_match *match,
	const struct tern_triple *triple, enum tern_match_kind kind)
{
	struct tern_match_node *n = tern_match_search(match, triple, kind);

	if (n)
		tern_match_remove_waiting(match, n);
	return n;
}

struct tern_match_node *tern_match_before(const struct tern_match_node *node)
{
	return tern_list_linked(&node->bucket) ? NULL : in_ring(node->ring.prev);
}

struct tern_match_node *tern_match_after(const struct tern_match_node *node)
{
	struct tern_match_node *next = in_ring(node->ring.next);

	return tern_list_linked(&next->bucket) ? NULL : next;
}
