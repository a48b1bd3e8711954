/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of slabs (shared memory of their owner) that are created and freed. Here `b` owns
 * slabs and `a` reads them. `a` unmaps a slab when `b` frees it, when too many are mapped,
 * or when the system maps no more, but never while the slab is read. Afterwards no mapping or table entry of the
 * slab may be left at either end.
 */
#include "tests/transport/shm/shm_end.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define BYTES 8192u

/* Number of mappings of slabs in this process, of both ends together. */
static unsigned mapping_count(void)
{
	FILE *file = fopen("/proc/self/maps", "re");
	char line[512];
	unsigned count = 0;

	assert_non_null(file);
	while (fgets(line, sizeof(line), file))
		count += strstr(line, "tern-slab") != NULL;
	fclose(file);
	return count;
}

static unsigned descriptor_count(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned count = 0;

	assert_non_null(dir);
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static struct shm_conn *conn_of(struct end *end)
{
	return shm_conn_of(end->conns[0]);
}

static size_t offer_count(struct end *end)
{
	size_t count = 0;

	tern_list_for_each (node, &conn_of(end)->offers)
		count++;
	return count;
}

static void withdraw(struct end *end, const struct tern_region *region)
{
	assert_int_equal(end->port->ops->withdraw(end->port, NULL, region), 0);
}

static void get_all(struct duo *duo, struct tern_mem *source, struct tern_mem *target,
	const struct tern_region *region)
{
	struct work work = new_work();

	memset(target->base, 0, BYTES);
	assert_int_equal(start_get(duo->a.conns[0], &work, target, BYTES, region, 0), 0);
	UNTIL(&duo->a, &duo->b, work.status != 1);
	assert_int_equal(work.status, 0);
	assert_memory_equal(target->base, source->base, BYTES);
}

static const char *peek_at(struct duo *duo, const struct tern_region *region)
{
	const struct tern_fabric_ops *ops = duo->a.port->ops;
	struct work work = new_work();
	const void *seen = NULL;
	int status = ops->peek(duo->a.conns[0], &work.op, region, 0, BYTES, &seen);

	if (status == -EAGAIN) {
		UNTIL(&duo->a, &duo->b, work.status != 1);
		assert_int_equal(work.status, 0);
		status = ops->peek(duo->a.conns[0], &work.op, region, 0, BYTES, &seen);
	}
	if (status)
		assert_int_equal(status, -ENOTSUP);
	return status ? NULL : seen;
}

/* Creates and frees many more slabs than a conn may have mapped at a time. */
static void test_slabs_made_and_freed_leave_nothing(void **state)
{
	struct tern_mem *target;
	unsigned descriptors;
	struct duo duo;

	(void)state;
	duo_init(&duo, false);
	target = new_mem(&duo.a, false, BYTES);
	descriptors = descriptor_count();
	for (unsigned i = 0; i < 5000; i++) {
		struct tern_mem *slab = new_mem(&duo.b, true, BYTES);
		struct tern_region region = expose(duo.b.conns[0], slab, 0, BYTES);

		memset(slab->base, (int)i, BYTES);
		get_all(&duo, slab, target, &region);
		withdraw(&duo.b, &region);
		put_mem(slab, true);
		if (i % 500 == 0)
			assert_true(mapping_count() <= 3);
	}
	UNTIL(&duo.a, &duo.b, conn_of(&duo.a)->slab_count == 0);
	assert_int_equal(mapping_count(), 0);
	assert_int_equal(descriptor_count(), descriptors);
	assert_int_equal(offer_count(&duo.b), 0);
	put_mem(target, false);
	duo_fini(&duo);
}

static void test_a_slab_that_is_freed_stays_for_who_peeks_at_it(void **state)
{
	enum { COUNT = 5 };
	const char *seen[COUNT];
	struct duo duo;

	(void)state;
	duo_init(&duo, false);
	for (unsigned i = 0; i < COUNT; i++) {
		struct tern_mem *slab = new_mem(&duo.b, true, BYTES);
		struct tern_region region = expose(duo.b.conns[0], slab, 0, BYTES);

		fill(slab, i);
		seen[i] = peek_at(&duo, &region);
		/* A second peek at the same slab. */
		assert_ptr_equal(peek_at(&duo, &region), seen[i]);
		withdraw(&duo.b, &region);
		put_mem(slab, true);
	}
	UNTIL(&duo.a, &duo.b, conn_of(&duo.a)->slab_count == 0);
	assert_int_equal(mapping_count(), COUNT);
	for (unsigned i = 0; i < COUNT; i++) {
		struct tern_mem *same = new_mem(&duo.a, false, BYTES);

		fill(same, i);
		assert_memory_equal(seen[i], same->base, BYTES);
		duo.a.port->ops->unpeek(duo.a.port, seen[i]);
		assert_int_equal(mapping_count(), COUNT - i);
		duo.a.port->ops->unpeek(duo.a.port, seen[i]);
		assert_int_equal(mapping_count(), COUNT - i - 1);
		put_mem(same, false);
	}
	assert_int_equal(conn_of(&duo.a)->busy_count, 0);
	duo_fini(&duo);
}

/* The reading end may map only a limited number of slabs: gets from more slabs must wait
 * for each other. */
static void test_more_slabs_at_once_than_there_are_places(void **state)
{
	enum { COUNT = 40, PLACES = 6 };
	struct tern_mem *slabs[COUNT], *targets[COUNT];
	struct tern_region regions[COUNT];
	struct work works[COUNT];
	struct duo duo;
	unsigned started = 0, done = 0, refused = 0;

	(void)state;
	duo_init(&duo, false);
	shm_port_of(duo.a.port)->slab_max = PLACES;
	for (unsigned i = 0; i < COUNT; i++) {
		slabs[i] = new_mem(&duo.b, true, BYTES);
		targets[i] = new_mem(&duo.a, false, BYTES);
		fill(slabs[i], i);
		regions[i] = expose(duo.b.conns[0], slabs[i], 0, BYTES);
		works[i] = new_work();
	}
	while (done < COUNT) {
		unsigned writable = duo.a.writable_count;

		while (started < COUNT) {
			int status = start_get(duo.a.conns[0], &works[started],
				targets[started], BYTES, &regions[started], 0);

			if (status) {
				assert_int_equal(status, -EAGAIN);
				refused++;
				break;
			}
			started++;
		}
		if (started < COUNT)
			UNTIL(&duo.a, &duo.b, duo.a.writable_count > writable);
		else
			UNTIL(&duo.a, &duo.b, works[COUNT - 1].status == 0);
		done = 0;
		for (unsigned i = 0; i < COUNT; i++)
			done += works[i].status == 0;
		assert_true(conn_of(&duo.a)->slab_count <= PLACES);
		assert_true(mapping_count() <= COUNT + PLACES);
	}
	assert_true(refused > 0);
	for (unsigned i = 0; i < COUNT; i++) {
		assert_memory_equal(targets[i]->base, slabs[i]->base, BYTES);
		put_mem(slabs[i], true);
		put_mem(targets[i], false);
	}
	UNTIL(&duo.a, &duo.b, conn_of(&duo.a)->slab_count == 0);
	assert_int_equal(mapping_count(), 0);
	duo_fini(&duo);
}

/* A peek may last for ever, so some of the places for mapped slabs are reserved for
 * gets. */
static void test_peeks_leave_places_for_gets(void **state)
{
	enum { COUNT = 20, PLACES = 8 };
	struct tern_mem *slabs[COUNT], *target;
	struct tern_region regions[COUNT];
	const char *seen[COUNT];
	struct duo duo;

	(void)state;
	duo_init(&duo, false);
	shm_port_of(duo.a.port)->slab_max = PLACES;
	target = new_mem(&duo.a, false, BYTES);
	for (unsigned i = 0; i < COUNT; i++) {
		slabs[i] = new_mem(&duo.b, true, BYTES);
		fill(slabs[i], i);
		regions[i] = expose(duo.b.conns[0], slabs[i], 0, BYTES);
		seen[i] = peek_at(&duo, &regions[i]);
		assert_int_equal(seen[i] != NULL, i < PLACES / 2);
	}
	/* The slabs in use by a peek stay mapped while others are mapped and unmapped. */
	for (unsigned i = 0; i < 2 * COUNT; i++)
		get_all(&duo, slabs[i % COUNT], target, &regions[i % COUNT]);
	assert_int_equal(mapping_count(), COUNT + PLACES);
	for (unsigned i = 0; i < PLACES / 2; i++) {
		assert_memory_equal(seen[i], slabs[i]->base, BYTES);
		duo.a.port->ops->unpeek(duo.a.port, seen[i]);
	}
	seen[9] = peek_at(&duo, &regions[9]);
	assert_non_null(seen[9]);
	duo.a.port->ops->unpeek(duo.a.port, seen[9]);
	for (unsigned i = 0; i < COUNT; i++)
		put_mem(slabs[i], true);
	put_mem(target, false);
	duo_fini(&duo);
}

/* The owner keeps one entry for each slab, also if the reader has unmapped the slab and
 * asked for it again. So it sends GONE (the slab was freed) only once. */
static void test_owner_keeps_one_entry_however_often_it_is_asked(void **state)
{
	enum { COUNT = 4 };
	struct tern_mem *slabs[COUNT], *target;
	struct tern_region regions[COUNT];
	struct duo duo;

	(void)state;
	duo_init(&duo, false);
	shm_port_of(duo.a.port)->slab_max = 2;
	target = new_mem(&duo.a, false, BYTES);
	for (unsigned i = 0; i < COUNT; i++) {
		slabs[i] = new_mem(&duo.b, true, BYTES);
		regions[i] = expose(duo.b.conns[0], slabs[i], 0, BYTES);
	}
	for (unsigned i = 0; i < 100; i++)
		get_all(&duo, slabs[i % COUNT], target, &regions[i % COUNT]);
	assert_int_equal(offer_count(&duo.b), COUNT);
	for (unsigned i = 0; i < COUNT; i++)
		put_mem(slabs[i], true);
	UNTIL(&duo.a, &duo.b, !offer_count(&duo.b) && !conn_of(&duo.a)->slab_count);
	assert_int_equal(duo.a.closed_count + duo.b.closed_count, 0);
	put_mem(target, false);
	duo_fini(&duo);
}

/* The system refuses to map one more slab, although the conn may have more. The reader must
 * then unmap slabs that it does not read. */
static void test_a_process_without_room_gives_up_what_it_does_not_read(void **state)
{
	enum { COUNT = 6 };
	/* The slabs take address space and hardly any memory: only the first BYTES of each
	 * slab are touched. */
	const uint64_t large = 1ull << 30;
	struct tern_mem *slabs[COUNT], *target;
	struct tern_region regions[COUNT];
	struct rlimit old, tight;
	struct duo duo;
	unsigned long pages;
	FILE *file;

	(void)state;
	duo_init(&duo, false);
	target = new_mem(&duo.a, false, BYTES);
	for (unsigned i = 0; i < COUNT; i++) {
		slabs[i] = new_mem(&duo.b, true, large);
		fill(target, i);
		memcpy(slabs[i]->base, target->base, BYTES);
		regions[i] = expose(duo.b.conns[0], slabs[i], 0, BYTES);
	}
	file = fopen("/proc/self/statm", "re");
	assert_int_equal(fscanf(file, "%lu", &pages), 1);
	fclose(file);
	assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
	tight = (struct rlimit){.rlim_max = old.rlim_max,
		.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + large * 5 / 2};
	assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
	for (unsigned i = 0; i < 3 * COUNT; i++)
		get_all(&duo, slabs[i % COUNT], target, &regions[i % COUNT]);
	assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
	assert_in_range(conn_of(&duo.a)->slab_count, 1, 2);
	for (unsigned i = 0; i < COUNT; i++)
		put_mem(slabs[i], true);
	put_mem(target, false);
	duo_fini(&duo);
}

/* While a peer does not read its socket, messages about freed slabs (GONE) wait. The peer
 * must get each of them when it reads again. */
static void test_gone_waits_for_room_in_the_socket(void **state)
{
	enum { COUNT = 2000 };
	static struct tern_mem *slabs[COUNT];
	struct tern_mem *target;
	struct duo duo;

	(void)state;
	duo_init(&duo, false);
	target = new_mem(&duo.a, false, BYTES);
	for (unsigned i = 0; i < COUNT; i++) {
		struct tern_region region;

		slabs[i] = new_mem(&duo.b, true, BYTES);
		region = expose(duo.b.conns[0], slabs[i], 0, BYTES);
		get_all(&duo, slabs[i], target, &region);
		withdraw(&duo.b, &region);
	}
	assert_int_equal(conn_of(&duo.a)->slab_count, COUNT);
	for (unsigned i = 0; i < COUNT; i++)
		put_mem(slabs[i], true);
	end_poll(&duo.b);
	assert_true(conn_of(&duo.b)->gone_waits);
	assert_true(offer_count(&duo.b) > 0);
	UNTIL(&duo.a, &duo.b, !offer_count(&duo.b) && !conn_of(&duo.a)->slab_count);
	assert_int_equal(mapping_count(), 0);
	put_mem(target, false);
	duo_fini(&duo);
}

/* A peer asks for a slab, and then does not poll. The answer must wait until the socket
 * has space, like a GONE. */
static void test_an_answer_waits_for_room_in_the_socket(void **state)
{
	enum { COUNT = 2000 };
	static struct tern_mem *slabs[COUNT];
	struct tern_mem *late, *target;
	struct tern_region region;
	struct work work = new_work();
	struct duo duo;

	(void)state;
	duo_init(&duo, false);
	target = new_mem(&duo.a, false, BYTES);
	late = new_mem(&duo.b, true, BYTES);
	for (unsigned i = 0; i < COUNT; i++) {
		slabs[i] = new_mem(&duo.b, true, BYTES);
		region = expose(duo.b.conns[0], slabs[i], 0, BYTES);
		get_all(&duo, slabs[i], target, &region);
		withdraw(&duo.b, &region);
	}
	region = expose(duo.b.conns[0], late, 0, BYTES);
	assert_int_equal(start_get(duo.a.conns[0], &work, target, BYTES, &region, 0), 0);
	end_poll(&duo.a); /* asks for the slab, and does not poll again */
	for (unsigned i = 0; i < COUNT; i++)
		put_mem(slabs[i], true);
	UNTIL(&duo.b, NULL, conn_of(&duo.b)->owed_count == 1);
	UNTIL(&duo.a, &duo.b, work.status != 1);
	assert_int_equal(work.status, 0);
	assert_int_equal(duo.a.closed_count + duo.b.closed_count, 0);
	UNTIL(&duo.a, &duo.b, offer_count(&duo.b) == 1);
	put_mem(late, true);
	put_mem(target, false);
	duo_fini(&duo);
}

static void test_a_conn_that_dozes_hears_of_it_and_sleeps_on(void **state)
{
	struct tern_mem *slab, *target;
	struct tern_region region;
	struct duo duo;

	(void)state;
	duo_init(&duo, false);
	slab = new_mem(&duo.b, true, BYTES);
	target = new_mem(&duo.a, false, BYTES);
	region = expose(duo.b.conns[0], slab, 0, BYTES);
	get_all(&duo, slab, target, &region);
	withdraw(&duo.b, &region);
	shm_port_of(duo.b.port)->awake_count = 0;
	shm_port_of(duo.b.port)->doze_ns = 0;
	while (!conn_of(&duo.b)->dozing)
		if (duo.b.port->ops->arm(duo.b.port))
			end_poll(&duo.b);
	put_mem(slab, true);
	assert_int_equal(duo.b.port->ops->arm(duo.b.port), 0);
	assert_true(conn_of(&duo.b)->dozing);
	UNTIL(&duo.a, NONE, conn_of(&duo.a)->slab_count == 0);
	put_mem(target, false);
	duo_fini(&duo);
}

/* The message GONE (a slab was freed) has no effect if it names a slab that was never
 * passed or is unmapped, or if it is repeated. */
static void test_news_of_other_slabs_changes_nothing(void **state)
{
	struct shm_note note = {
		.magic = SHM_NOTE_MAGIC, .version = SHM_NOTE_VERSION, .type = SHM_GONE};
	struct tern_mem *slab, *target;
	struct tern_region region;
	struct duo duo;

	(void)state;
	duo_init(&duo, false);
	slab = new_mem(&duo.b, true, BYTES);
	target = new_mem(&duo.a, false, BYTES);
	region = expose(duo.b.conns[0], slab, 0, BYTES);
	for (unsigned i = 0; i < 3; i++) {
		get_all(&duo, slab, target, &region);
		for (uint32_t id = slab->id - 1; id <= slab->id + 1; id++) {
			note.mem_id = id;
			assert_int_equal(
				shm_note_send(conn_of(&duo.b)->fd, &note, -1), 0);
		}
		UNTIL(&duo.a, &duo.b, !conn_of(&duo.a)->slab_count);
	}
	assert_int_equal(duo.a.closed_count + duo.b.closed_count, 0);
	put_mem(slab, true);
	put_mem(target, false);
	duo_fini(&duo);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_slabs_made_and_freed_leave_nothing),
		cmocka_unit_test(test_a_slab_that_is_freed_stays_for_who_peeks_at_it),
		cmocka_unit_test(test_more_slabs_at_once_than_there_are_places),
		cmocka_unit_test(test_peeks_leave_places_for_gets),
		cmocka_unit_test(test_owner_keeps_one_entry_however_often_it_is_asked),
		cmocka_unit_test(
			test_a_process_without_room_gives_up_what_it_does_not_read),
		cmocka_unit_test(test_gone_waits_for_room_in_the_socket),
		cmocka_unit_test(test_an_answer_waits_for_room_in_the_socket),
		cmocka_unit_test(test_a_conn_that_dozes_hears_of_it_and_sleeps_on),
		cmocka_unit_test(test_news_of_other_slabs_changes_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
