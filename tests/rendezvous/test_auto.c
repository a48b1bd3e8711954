/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of "auto" addresses between two ends of one host, most of which cannot use shared
 * memory: another program has taken the name, or the other end has another version or runs
 * as another user. Then they must connect over tcp. If both fabrics refuse, the connection
 * is refused.
 */
#include "tests/transport/shm/shm_end.h"

#include <netdb.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <tern/tern.h>

#include "base/clock.h"

#define OTHER_USER 65534u

struct pair {
	struct tern_domain *domain;
	struct tern_context *a, *b; /* `a` dials, `b` listens */
	struct tern_peer *dialled, *accepted;
	bool up, down;
	int down_status;
};

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct pair *p = arg;

	if (peer == p->accepted)
		return;
	p->up |= event == TERN_PEER_UP;
	p->down |= event == TERN_PEER_DOWN;
	p->down_status = status;
}

static void on_peer(struct tern_peer *peer, void *arg)
{
	((struct pair *)arg)->accepted = peer;
}

static struct tern_context *new_context(
	struct tern_domain *domain, const char *secret, uint64_t connect_ns)
{
	const struct tern_context_opts opts = {
		.secret = secret, .connect_ns = connect_ns, .log_level = TERN_LOG_NONE};
	struct tern_context *ctx;
	int status = tern_context_new(domain, &opts, &ctx);

	if (status == -ENOTSUP && secret) {
		print_message("skip: built without OpenSSL, so there are no secrets\n");
		skip();
	}
	assert_int_equal(status, 0);
	return ctx;
}

static void pair_init(struct pair *p, const char *a_secret, const char *b_secret)
{
	*p = (struct pair){0};
	assert_int_equal(tern_domain_new(NULL, &p->domain), 0);
	/* `a` dials without a time limit, so that only a refusal can end its attempt. */
	p->a = new_context(p->domain, a_secret, TERN_NEVER);
	p->b = new_context(p->domain, b_secret, 0);
}

static void pair_fini(struct pair *p)
{
	tern_peer_free(p->dialled);
	tern_context_free(p->a);
	tern_context_free(p->b);
	tern_domain_free(p->domain);
}

static const char *listen_at(struct pair *p, const char *address)
{
	struct tern_listener *listener;

	assert_int_equal(tern_listen(p->b, address, NULL, on_peer, p, &listener), 0);
	return tern_listener_address(listener);
}

static void dial(struct pair *p, const char *address)
{
	const struct tern_peer_opts opts = {.event = on_event, .arg = p};

	assert_int_equal(tern_connect(p->a, address, &opts, &p->dialled), 0);
}

/* ---- another program has taken the name ---- */

enum manner { CLOSES, IS_SILENT, REFUSES, IS_OF_ANOTHER_VERSION, IS_NO_FABRIC, MANNERS };

struct squatter {
	enum manner manner;
	int fd, held;
};

static const char *port_of(const char *address)
{
	return strrchr(address, ':') + 1;
}

static struct squatter squat(const char *host, const char *port, enum manner manner)
{
	struct squatter s = {.manner = manner, .held = -1};
	struct sockaddr_un address;
	char name[64];
	int bytes;

	snprintf(name, sizeof(name), "auto-%s:%s", host, port);
	bytes = shm_address(name, &address);
	s.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	assert_true(s.fd >= 0 && bytes > 0);
	assert_int_equal(bind(s.fd, (struct sockaddr *)&address, (socklen_t)bytes), 0);
	assert_int_equal(listen(s.fd, 16), 0);
	return s;
}

static void squatter_turn(struct squatter *s)
{
	struct shm_note note = {.magic = SHM_NOTE_MAGIC,
		.version = SHM_NOTE_VERSION,
		.type = SHM_REFUSE,
		.status = -EPROTONOSUPPORT};
	int fd = accept(s->fd, NULL, NULL);

	if (fd < 0)
		return;
	if (s->manner == IS_OF_ANOTHER_VERSION) {
		note.version++;
		note.type = SHM_WELCOME;
	} else if (s->manner == IS_NO_FABRIC) {
		memset(&note, 'x', sizeof(note));
	}
	if (s->manner >= REFUSES)
		assert_int_equal(
			send(fd, &note, sizeof(note), MSG_NOSIGNAL), sizeof(note));
	if (s->held >= 0)
		close(s->held);
	s->held = s->manner == CLOSES ? -1 : fd;
	if (s->manner == CLOSES)
		close(fd);
}

static void squatter_leave(struct squatter *s)
{
	close(s->fd);
	if (s->held >= 0)
		close(s->held);
}

static void squatters_turn(struct squatter *two)
{
	for (unsigned i = 0; two && i < 2; i++)
		squatter_turn(&two[i]);
}

#define PAIR_UNTIL(p, squatters, condition)                                              \
	do {                                                                             \
		uint64_t limit_ms_ = now_ms() + 20000;                                   \
		while (!(condition)) {                                                   \
			tern_progress((p)->a);                                           \
			tern_progress((p)->b);                                           \
			squatters_turn(squatters);                                       \
			if (now_ms() > limit_ms_)                                        \
				fail_msg("never: %s", #condition);                       \
		}                                                                        \
	} while (0)
#define NOBODY NULL

static void meet_beside(enum manner manner)
{
	struct squatter squatters[2];
	struct pair p;
	char address[64];

	pair_init(&p, NULL, NULL);
	snprintf(address, sizeof(address), "auto://127.0.0.1:%s",
		port_of(listen_at(&p, "tcp://127.0.0.1:0")));
	squatters[0] = squat("127.0.0.1", port_of(address), manner);
	squatters[1] = squat("*", port_of(address), manner);
	/* If the other program is silent, the attempt over shared memory takes half of the
	 * remaining time, so the dialling context needs a time limit. */
	if (manner == IS_SILENT) {
		tern_context_free(p.a);
		p.a = new_context(p.domain, NULL, TERN_NS_PER_S);
	}
	dial(&p, address);
	PAIR_UNTIL(&p, squatters, p.up || p.down);
	assert_true(p.up);
	assert_string_equal(tern_peer_fabric(p.dialled), "tcp");
	for (unsigned i = 0; i < 2; i++)
		squatter_leave(&squatters[i]);
	pair_fini(&p);
}

static void test_a_stranger_at_the_name_keeps_nobody_out(void **state)
{
	(void)state;
	for (unsigned manner = 0; manner < MANNERS; manner++)
		meet_beside((enum manner)manner);
}

/* Shared memory refuses finally, so the dialler tries it only once. It tries tcp until a
 * process listens there. */
static void test_who_comes_before_the_listener_waits_for_tcp(void **state)
{
	struct squatter squatters[2];
	struct pair p;
	char address[64], tcp[64];
	const char *port;

	(void)state;
	pair_init(&p, NULL, NULL);
	port = port_of(listen_at(&p, "tcp://127.0.0.1:0"));
	snprintf(address, sizeof(address), "auto://127.0.0.1:%s", port);
	snprintf(tcp, sizeof(tcp), "tcp://127.0.0.1:%s", port);
	squatters[0] = squat("127.0.0.1", port_of(address), REFUSES);
	squatters[1] = squat("*", port_of(address), REFUSES);
	tern_context_free(p.b);
	p.b = new_context(p.domain, NULL, 0);
	dial(&p, address);
	PAIR_UNTIL(&p, squatters, squatters[0].held >= 0 && squatters[1].held >= 0);
	for (uint64_t until_ms = now_ms() + 20; now_ms() < until_ms;)
		tern_progress(p.a);
	assert_false(p.up || p.down);
	listen_at(&p, tcp);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(accept(squatters[i].fd, NULL, NULL), -1);
	PAIR_UNTIL(&p, squatters, p.up);
	for (unsigned i = 0; i < 2; i++)
		squatter_leave(&squatters[i]);
	pair_fini(&p);
}

static void test_a_listener_whose_name_is_taken_serves_over_tcp(void **state)
{
	struct squatter squatters[2];
	struct pair p, other;
	char address[64];

	(void)state;
	pair_init(&p, NULL, NULL);
	pair_init(&other, NULL, NULL);
	snprintf(address, sizeof(address), "auto://127.0.0.1:%s",
		port_of(listen_at(&other, "tcp://127.0.0.1:0")));
	pair_fini(&other);
	squatters[0] = squat("127.0.0.1", port_of(address), REFUSES);
	squatters[1] = squat("*", port_of(address), REFUSES);
	listen_at(&p, address);
	dial(&p, address);
	PAIR_UNTIL(&p, squatters, p.up || p.down);
	assert_true(p.up);
	for (unsigned i = 0; i < 2; i++)
		squatter_leave(&squatters[i]);
	pair_fini(&p);
}

/* ---- refused by the peer itself, on each fabric ---- */

static void test_a_wrong_secret_is_refused_over_every_fabric(void **state)
{
	const char *const secrets[] = {"open sesame", "open barley", NULL};

	(void)state;
	for (unsigned i = 1; i < 3; i++) {
		struct pair p;

		pair_init(&p, secrets[i], secrets[0]);
		dial(&p, listen_at(&p, "auto://127.0.0.1:0"));
		PAIR_UNTIL(&p, NOBODY, p.up || p.down);
		assert_false(p.up);
		assert_int_equal(p.down_status, -EACCES);
		assert_null(p.accepted);
		pair_fini(&p);
	}
}

static void test_the_right_secret_goes_over_shared_memory(void **state)
{
	struct pair p;

	(void)state;
	pair_init(&p, "open sesame", "open sesame");
	dial(&p, listen_at(&p, "auto://127.0.0.1:0"));
	PAIR_UNTIL(&p, NOBODY, p.up || p.down);
	assert_true(p.up);
	assert_string_equal(tern_peer_fabric(p.dialled), "shm");
	pair_fini(&p);
}

/* ---- another user ---- */

static void need_root(void)
{
	if (geteuid() == 0)
		return;
	print_message("skip: only root can run a process as another user\n");
	skip();
}

/* Makes this child process run as another user. If its parent ends, for example after a
 * failed test, the kernel kills the child. */
static void become_another_user(void)
{
	if (setresgid(OTHER_USER, OTHER_USER, OTHER_USER) ||
		setresuid(OTHER_USER, OTHER_USER, OTHER_USER) ||
		prctl(PR_SET_PDEATHSIG, SIGKILL))
		_exit(3);
}

static int fabric_of(struct tern_peer *peer)
{
	return strcmp(tern_peer_fabric(peer), "tcp") == 0 ? 0 : 4;
}

static uint16_t listened_port;
static int port_pipe[2];

/* Runs as another user: accepts a peer at its own listener. */
static void listens(const char *unused)
{
	struct pair p;
	uint16_t port;
	int status;

	(void)unused;
	become_another_user();
	pair_init(&p, NULL, NULL);
	port = (uint16_t)atoi(port_of(listen_at(&p, "auto://127.0.0.1:0")));
	if (write(port_pipe[1], &port, sizeof(port)) != sizeof(port))
		_exit(5);
	while (!p.accepted)
		tern_wait_any(p.b, TERN_NS_PER_S);
	status = fabric_of(p.accepted);
	tern_peer_close(p.accepted);
	for (unsigned i = 0; i < 100; i++)
		tern_wait_any(p.b, TERN_NS_PER_MS);
	_exit(status);
}

static void dials(const char *address)
{
	struct pair p;

	become_another_user();
	pair_init(&p, NULL, NULL);
	dial(&p, address);
	while (!p.up && !p.down)
		tern_wait_any(p.a, TERN_NS_PER_S);
	_exit(p.up ? fabric_of(p.dialled) : 6);
}

/* ---- a port that says nothing ---- */

/* No shared memory has the name, which is refused at once. What the port did is what the
 * dialler is told. */
static void test_a_port_that_says_nothing_has_timed_out(void **state)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	socklen_t bytes = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct pair p;
	char text[64];

	(void)state;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, bytes), 0);
	assert_int_equal(listen(fd, 16), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
	pair_init(&p, NULL, NULL);
	tern_context_free(p.a);
	p.a = new_context(p.domain, NULL, 200 * TERN_NS_PER_MS);
	snprintf(text, sizeof(text), "auto://127.0.0.1:%u", ntohs(address.sin_port));
	dial(&p, text);
	PAIR_UNTIL(&p, NOBODY, p.up || p.down);
	assert_int_equal(p.down_status, -ETIMEDOUT);
	pair_fini(&p);
	close(fd);
}

/* ---- names ---- */

static void test_a_name_of_this_host_means_shared_memory(void **state)
{
	char host[100], address[200];
	struct addrinfo *found = NULL;
	struct pair p;

	(void)state;
	if (gethostname(host, sizeof(host)) || getaddrinfo(host, NULL, NULL, &found)) {
		print_message("skip: the name of this host cannot be looked up\n");
		skip();
	}
	freeaddrinfo(found);
	pair_init(&p, NULL, NULL);
	snprintf(address, sizeof(address), "auto://%s:%s", host,
		port_of(listen_at(&p, "auto://0.0.0.0:0")));
	dial(&p, address);
	PAIR_UNTIL(&p, NOBODY, p.up || p.down);
	assert_true(p.up);
	assert_string_equal(tern_peer_fabric(p.dialled), "shm");
	pair_fini(&p);
}

/* The dialler's time limit is TERN_NEVER, so only the unknown name can end the
 * attempt. */
static void test_a_name_that_no_host_has_is_final(void **state)
{
	struct addrinfo *found = NULL;
	struct pair p;

	(void)state;
	if (getaddrinfo("no-such-host.invalid", NULL, NULL, &found) == EAI_AGAIN) {
		print_message("skip: names cannot be looked up\n");
		skip();
	}
	pair_init(&p, NULL, NULL);
	dial(&p, "auto://no-such-host.invalid:7000");
	PAIR_UNTIL(&p, NOBODY, p.down);
	assert_int_equal(p.down_status, -ENODATA);
	pair_fini(&p);
}

static void test_another_user_listens(void **state)
{
	struct pair p;
	char address[64];
	pid_t pid;

	(void)state;
	need_root();
	assert_int_equal(pipe(port_pipe), 0);
	pid = in_child(listens, NULL);
	assert_int_equal(read(port_pipe[0], &listened_port, 2), 2);
	close(port_pipe[0]);
	close(port_pipe[1]);
	pair_init(&p, NULL, NULL);
	snprintf(address, sizeof(address), "auto://127.0.0.1:%u", listened_port);
	dial(&p, address);
	PAIR_UNTIL(&p, NOBODY, p.up || p.down);
	assert_true(p.up);
	assert_string_equal(tern_peer_fabric(p.dialled), "tcp");
	child_must_end_well(pid);
	pair_fini(&p);
}

static void test_another_user_dials(void **state)
{
	struct pair p;
	pid_t pid;
	int status;

	(void)state;
	need_root();
	pair_init(&p, NULL, NULL);
	pid = in_child(dials, listen_at(&p, "auto://127.0.0.1:0"));
	while (waitpid(pid, &status, WNOHANG) == 0) {
		tern_progress(p.a);
		tern_progress(p.b);
	}
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	pair_fini(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_stranger_at_the_name_keeps_nobody_out),
		cmocka_unit_test(test_who_comes_before_the_listener_waits_for_tcp),
		cmocka_unit_test(test_a_listener_whose_name_is_taken_serves_over_tcp),
		cmocka_unit_test(test_a_wrong_secret_is_refused_over_every_fabric),
		cmocka_unit_test(test_the_right_secret_goes_over_shared_memory),
		cmocka_unit_test(test_a_port_that_says_nothing_has_timed_out),
		cmocka_unit_test(test_a_name_of_this_host_means_shared_memory),
		cmocka_unit_test(test_a_name_that_no_host_has_is_final),
		cmocka_unit_test(test_another_user_listens),
		cmocka_unit_test(test_another_user_dials),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
