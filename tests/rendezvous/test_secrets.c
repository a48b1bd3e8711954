/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of secrets of single listeners and single dialled peers, which replace the
 * context's secret. Somebody who has observed a session, but does not know its secret,
 * must not be able to disturb it. */
#include "tests/harness/cmocka.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <tern/tern.h>

#include "base/clock.h"
#include "rendezvous/rendezvous.h"

struct end {
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_listener *listener;
	struct tern_peer *accepted;
	unsigned accepted_count;
};

struct dialled {
	struct tern_peer *peer;
	bool up, down;
	int status;
};

static struct end ends[2]; /* ends[0] dials, ends[1] listens */

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct end *e = arg;

	e->accepted = peer;
	e->accepted_count++;
}

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct dialled *d = arg;

	(void)peer;
	d->up |= event == TERN_PEER_UP;
	if (event == TERN_PEER_DOWN) {
		d->down = true;
		d->status = status;
	}
}

static void open_end(struct end *e, const char *secret)
{
	struct tern_context_opts opts = {.secret = secret};

	*e = (struct end){0};
	assert_int_equal(tern_domain_new(NULL, &e->domain), 0);
	assert_int_equal(tern_context_new(e->domain, &opts, &e->ctx), 0);
}

static void close_ends(void)
{
	for (unsigned i = 0; i < 2; i++) {
		tern_context_free(ends[i].ctx);
		tern_domain_free(ends[i].domain);
	}
}

static void listen_with(const char *secret)
{
	char own[32];

	if (secret)
		snprintf(own, sizeof(own), "%s", secret);
	assert_int_equal(tern_listen(ends[1].ctx, "tcp://127.0.0.1:0",
				 &(struct tern_peer_opts){.secret = secret ? own : NULL},
				 on_accept, &ends[1], &ends[1].listener),
		0);
	memset(own, 'x', sizeof(own) - 1); /* the listener must have copied the secret */
}

static void dial(struct end *from, struct dialled *d, const char *secret)
{
	*d = (struct dialled){0};
	assert_int_equal(tern_connect(from->ctx, tern_listener_address(ends[1].listener),
				 &(struct tern_peer_opts){
					 .event = on_event, .arg = d, .secret = secret},
				 &d->peer),
		0);
}

static void step(void)
{
	if (tern_progress(ends[0].ctx) + tern_progress(ends[1].ctx) == 0)
		usleep(50);
}

#define UNTIL(condition)                                                                 \
	do {                                                                             \
		uint64_t limit_ns_ = tern_clock_ns() + 20 * TERN_NS_PER_S;               \
		while (!(condition) && tern_clock_ns() < limit_ns_)                      \
			step();                                                          \
		assert_true(condition);                                                  \
	} while (0)

static void meets(const char *secret, bool well)
{
	struct dialled d;

	ends[1].accepted_count = 0;
	dial(&ends[0], &d, secret);
	UNTIL(d.up || d.down);
	assert_int_equal(d.up, well);
	if (well)
		UNTIL(ends[1].accepted_count == 1);
	else
		assert_int_equal(d.status, -EACCES);
	tern_peer_free(d.peer);
	UNTIL(tern_list_empty(&tern_rdv_of(ends[0].ctx)->peers));
	assert_int_equal(ends[1].accepted_count, well);
}

static void test_a_listener_has_a_secret_of_its_own(void **state)
{
	(void)state;
	open_end(&ends[0], "the context's");
	open_end(&ends[1], "the context's");
	listen_with("its own");
	meets("its own", true);
	meets("another", false);
	meets(NULL, false); /* connects with the context's secret */
	tern_listener_free(ends[1].listener);
	listen_with(NULL);
	meets(NULL, true);
	meets("the context's", true);
	meets("its own", false);
	close_ends();
}

static void test_a_secret_at_one_end_only_is_refused(void **state)
{
	(void)state;
	open_end(&ends[0], NULL);
	open_end(&ends[1], NULL);
	listen_with("its own");
	meets(NULL, false);
	tern_listener_free(ends[1].listener);
	listen_with(NULL);
	meets("its own", false);
	meets(NULL, true);
	close_ends();
}

static void test_an_empty_secret_is_none_and_is_refused(void **state)
{
	struct tern_context_opts opts = {.secret = ""};
	struct tern_peer_opts peer_opts = {.secret = ""};
	struct tern_listener *listener;
	struct tern_context *ctx;
	struct tern_peer *peer;

	(void)state;
	open_end(&ends[0], NULL);
	open_end(&ends[1], NULL);
	assert_int_equal(tern_context_new(ends[0].domain, &opts, &ctx), -EINVAL);
	assert_int_equal(tern_listen(ends[0].ctx, "tcp://127.0.0.1:0", &peer_opts,
				 on_accept, NULL, &listener),
		-EINVAL);
	assert_int_equal(
		tern_connect(ends[0].ctx, "tcp://127.0.0.1:1", &peer_opts, &peer),
		-EINVAL);
	close_ends();
}

/* The dialling end cuts the connection. The session must restore it with the secret that
 * it began with, although both ends have set another one since. */
static void test_a_lost_link_is_restored_with_the_secret(void **state)
{
	struct dialled d;
	struct tern_peer_stats stats;

	(void)state;
	open_end(&ends[0], NULL);
	open_end(&ends[1], NULL);
	listen_with("its own");
	dial(&ends[0], &d, "its own");
	UNTIL(ends[1].accepted && d.peer->link);
	/* A secret that is set later does not change that of the session. */
	tern_peer_set_opts(d.peer,
		&(struct tern_peer_opts){.event = on_event, .arg = &d, .secret = "no"});
	tern_peer_set_opts(ends[1].accepted, &(struct tern_peer_opts){.secret = "no"});
	tern_link_close(d.peer->link, -ECONNRESET, false);
	UNTIL((tern_peer_stats(ends[1].accepted, &stats), stats.reconnect_count == 1));
	UNTIL(d.peer->link);
	assert_false(d.down);
	close_ends();
}

/* An attacker that knows the session's token, incarnation and epoch, as an eavesdropper
 * would, but not the secret, dials to resume the session. It must be refused, and the
 * session's connection must stay. */
static void test_who_has_seen_a_session_cannot_cut_it(void **state)
{
	struct dialled d, thief;
	struct tern_peer_stats stats;
	struct tern_link *link;
	struct end other;

	(void)state;
	open_end(&ends[0], "open sesame");
	open_end(&ends[1], "open sesame");
	open_end(&other, NULL);
	listen_with(NULL);
	dial(&ends[0], &d, NULL);
	UNTIL(ends[1].accepted && ends[1].accepted->link);
	link = ends[1].accepted->link;
	tern_rdv_of(other.ctx)->incarnation = tern_rdv_of(ends[0].ctx)->incarnation;
	dial(&other, &thief, NULL);
	thief.peer->token = d.peer->token;
	thief.peer->epoch = d.peer->epoch + 1;
	UNTIL((tern_progress(other.ctx), thief.down));
	assert_int_equal(thief.status, -EACCES);
	assert_ptr_equal(ends[1].accepted->link, link);
	tern_peer_stats(ends[1].accepted, &stats);
	assert_int_equal(stats.reconnect_count, 0);
	tern_context_free(other.ctx);
	tern_domain_free(other.domain);
	close_ends();
}

static void test_without_openssl_there_is_no_secret(void **state)
{
	struct tern_context_opts opts = {.secret = "x"};
	struct tern_domain *domain;
	struct tern_context *ctx;

	(void)state;
	assert_int_equal(tern_domain_new(NULL, &domain), 0);
	assert_int_equal(tern_context_new(domain, &opts, &ctx), -ENOTSUP);
	tern_domain_free(domain);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_listener_has_a_secret_of_its_own),
		cmocka_unit_test(test_a_secret_at_one_end_only_is_refused),
		cmocka_unit_test(test_an_empty_secret_is_none_and_is_refused),
		cmocka_unit_test(test_a_lost_link_is_restored_with_the_secret),
		cmocka_unit_test(test_who_has_seen_a_session_cannot_cut_it),
	};
	const struct CMUnitTest without[] = {
		cmocka_unit_test(test_without_openssl_there_is_no_secret),
	};

	if (tern_secret_check("x") == -ENOTSUP)
		return cmocka_run_group_tests(without, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
