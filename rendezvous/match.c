/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/match.h"

#include <errno.h>

#define FIRST_BITS 6u
#define MOST_BITS  30u
#define SPREAD     0x9e3779b97f4a7c15ull /* 2^64 / golden ratio */

static struct tern_list *bucket_of(
	const struct tern_match *match, const struct tern_triple *t)
{
	/* Keys may be hashes, steps and channels are small: all are spread. Of a product
	 * only the highest bits depend on every bit of its factors. */
	uint64_t h = t->key ^ (t->step + ((uint64_t)t->channel << 40)) * SPREAD;

	return &match->buckets[h * SPREAD >> match->shift];
}

static uint32_t bucket_count(const struct tern_match *match)
{
	return (uint32_t)(1ull << (64 - match->shift));
}

static struct tern_list *new_buckets(uint32_t count)
{
	struct tern_list *buckets = malloc(count * sizeof(*buckets));

	for (uint32_t i = 0; buckets && i < count; i++)
		tern_list_init(&buckets[i]);
	return buckets;
}

int tern_match_init(struct tern_match *match)
{
	match->buckets = new_buckets(1u << FIRST_BITS);
	match->shift = 64 - FIRST_BITS;
	match->count = 0;
	return match->buckets ? 0 : -ENOMEM;
}

void tern_match_fini(struct tern_match *match)
{
	tern_assert(match->count == 0);
	free(match->buckets);
	match->buckets = NULL;
}

/* Twice the buckets; without memory for them the chains are longer, no more. */
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
			struct tern_match_node *node =
				tern_list_entry(n, struct tern_match_node, link);

			tern_list_push(bucket_of(match, &node->triple), n);
		}
	}
	free(old);
}

void tern_match_add(
	struct tern_match *match, struct tern_match_node *node, enum tern_match_kind kind)
{
	tern_assert(!tern_list_linked(&node->link));
	if (match->count >= bucket_count(match) && match->shift > 64 - MOST_BITS)
		grow(match);
	node->kind = kind;
	tern_list_push(bucket_of(match, &node->triple), &node->link);
	match->count++;
	match->count_of[kind]++;
}

void tern_match_remove(struct tern_match *match, struct tern_match_node *node)
{
	if (!tern_list_linked(&node->link))
		return;
	tern_list_remove(&node->link);
	match->count--;
	match->count_of[node->kind]--;
}

static bool same(const struct tern_match_node *node, const struct tern_triple *t,
	enum tern_match_kind kind)
{
	return node->triple.key == t->key && node->triple.step == t->step &&
	       node->triple.channel == t->channel && node->kind == kind;
}

static struct tern_match_node *find_from(struct tern_list *bucket, struct tern_list *from,
	const struct tern_triple *triple, enum tern_match_kind kind)
{
	for (struct tern_list *n = from; n != bucket; n = n->next) {
		struct tern_match_node *node =
			tern_list_entry(n, struct tern_match_node, link);

		if (same(node, triple, kind))
			return node;
	}
	return NULL;
}

struct tern_match_node *tern_match_find(const struct tern_match *match,
	const struct tern_triple *triple, enum tern_match_kind kind)
{
	struct tern_list *bucket;

	if (match->count_of[kind] == 0)
		return NULL;
	bucket = bucket_of(match, triple);
	return find_from(bucket, bucket->next, triple, kind);
}

struct tern_match_node *tern_match_next(
	const struct tern_match *match, const struct tern_match_node *node)
{
	return find_from(bucket_of(match, &node->triple), node->link.next, &node->triple,
		node->kind);
}
