/* SPDX-License-Identifier: Apache-2.0 */
/* See ranks.h: the test bed of the collectives. */
#include "tests/group/ranks.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "transport/context.h"

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct rank *rank = arg;

	(void)status;
	assert_true(rank->working);
	for (uint32_t i = 0; i < RANKS_MAX; i++)
		if (rank->peers[i] == peer && event == TERN_PEER_DOWN) {
			rank->down[i] = true;
			rank->peers[i] = NULL;
			/* The group must not use it any more. */
			tern_peer_free(peer);
			return;
		}
}

static void set_opts(struct rank *rank, char name[16], struct tern_peer_opts *opts)
{
	snprintf(name, 16, "r%u", rank->number);
	*opts = (struct tern_peer_opts){.event = on_event, .arg = rank, .name = name};
}

/* The peer's name begins with the name that it gave itself. */
static void on_accept(struct tern_peer *peer, void *arg)
{
	struct rank *rank = arg;
	unsigned from = 0;

	assert_int_equal(sscanf(tern_peer_name(peer), "r%u ", &from), 1);
	assert_in_range(from, 0, rank->ranks->count - 1);
	rank->peers[from] = peer;
}

static void rank_init(struct ranks *ranks, uint32_t number)
{
	struct rank *rank = &ranks->of[number];
	struct tern_context_opts opts = {.no_spin = true};
	char address[BED_ADDRESS_MAX], url[BED_ADDRESS_MAX + 16], name[16];
	struct tern_peer_opts peer_opts;

	rank->ranks = ranks;
	rank->number = number;
	log_env_init(&rank->log);
	rank->domain = instance_domain(ranks->instance, NULL, number);
	assert_int_equal(
		tern_context_new_in(rank->domain, &opts, &rank->log.env, &rank->ctx), 0);
	box_init(&rank->box, rank->domain);
	ranks->instance->address(address, number);
	snprintf(url, sizeof(url), "%s://%s", ranks->instance->fabric, address);
	set_opts(rank, name, &peer_opts);
	assert_int_equal(
		tern_listen(rank->ctx, url, &peer_opts, on_accept, rank, &rank->listener),
		0);
}

static bool all_connected(const struct ranks *ranks)
{
	for (uint32_t i = 0; i < ranks->count; i++)
		for (uint32_t k = 0; k < ranks->count; k++)
			if (i != k && !ranks->of[i].peers[k])
				return false;
	return true;
}

struct ranks *ranks_new(const struct instance *instance, uint32_t count)
{
	struct ranks *ranks = calloc(1, sizeof(*ranks));

	assert_non_null(ranks);
	ranks->instance = instance;
	ranks->count = count;
	for (uint32_t i = 0; i < count; i++)
		rank_init(ranks, i);
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t k = 0; k < i; k++) {
			struct tern_peer_opts opts;
			char name[16];

			set_opts(&ranks->of[i], name, &opts);
			assert_int_equal(
				tern_connect(ranks->of[i].ctx,
					tern_listener_address(ranks->of[k].listener),
					&opts, &ranks->of[i].peers[k]),
				0);
		}
	RANKS_PUMP(ranks, all_connected(ranks));
	return ranks;
}

struct tern_group_opts ranks_opts(void)
{
	return (struct tern_group_opts){.number = 7, .piece_bytes = 1024, .lanes = 3};
}

void ranks_group(struct ranks *ranks, const struct tern_group_opts *opts)
{
	for (uint32_t i = 0; i < ranks->count; i++) {
		struct tern_group_opts own = *opts;

		own.rank = i;
		own.size = ranks->count;
		own.peers = ranks->of[i].peers;
		assert_int_equal(
			tern_group_new(ranks->of[i].ctx, &own, &ranks->of[i].group), 0);
	}
}

void ranks_turn(struct ranks *ranks)
{
	for (uint32_t i = 0; i < ranks->count; i++) {
		struct rank *rank = &ranks->of[i];

		if (!rank->ctx || rank->asleep)
			continue;
		rank->working = true;
		assert_in_range(tern_progress(rank->ctx), 0, INT_MAX);
		rank->working = false;
	}
}

void rank_end(struct rank *rank)
{
	rank->working = true;
	tern_group_free(rank->group);
	rank->group = NULL;
	tern_listener_free(rank->listener);
	tern_context_free(rank->ctx);
	rank->ctx = NULL;
	rank->working = false;
}

void ranks_free(struct ranks *ranks)
{
	for (uint32_t i = 0; i < ranks->count; i++)
		tern_group_free(ranks->of[i].group);
	for (uint32_t i = 0; i < ranks->count; i++) {
		struct rank *rank = &ranks->of[i];

		rank->group = NULL;
		if (rank->ctx)
			rank_end(rank);
		box_free(&rank->box);
		tern_domain_free(rank->domain);
	}
	free(ranks);
}

struct tern_buf rank_memory(struct rank *rank, uint64_t bytes)
{
	return box_take(&rank->box, bytes % 3 ? USER : SLAB, bytes);
}

static void on_done(struct tern_group_req *req)
{
	struct turn *turn = req->arg;

	assert_true(turn->rank->working);
	assert_int_not_equal(req->status, -EINPROGRESS);
	turn->done_count++;
	assert_int_equal(turn->done_count, 1);
}

void turn_init(struct turn *turn, struct rank *rank)
{
	*turn = (struct turn){.rank = rank, .req = {.done = on_done, .arg = turn}};
}

bool turns_over(const struct turn *turns, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (turns[i].rank->ctx && !turns[i].rank->asleep && !turns[i].done_count)
			return false;
	return true;
}
