/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes one end of the message rings in shared memory, while the other end may write
 * anything into its own area: the input gives the marks, lengths and indices that the
 * other end writes.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/util.h"
#include "tests/fuzz/fuzz.h"
#include "transport/shm/ring.h"

#define MESSAGE_BYTES 4096u

static struct shm_area *new_area(uint64_t random)
{
	uint64_t bytes = shm_area_bytes(MESSAGE_BYTES);
	void *area = NULL;

	if (posix_memalign(&area, 4096, bytes) != 0)
		tern_never("memory for an area");
	memset(area, 0, SHM_RING_OFFSET);
	shm_area_init(area, random);
	return area;
}

static void place(struct fuzz *f, struct shm_ring *ring)
{
	char *bytes = (char *)ring->peer + SHM_RING_OFFSET;
	uint64_t mark = shm_mark(ring->peer_start, ring->head) + fuzz_below(f, 4);
	uint64_t length = fuzz_take(f, 1 + fuzz_below(f, 8));
	uint64_t at = (ring->head + SHM_LINE * fuzz_below(f, 2)) % ring->bytes;

	memcpy(bytes + at, &mark, sizeof(mark));
	memcpy(bytes + at + sizeof(mark), &length, sizeof(length));
}

static void act(struct fuzz *f, struct shm_ring *ring)
{
	static unsigned char message[MESSAGE_BYTES];
	size_t got = 0;

	switch (fuzz_below(f, 6)) {
	case 0:
	case 1:
		place(f, ring);
		break;
	case 2:
		if (shm_ring_receive(ring, message, sizeof(message), &got) == 1)
			tern_assert(got <= sizeof(message));
		break;
	case 3:
		shm_ring_send(ring, message, 8 * fuzz_below(f, 16), message,
			16 * fuzz_below(f, 200));
		break;
	case 4:
		atomic_store(&ring->peer->head, fuzz_take(f, 8));
		break;
	case 5:
		atomic_store(&ring->peer->asleep, fuzz_take(f, 8));
		shm_bell(ring);
		shm_ring_roomy(ring);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct fuzz f = {data, bytes};
	uint64_t start = fuzz_take(&f, 8);
	struct shm_ring ring;
	struct shm_area *own = new_area(1), *peer = new_area(start);

	shm_ring_init(&ring, own, peer, shm_ring_bytes(MESSAGE_BYTES));
	while (f.bytes)
		act(&f, &ring);
	free(own);
	free(peer);
	return 0;
}
