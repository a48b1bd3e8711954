/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer "one copy": the limit of what shared memory can give. The sender's tensor is
 * in shared memory, a counter says that it is ready, the receiver copies it once into its
 * own tensor, and a second counter goes back. Both tensors are in huge pages, as Tern's
 * are. The variants are ways of copying: "memcpy", and "around", which bypasses the cache
 * for tensors of 4 MiB or more, where that is faster.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench/copy.h"
#include "bench/pair.h"

#define HUGE_BYTES   (2u << 20)
#define HEAD_BYTES   HUGE_BYTES /* so that tensors begin with a huge page */
#define AROUND_BYTES (4u << 20)

/* Counters of messages. The sender stores `posted` with release order after the tensor's
 * bytes; the receiver loads it with acquire order before it reads them. `answered` works
 * alike in the other direction. */
struct head {
	_Alignas(64) atomic_uint_fast64_t posted;
	_Alignas(64) atomic_uint_fast64_t answered;
};

static struct head *head;
static unsigned char *shared;
static uint64_t before; /* value of head->posted before the present size */
static uint64_t before_answers;

struct where {
	int pid, fd;
	size_t bytes;
};

static struct where ours; /* in the sender: its shared memory */

/* Returns the memory of this end's tensors. The sender's are in the shared memory. */
static unsigned char *shm_memory(struct pair *p, size_t bytes)
{
	if (!p->sender)
		return bench_memory(bytes, false);
	ours = (struct where){.pid = getpid(), .bytes = HEAD_BYTES + bytes};
	ours.bytes += -ours.bytes % HUGE_BYTES;
	ours.fd = memfd_create("bench", MFD_CLOEXEC);
	if (ours.fd < 0 || ftruncate(ours.fd, (off_t)ours.bytes) < 0)
		pair_die("shared memory: %s", strerror(errno));
	head = bench_map(ours.fd, ours.bytes);
	shared = (unsigned char *)head + HEAD_BYTES;
	return shared;
}

/* The receiver maps the sender's memory. bench_map() then reads and writes a byte of every page,
 * which it must not do while the sender writes its tensors. So the sender waits until that is
 * done. */
static void shm_open_pair(struct pair *p)
{
	struct where theirs;
	char path[64], mapped = 0;
	int fd;

	if (p->sender) {
		pair_tell(p, &ours, sizeof(ours));
		pair_hear(p, &mapped, sizeof(mapped));
		return;
	}
	pair_hear(p, &theirs, sizeof(theirs));
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", theirs.pid, theirs.fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		pair_die("shared memory: %s", strerror(errno));
	head = bench_map(fd, theirs.bytes);
	shared = (unsigned char *)head + HEAD_BYTES;
	pair_tell(p, &mapped, sizeof(mapped));
}

static void shm_begin(struct pair *p)
{
	before = atomic_load(&head->posted);
	before_answers = atomic_load(&head->answered);
	(void)p;
}

static void shm_post(struct pair *p, uint64_t n)
{
	(void)p;
	atomic_store_explicit(&head->posted, before + n + 1, memory_order_release);
}

static void shm_await(struct pair *p, uint64_t n)
{
	(void)p;
	while (atomic_load_explicit(&head->answered, memory_order_acquire) <
		before_answers + n + 1)
		pair_relax();
}

static void shm_receive(struct pair *p, uint64_t n)
{
	unsigned char *to = pair_tensor(p, n);
	const unsigned char *from = shared + (to - p->tensors);

	while (atomic_load_explicit(&head->posted, memory_order_acquire) < before + n + 1)
		pair_relax();
	if (pair_bytes(p, n) < AROUND_BYTES || strcmp(p->variant, "around") != 0 ||
		!copy_around_cache(to, from, pair_bytes(p, n)))
		memcpy(to, from, pair_bytes(p, n));
}

/* The answer also lets the sender reuse the tensor, so it is sent for each message. */
static void shm_answer(struct pair *p, uint64_t n)
{
	(void)p;
	atomic_store_explicit(
		&head->answered, before_answers + n + 1, memory_order_release);
}

static const char *shm_version(void)
{
	return "-";
}

int main(int argc, char **argv)
{
	return pair_main(argc, argv,
		&(struct pair_ops){.name = "one copy",
			.variants = "memcpy,around",
			.waits = "poll",
			.version = shm_version,
			.memory = shm_memory,
			.open = shm_open_pair,
			.begin = shm_begin,
			.post = shm_post,
			.await = shm_await,
			.receive = shm_receive,
			.answer = shm_answer});
}
