/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A measurement between two processes of this host. They share a socket pair, over which
 * the receiver sends its address and, at the end, its CPU time and number of memory
 * registrations, or its failure. Both processes are new for each measurement, because
 * what the RDMA libraries set up before a fork cannot be used in the child.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "tools/bench_end.h"
#include "tools/bench_hosts.h"

static int run_receiver(struct bench_end *e, int fd)
{
	char address[128];
	int r = bench_end_open(e);

	if (r == 0)
		r = bench_end_prepare(e);
	if (r == 0)
		r = bench_end_listen(e);
	if (r)
		return r;
	snprintf(address, sizeof(address), "%s", tern_listener_address(e->listener));
	if (write(fd, address, sizeof(address)) != sizeof(address))
		return bench_end_fail(e, -EPIPE, "the sender has ended");
	r = bench_end_drive(e, bench_end_is_up, "accepting");
	if (r == 0)
		r = bench_end_start_receiving(e);
	if (r == 0)
		r = bench_end_drive(e, bench_end_is_idle, "receiving");
	return r ? r : bench_end_say_goodbye(e);
}

static int run_sender(struct bench_end *e, int fd, struct bench_result *result)
{
	char address[128];
	int r = bench_end_open(e);

	if (r == 0)
		r = bench_end_prepare(e);
	if (r)
		return r;
	/* A receiver that has failed sends a struct bench_usage with the reason instead
	 * of its address. This message stays in the socket for run_both(). */
	if (recv(fd, address, sizeof(address), MSG_PEEK | MSG_TRUNC) != sizeof(address))
		return -EPIPE;
	if (read(fd, address, sizeof(address)) != sizeof(address))
		return bench_end_fail(e, -EPIPE, "the receiver has ended");
	r = bench_end_connect(e, address);
	if (r)
		return r;
	snprintf(result->fabric, sizeof(result->fabric), "%s", tern_peer_fabric(e->peer));
	r = bench_end_start_sending(e);
	if (r == 0)
		r = bench_end_drive(e, bench_end_is_idle, "sending");
	return r ? r : bench_end_say_goodbye(e);
}

static _Noreturn void be_receiver(
	pid_t parent, const struct bench_config *config, int fd, bool pinned)
{
	struct bench_end e = {.config = config};
	ssize_t bytes;

	bench_end_with_parent(parent);
	if (pinned)
		bench_pin(1);
	run_receiver(&e, fd);
	bench_end_close(&e);
	bytes = write(fd, &e.usage, sizeof(e.usage));
	_exit(bytes != sizeof(e.usage));
}

static int cannot_start(struct bench_error *error)
{
	int r = -errno;

	snprintf(error->text, sizeof(error->text), "starting the receiver: %s",
		strerror(-r));
	return r;
}

/* Runs both ends: this process sends, and a forked child receives. */
static int run_both(const struct bench_config *config, struct bench_result *result,
	struct bench_error *error)
{
	struct bench_end e = {.config = config, .sender = true};
	struct bench_usage other = {
		.status = -EPIPE, .error.text = "the process has died"};
	int fds[2];
	pid_t parent = getpid(), pid;

	*result = (struct bench_result){0};
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
		return cannot_start(error);
	result->pinned = bench_core_count() >= 2 &&
			 (config->pin == BENCH_PIN_AUTO ? !config->sleep
							: config->pin == BENCH_PIN_YES);
	pid = fork();
	if (pid == 0) {
		close(fds[0]);
		be_receiver(parent, config, fds[1], result->pinned);
	}
	if (pid < 0) {
		int r = cannot_start(error);

		close(fds[0]);
		close(fds[1]);
		return r;
	}
	close(fds[1]);
	if (result->pinned)
		bench_pin(0);
	run_sender(&e, fds[0], result);
	if (e.usage.status) {
		/* Closes the connection, so that the receiver ends too and may report the
		 * cause. */
		tern_context_free(TERN_TAKE(e.ctx));
		if (poll(&(struct pollfd){.fd = fds[0], .events = POLLIN}, 1, 1000) <= 0)
			kill(pid, SIGKILL);
	}
	/* A receiver that finds wrong contents (-EBADMSG) closes the connection, which is
	 * an error at the sender. The receiver's error is the cause, so it is the one to
	 * report. */
	if (read(fds[0], &other, sizeof(other)) == sizeof(other) &&
		other.status == -EBADMSG)
		e.usage.status = 0;
	if (other.status)
		bench_end_fail(&e, other.status, "receiver: %.200s", other.error.text);
	waitpid(pid, NULL, 0);
	close(fds[0]);
	if (!e.usage.status)
		bench_end_summarise(&e, &other, result);
	*error = e.usage.error;
	bench_end_close(&e);
	return e.usage.status;
}

/* What the sending process reports to the process that started it. */
struct outcome {
	int status;
	struct bench_result result;
	struct bench_error error;
};

static _Noreturn void be_sender(pid_t parent, const struct bench_config *config, int fd)
{
	struct outcome o = {0};
	ssize_t bytes;

	bench_end_with_parent(parent);
	o.status = config->connect ? bench_hosts_run(config, &o.result, &o.error)
				   : run_both(config, &o.result, &o.error);
	bytes = write(fd, &o, sizeof(o));
	_exit(bytes != sizeof(o));
}

int bench_pair_run(const struct bench_config *config, struct bench_result *result,
	struct bench_error *error)
{
	struct outcome o = {
		.status = -EPIPE, .error.text = "the sending process has died"};
	int fds[2];
	pid_t parent = getpid(), pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0) {
		snprintf(error->text, sizeof(error->text), "%s", strerror(errno));
		return -errno;
	}
	pid = fork();
	if (pid == 0)
		be_sender(parent, config, fds[1]);
	close(fds[1]);
	if (pid < 0)
		snprintf(o.error.text, sizeof(o.error.text), "%s", strerror(errno));
	else if (read(fds[0], &o, sizeof(o)) < 0)
		o.status = -errno;
	close(fds[0]);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	*result = o.result;
	*error = o.error;
	return o.status;
}
