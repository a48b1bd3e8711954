/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of which I/O engine the tcp fabric chooses, and of its error when it cannot use
 * the requested one. A seccomp filter in a child process imitates the filter of a
 * container. */
#include "tests/transport/tcp/tcp_world.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tern-config.h"

/* Makes io_uring_setup() fail with `error` in this process from now on. */
static bool refuse_uring(int error)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {TERN_ARRAY_SIZE(filter), filter};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Exit status of a child process that opens the fabric: which engine it got. */
enum outcome {
	GOT_EPOLL = 10,
	GOT_URING,
	GOT_REFUSAL,
	GOT_NONSENSE,
	NO_SECCOMP,
};

static enum outcome open_refused(enum tern_tcp_engine asked, int error)
{
	struct tern_domain_opts opts = {.tcp_engine = asked};
	struct tern_fabric *fabric;
	const char *why = NULL;
	int r;

	if (!refuse_uring(error))
		return NO_SECCOMP;
	r = tern_tcp_fabric_ops.open(NULL, &opts, &fabric, &why);
	if (r)
		return r == (TERN_HAVE_URING ? -error : -ENOSYS) && why &&
				       strstr(why, "io_uring")
			       ? GOT_REFUSAL
			       : GOT_NONSENSE;
	return tern_container_of(fabric, struct tcp_fabric, base)->engine ==
			       &tcp_epoll_engine
		       ? GOT_EPOLL
		       : GOT_URING;
}

static enum outcome in_child(enum tern_tcp_engine asked, int error)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0)
		_exit((int)open_refused(asked, error));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == NO_SECCOMP) {
		print_message("skipped: this system refuses seccomp filters\n");
		skip();
	}
	return (enum outcome)WEXITSTATUS(status);
}

static void test_auto_takes_epoll(void **state)
{
	struct tern_domain_opts opts = {.tcp_engine = TERN_TCP_AUTO};
	struct tern_fabric *fabric;
	const char *why = NULL;

	(void)state;
	assert_int_equal(tern_tcp_fabric_ops.open(NULL, &opts, &fabric, &why), 0);
	assert_ptr_equal(tern_container_of(fabric, struct tcp_fabric, base)->engine,
		&tcp_epoll_engine);
	fabric->ops->close(fabric);
}

static void test_auto_works_where_io_uring_is_refused(void **state)
{
	(void)state;
	assert_int_equal(in_child(TERN_TCP_AUTO, EPERM), GOT_EPOLL);
	assert_int_equal(in_child(TERN_TCP_AUTO, ENOSYS), GOT_EPOLL);
}

static void test_io_uring_asked_for_and_refused_is_an_error(void **state)
{
	(void)state;
	assert_int_equal(in_child(TERN_TCP_URING, EPERM), GOT_REFUSAL);
	assert_int_equal(in_child(TERN_TCP_URING, ENOSYS), GOT_REFUSAL);
}

static void test_the_congestion_control_asked_for_is_set_or_refused(void **state)
{
	struct tern_domain_opts opts = {.tcp_congestion = "reno"};
	struct tern_fabric *fabric;
	const char *why = NULL;
	int fd;

	(void)state;
	assert_int_equal(tern_tcp_fabric_ops.open(NULL, &opts, &fabric, &why), 0);
	fd = tcp_socket_open(AF_INET,
		tern_container_of(fabric, struct tcp_fabric, base)->congestion, 0);
	assert_true(fd >= 0);
	{
		char name[16] = {0};
		socklen_t bytes = sizeof(name);

		assert_int_equal(
			getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes), 0);
		assert_string_equal(name, "reno");
	}
	close(fd);
	fabric->ops->close(fabric);
	opts.tcp_congestion = "no-such-thing";
	assert_int_equal(tern_tcp_fabric_ops.open(NULL, &opts, &fabric, &why), -ENOENT);
	assert_non_null(strstr(why, "congestion"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_auto_takes_epoll),
		cmocka_unit_test(test_auto_works_where_io_uring_is_refused),
		cmocka_unit_test(test_io_uring_asked_for_and_refused_is_an_error),
		cmocka_unit_test(test_the_congestion_control_asked_for_is_set_or_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
