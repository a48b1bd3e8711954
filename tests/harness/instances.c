/* SPDX-License-Identifier: Apache-2.0 */
/* The list of all instances, and the instances of the tcp and shm fabrics. */
#include "tests/harness/bed.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static struct instance *first, **last = &first;

void instance_add(struct instance *instance)
{
	*last = instance;
	last = &instance->next;
}

const struct instance *instance_first(void)
{
	return first;
}

const struct instance *instance_find(const char *name, size_t bytes)
{
	for (const struct instance *i = first; i; i = i->next)
		if (strlen(i->name) == bytes && memcmp(i->name, name, bytes) == 0)
			return i;
	return NULL;
}

/* Port 0: the system assigns a free port, so `number` makes no difference. */
static void tcp_address(char *out, unsigned number)
{
	(void)number;
	snprintf(out, BED_ADDRESS_MAX, "127.0.0.1:0");
}

/* The port is bound, so that no other process gets it, but no process listens at it. */
static void tcp_nobody(char *out)
{
	static int fd = -1;
	static struct sockaddr_in at;
	socklen_t bytes = sizeof(at);

	if (fd < 0) {
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		at.sin_family = AF_INET;
		at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
		assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
	}
	snprintf(out, BED_ADDRESS_MAX, "127.0.0.1:%u", (unsigned)ntohs(at.sin_port));
}

static const char *const tcp_malformed[] = {"", ":", "127.0.0.1",
	"127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:12x", "127.0.0.1: 12",
	"127.0.0.1:99999999999999999999", NULL};

INSTANCE(tcp_uring) = {
	.name = "tcp-uring",
	.fabric = "tcp",
	.sockets = true,
	.opts = {.tcp_engine = TERN_TCP_URING},
	.can_sleep = true,
	.address = tcp_address,
	.nobody = tcp_nobody,
	.malformed = tcp_malformed,
	.elsewhere = "192.0.2.1:0",
};

INSTANCE(tcp_epoll) = {
	.name = "tcp-epoll",
	.fabric = "tcp",
	.sockets = true,
	.opts = {.tcp_engine = TERN_TCP_EPOLL},
	.can_sleep = true,
	.address = tcp_address,
	.nobody = tcp_nobody,
	.malformed = tcp_malformed,
	.elsewhere = "192.0.2.1:0",
};

static void shm_address(char *out, unsigned number)
{
	static unsigned count;

	if (number == 0)
		count++;
	snprintf(out, BED_ADDRESS_MAX, "conformance-%d-%u-%u", (int)getpid(), count,
		number);
}

static void shm_nobody(char *out)
{
	snprintf(out, BED_ADDRESS_MAX, "conformance-%d-nobody", (int)getpid());
}

static const char *const shm_malformed[] = {"", NULL};

INSTANCE(shm) = {
	.name = "shm",
	.fabric = "shm",
	.can_sleep = true,
	.address = shm_address,
	.nobody = shm_nobody,
	.malformed = shm_malformed,
};

INSTANCE(shm_no_cma) = {
	.name = "shm-no-cma",
	.fabric = "shm",
	.opts = {.no_cma = true},
	.can_sleep = true,
	.address = shm_address,
	.nobody = shm_nobody,
	.malformed = shm_malformed,
};
