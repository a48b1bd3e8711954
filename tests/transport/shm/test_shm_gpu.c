/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of GPU memory between two ports of the shm fabric: when the reading end opens the
 * memory's handle, when it does not, when it closes the handle, and what happens to a
 * peer that sends wrong data. The driver is simulated. Unlike a real one, it lets the
 * process that made a handle also open it, if the test sets ipc_self. At the end of each
 * test no object of the driver may be open.
 */
#include "tests/transport/shm/shm_end.h"

#include "tests/fakes/cuda/fake_cuda.h"

#define BYTES 10000u

/* Two connected ports: `a` owns GPU memory, `b` reads it. */
struct rig {
	struct duo duo;
	/* `mem`: memory of a. `other`: memory of b, which b has so that it uses the device;
	 * or NULL. */
	struct tern_mem *mem, *other;
	struct tern_conn *a, *b;
};

static struct tern_mem *device_mem(struct end *end)
{
	struct tern_gpu *gpu;
	struct tern_mem *mem;

	assert_int_equal(tern_gpu_by_number(end->domain, 0, &gpu), 0);
	assert_int_equal(tern_mem_new_cuda_slab(end->domain, gpu, BYTES, &mem), 0);
	return mem;
}

static void rig_open_at(struct rig *rig, bool ipc_self, bool reader_uses_gpu)
{
	struct fake_cuda_opts opts = fake_cuda_defaults();

	opts.ipc_self = cuda_ipc_self = ipc_self;
	fake_cuda_reset(&opts);
	cuda_api = fake_cuda_api();
	duo_init(&rig->duo, false);
	rig->a = rig->duo.a.conns[0];
	rig->b = rig->duo.b.conns[0];
	rig->mem = device_mem(&rig->duo.a);
	rig->other = reader_uses_gpu ? device_mem(&rig->duo.b) : NULL;
}

static void rig_open(struct rig *rig)
{
	rig_open_at(rig, true, true);
}

static void rig_close(struct rig *rig)
{
	tern_mem_put(rig->mem);
	tern_mem_put(rig->other);
	duo_fini(&rig->duo);
	fake_cuda_reset(NULL);
	cuda_api = NULL;
}

/* Frees the memory and allocates as much again, which gets the same address. */
static void renew_mem(struct rig *rig)
{
	uint64_t at = rig->mem->address;

	tern_mem_put(rig->mem);
	rig->mem = device_mem(&rig->duo.a);
	assert_int_equal(rig->mem->address, at);
}

static int offer(struct rig *rig)
{
	return rig->a->port->ops->offer(rig->a, rig->mem);
}

/* Offers the memory to the peer. If that returns -EAGAIN, waits for `writable` and offers
 * it once more. Returns the last status. */
static int offer_to_the_end(struct rig *rig)
{
	unsigned before = rig->duo.a.writable_count;
	int r = offer(rig);

	if (r != -EAGAIN)
		return r;
	UNTIL(&rig->duo.a, &rig->duo.b, rig->duo.a.writable_count > before);
	return offer(rig);
}

static int borrow(struct rig *rig, const struct tern_region *region, uint64_t offset,
	uint64_t bytes, struct tern_loan *loan)
{
	return rig->b->port->ops->borrow(rig->b, region, offset, bytes, loan);
}

static int repay(struct rig *rig, struct tern_loan *loan)
{
	return rig->duo.b.port->ops->repay(loan);
}

static unsigned open_count(void)
{
	return fake_cuda_live().opened_mems;
}

static void settle(struct rig *rig)
{
	uint64_t until_ms = now_ms() + 5;

	while (now_ms() < until_ms) {
		end_poll(&rig->duo.a);
		end_poll(&rig->duo.b);
	}
}

static void test_what_the_reader_took_it_reads(void **state)
{
	struct tern_loan loan;
	struct tern_region region;
	struct rig rig;

	(void)state;
	rig_open(&rig);
	assert_int_equal(rig.a->port->ops->expose(
				 rig.a, rig.mem, 0, 100, TERN_ACCESS_READ, &region),
		-ENOTSUP); /* refused, since the memory was not offered before */
	assert_int_equal(offer_to_the_end(&rig), 0);
	assert_int_equal(open_count(), 1);
	region = expose(rig.a, rig.mem, 1000, 500);
	assert_int_equal(borrow(&rig, &region, 100, 400, &loan), 0);
	assert_non_null(loan.gpu);
	assert_int_equal(loan.address % 4096, (rig.mem->address + 1100) % 4096);
	assert_int_equal(repay(&rig, &loan), 0);
	assert_null(loan.gpu);
	/* Offered a second time: it is known already, and opened only once. */
	assert_int_equal(offer(&rig), 0);
	assert_int_equal(open_count(), 1);
	rig.a->port->ops->withdraw(rig.a->port, NULL, &region);
	rig_close(&rig);
}

static void test_memory_that_goes_is_closed(void **state)
{
	struct rig rig;

	(void)state;
	rig_open(&rig);
	assert_int_equal(offer_to_the_end(&rig), 0);
	assert_int_equal(open_count(), 1);
	tern_mem_put(rig.mem);
	rig.mem = NULL;
	UNTIL(&rig.duo.a, &rig.duo.b, open_count() == 0);
	rig_close(&rig);
}

static void test_what_had_the_same_addresses_is_closed_first(void **state)
{
	struct rig rig;

	(void)state;
	rig_open(&rig);
	for (unsigned i = 0; i < 5; i++) {
		assert_int_equal(offer_to_the_end(&rig), 0);
		assert_int_equal(open_count(), 1);
		renew_mem(&rig);
	}
	rig_close(&rig);
}

/* Two owners, ends of one process, have a conn each to the reading end. The first one has
 * freed memory, but has not reported that yet (GONE). The second one has allocated memory
 * at the same address. The reader must not take it for the freed memory: it is opened only
 * when it is offered again after the GONE. */
static void test_what_another_conn_still_has_open_is_offered_anew(void **state)
{
	struct tern_mem *same;
	struct tern_conn *second;
	struct end other;
	struct rig rig;
	uint64_t at;

	(void)state;
	rig_open(&rig);
	end_init(&other, false);
	end_connect(&other, rig.duo.b.port->ops->lsn_address(rig.duo.b.lsn));
	UNTIL(&other, &rig.duo.b, other.conn_count && rig.duo.b.conn_count == 2);
	second = other.conns[0];
	assert_int_equal(offer_to_the_end(&rig), 0);
	at = rig.mem->address;
	tern_mem_put(rig.mem);
	rig.mem = NULL;
	same = device_mem(&other);
	assert_int_equal(same->address, at);
	assert_int_equal(second->port->ops->offer(second, same), -EAGAIN);
	UNTIL(&other, &rig.duo.b, second->port->ops->offer(second, same) == -ENOTSUP);
	assert_int_equal(fake_cuda_calls("ipc_open_mem_handle"), 2);
	assert_int_equal(open_count(), 1);
	end_poll(&rig.duo.a);
	UNTIL(&other, &rig.duo.b, second->port->ops->offer(second, same) == 0);
	assert_int_equal(fake_cuda_calls("ipc_open_mem_handle"), 3);
	assert_int_equal(open_count(), 1);
	tern_mem_put(same);
	end_fini(&other);
	rig_close(&rig);
}

static void test_own_memory_is_reached_by_its_address(void **state)
{
	struct tern_region region;
	struct tern_loan loan;
	struct rig rig;

	(void)state;
	rig_open_at(&rig, false, true);
	assert_int_equal(offer_to_the_end(&rig), 0);
	assert_int_equal(open_count(), 0);
	/* The reading end does not ask the driver, which would refuse a handle of its own
	 * process. */
	assert_int_equal(fake_cuda_calls("ipc_open_mem_handle"), 0);
	region = expose(rig.a, rig.mem, 8, 100);
	assert_int_equal(borrow(&rig, &region, 0, 100, &loan), 0);
	assert_int_equal(loan.address, rig.mem->address + 8);
	assert_int_equal(repay(&rig, &loan), 0);
	rig_close(&rig);
}

static void test_a_reader_without_a_device_takes_it_once_it_has_one(void **state)
{
	struct rig rig;

	(void)state;
	rig_open_at(&rig, true, false);
	assert_int_equal(offer_to_the_end(&rig), -ENOTSUP);
	settle(&rig);
	/* Refused, and not offered to the peer again. */
	assert_int_equal(offer(&rig), -ENOTSUP);
	rig.other = device_mem(&rig.duo.b);
	settle(&rig);
	assert_int_equal(offer_to_the_end(&rig), 0);
	rig_close(&rig);
}

static void test_memory_without_a_handle_is_not_offered(void **state)
{
	struct rig rig;

	(void)state;
	rig_open(&rig);
	tern_mem_put(rig.mem);
	fake_cuda_fail("ipc_get_mem_handle", 1, CUDA_ERROR_INVALID_VALUE);
	rig.mem = device_mem(&rig.duo.a);
	assert_int_equal(offer(&rig), -ENOTSUP);
	rig_close(&rig);
}

static void test_what_was_copied_when_the_peer_had_closed_is_torn(void **state)
{
	struct tern_region region;
	struct tern_loan loans[2];
	struct rig rig;

	(void)state;
	rig_open(&rig);
	assert_int_equal(offer_to_the_end(&rig), 0);
	region = expose(rig.a, rig.mem, 0, BYTES);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(borrow(&rig, &region, 0, BYTES, &loans[i]), 0);
	rig.a->port->ops->conn_close(rig.a, false);
	UNTIL(&rig.duo.a, NONE, rig.duo.a.closed_count);
	assert_int_equal(repay(&rig, &loans[0]), -ECONNRESET);
	UNTIL(&rig.duo.b, NONE, rig.duo.b.closed_count);
	/* A copy may still use the second loan (permission to read the memory). */
	assert_int_equal(open_count(), 1);
	assert_int_equal(repay(&rig, &loans[1]), -ECONNRESET);
	assert_int_equal(open_count(), 0);
	rig_close(&rig);
}

/* ---- peers that send wrong data ---- */

static struct shm_note raw_offer(uint32_t mem_id)
{
	return (struct shm_note){.magic = SHM_NOTE_MAGIC,
		.version = SHM_NOTE_VERSION,
		.type = SHM_OFFER,
		.mem_id = mem_id};
}

static void say_offer(
	struct rig *rig, uint32_t mem_id, const struct tern_ipc_handle *handle)
{
	const struct shm_note note = raw_offer(mem_id);

	assert_int_equal(shm_offer_send(shm_conn_of(rig->a)->fd, &note, handle), 0);
}

static uint32_t views(struct rig *rig)
{
	return rig->b->lent_count;
}

static void test_handles_that_are_not_what_they_say_are_refused(void **state)
{
	struct tern_ipc_handle good, bad;
	struct rig rig;

	(void)state;
	rig_open(&rig);
	assert_int_equal(
		tern_ipc_export(rig.mem->gpu, rig.mem->address, BYTES, &good), 0);
	good.address = 0;
	bad = good;
	memset(bad.allocation, 0x77, sizeof(bad.allocation));
	say_offer(&rig, 1000, &bad);
	bad = good;
	bad.bytes = BYTES + 1;
	say_offer(&rig, 1001, &bad);
	bad = good;
	bad.offset = UINT64_MAX - 5;
	say_offer(&rig, 1002, &bad);
	bad = good;
	bad.offset = 1;
	say_offer(&rig, 1003, &bad);
	bad = good;
	bad.bytes = 0;
	say_offer(&rig, 1004, &bad);
	settle(&rig);
	assert_int_equal(views(&rig), 0);
	assert_int_equal(open_count(), 0);
	say_offer(&rig, 1005, &good);
	settle(&rig);
	assert_int_equal(views(&rig), 1);
	assert_int_equal(rig.duo.b.closed_count, 0);
	rig_close(&rig);
}

static void test_the_same_memory_twice_cuts_the_conn(void **state)
{
	struct tern_ipc_handle handle;
	struct rig rig;

	(void)state;
	rig_open(&rig);
	assert_int_equal(
		tern_ipc_export(rig.mem->gpu, rig.mem->address, BYTES, &handle), 0);
	say_offer(&rig, 1000, &handle);
	say_offer(&rig, 1000, &handle);
	UNTIL(&rig.duo.b, NONE, rig.duo.b.closed_count);
	assert_int_equal(rig.duo.b.closed_status, -EPROTO);
	assert_int_equal(open_count(), 0);
	rig_close(&rig);
}

/* Checks that a region changed by `spoil` ends the conn, in get() (`by_get`) or in
 * borrow(). */
static void check_that_region_cuts(void (*spoil)(struct shm_region *region), bool by_get)
{
	struct tern_mem *room;
	struct work work = new_work();
	struct tern_region wire;
	struct shm_region region;
	struct tern_loan loan;
	struct rig rig;

	rig_open(&rig);
	assert_int_equal(offer_to_the_end(&rig), 0);
	wire = expose(rig.a, rig.mem, 0, BYTES);
	memcpy(&region, &wire, sizeof(region));
	spoil(&region);
	memcpy(&wire, &region, sizeof(region));
	room = new_mem(&rig.duo.b, true, BYTES);
	if (by_get)
		assert_int_equal(start_get(rig.b, &work, room, 100, &wire, 0), -ENOTCONN);
	else
		assert_int_equal(borrow(&rig, &wire, 0, 100, &loan), -ENOTCONN);
	UNTIL(&rig.duo.b, NONE, rig.duo.b.closed_count);
	assert_int_equal(rig.duo.b.closed_status, -EPROTO);
	assert_int_equal(open_count(), 0);
	put_mem(room, true);
	rig_close(&rig);
}

static void of_other_memory(struct shm_region *region)
{
	region->mem_id += 1000;
}

static void too_long(struct shm_region *region)
{
	region->bytes++;
}

static void too_far(struct shm_region *region)
{
	region->start = 1;
}

static void not_spoilt(struct shm_region *region)
{
	(void)region;
}

static void test_regions_that_were_not_lent_cut_the_conn(void **state)
{
	(void)state;
	check_that_region_cuts(of_other_memory, false);
	check_that_region_cuts(too_long, false);
	check_that_region_cuts(too_far, false);
	check_that_region_cuts(not_spoilt, true);
}

static void test_taking_away_what_is_read_cuts_the_conn(void **state)
{
	struct shm_note note;
	struct tern_region region;
	struct tern_loan loan;
	struct rig rig;

	(void)state;
	rig_open(&rig);
	assert_int_equal(offer_to_the_end(&rig), 0);
	region = expose(rig.a, rig.mem, 0, BYTES);
	assert_int_equal(borrow(&rig, &region, 0, BYTES, &loan), 0);
	note = raw_offer(rig.mem->id);
	note.type = SHM_GONE;
	assert_int_equal(shm_note_send(shm_conn_of(rig.a)->fd, &note, -1), 0);
	UNTIL(&rig.duo.b, NONE, rig.duo.b.closed_count);
	assert_int_equal(rig.duo.b.closed_status, -EPROTO);
	assert_int_equal(open_count(), 1);
	assert_int_equal(repay(&rig, &loan), -ECONNRESET);
	assert_int_equal(open_count(), 0);
	rig_close(&rig);
}

static void test_answers_that_nobody_asked_for_change_nothing(void **state)
{
	struct shm_note note = raw_offer(77);
	struct rig rig;

	(void)state;
	rig_open(&rig);
	note.type = SHM_TAKEN;
	assert_int_equal(shm_note_send(shm_conn_of(rig.b)->fd, &note, -1), 0);
	note.type = SHM_GONE;
	assert_int_equal(shm_note_send(shm_conn_of(rig.b)->fd, &note, -1), 0);
	note.type = SHM_AGAIN;
	assert_int_equal(shm_note_send(shm_conn_of(rig.b)->fd, &note, -1), 0);
	settle(&rig);
	assert_int_equal(rig.duo.a.closed_count, 0);
	assert_int_equal(offer_to_the_end(&rig), 0);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_the_reader_took_it_reads),
		cmocka_unit_test(test_memory_that_goes_is_closed),
		cmocka_unit_test(test_what_had_the_same_addresses_is_closed_first),
		cmocka_unit_test(test_what_another_conn_still_has_open_is_offered_anew),
		cmocka_unit_test(test_own_memory_is_reached_by_its_address),
		cmocka_unit_test(test_a_reader_without_a_device_takes_it_once_it_has_one),
		cmocka_unit_test(test_memory_without_a_handle_is_not_offered),
		cmocka_unit_test(test_what_was_copied_when_the_peer_had_closed_is_torn),
		cmocka_unit_test(test_handles_that_are_not_what_they_say_are_refused),
		cmocka_unit_test(test_the_same_memory_twice_cuts_the_conn),
		cmocka_unit_test(test_regions_that_were_not_lent_cut_the_conn),
		cmocka_unit_test(test_taking_away_what_is_read_cuts_the_conn),
		cmocka_unit_test(test_answers_that_nobody_asked_for_change_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
