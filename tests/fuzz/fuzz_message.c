/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the decoders of messages. If a message is accepted, encoding it and decoding the
 * result must give the same fields. */
#include <stdlib.h>

#include "base/util.h"
#include "rendezvous/wire.h"
#include "tests/fuzz/fuzz.h"

static void check_header(const void *message, size_t bytes)
{
	_Alignas(8) unsigned char encoded[TERN_HEAD_MAX];
	struct tern_header h, again;
	const char *why = NULL;
	size_t head_bytes;

	if (tern_header_decode(message, bytes, &h, &why) < 0) {
		tern_assert(why);
		return;
	}
	head_bytes = tern_header_encode(&h, encoded);
	tern_assert(head_bytes <= bytes && head_bytes <= sizeof(encoded));
	if (tern_header_payload_bytes(&h))
		/* It is not decoded again: the decoder expects the payload behind the
		 * head, and only the head was encoded. */
		return;
	tern_assert(tern_header_decode(encoded, head_bytes, &again, &why) == 0);
	tern_assert(again.type == h.type && again.seq == h.seq && again.key == h.key &&
		    again.bytes == h.bytes && again.status == h.status &&
		    again.shape.rank == h.shape.rank);
}

static void check_hello(const void *message, size_t bytes)
{
	_Alignas(8) unsigned char encoded[TERN_HELLO_MESSAGE_BYTES];
	struct tern_hello hello, again;

	if (tern_hello_decode(message, bytes, &hello) < 0)
		return;
	tern_assert(memchr(hello.name, 0, sizeof(hello.name)));
	tern_hello_encode(&hello, encoded);
	tern_assert(tern_hello_decode(encoded, sizeof(encoded), &again) == 0);
	tern_assert(again.token == hello.token && again.credit == hello.credit);
}

static struct tern_header header_of(struct fuzz *f)
{
	struct tern_header h = {.type = (uint8_t)fuzz_below(f, TERN_MSG_TYPE_COUNT),
		.flags = (uint16_t)fuzz_take(f, 1) & FUZZ_FLAGS,
		.status = (int16_t)fuzz_take(f, 2),
		.epoch = (uint32_t)fuzz_take(f, 1),
		.seq = (uint32_t)fuzz_take(f, 4),
		.key = fuzz_take(f, 2),
		.bytes = fuzz_take(f, 1 + fuzz_below(f, 8)),
		.src = (uint32_t)fuzz_take(f, 4),
		.dst = (uint32_t)fuzz_take(f, 4),
		.shape.dtype = (uint8_t)fuzz_below(f, TERN_DTYPE_COUNT),
		.shape.rank = (uint8_t)fuzz_below(f, TERN_RANK_MAX + 1)};

	for (unsigned i = 0; i < h.shape.rank; i++)
		h.shape.dims[i] = fuzz_take(f, 1 + fuzz_below(f, 8));
	return h;
}

/* Tests a message that the encoder has made, of which up to three bytes are then changed. */
static void check_nearly_right(struct fuzz *f)
{
	_Alignas(8) unsigned char message[TERN_HEAD_MAX + 256] = {0};
	struct tern_header h = header_of(f);
	size_t bytes = tern_header_encode(&h, message);

	for (unsigned i = fuzz_below(f, 4); i-- > 0;)
		message[fuzz_take(f, 2) % sizeof(message)] =
			(unsigned char)fuzz_take(f, 1);
	check_header(message, TERN_MIN(bytes + fuzz_below(f, 255), sizeof(message)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct fuzz f = {data, bytes};
	void *message = fuzz_copy(data, bytes);

	check_header(message, bytes);
	check_hello(message, bytes);
	free(message);
	check_nearly_right(&f);
	return 0;
}
