/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reuse URL [ROUNDS [SEED]]: two processes put into windows of this one without a pause.
 * In each round this one closes a window, uses its memory for something else, and makes a
 * new window at the same address. In some rounds a putting process is killed or stopped
 * in the middle, or has its connection cut because it has not left the window in time.
 * "no-cma:" before the URL: the putting processes do not write to this one's memory
 * themselves. For "shm://" the test chooses a name.
 *
 * The memory of a window that was closed is mapped anew, or made inaccessible, or given
 * back to its pool, as soon as tern_window_close() has ended. From then on its bytes must
 * not change; a put into inaccessible memory ends with -EACCES, which no putting process
 * accepts. The puts that ended with 0 must have been in the window.
 *
 * Exit code 0: success.
 */
#include "tests/system/storm/reuse.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

struct area {
	struct owner *owner;
	char *base; /* mapped by this test; NULL: the memory is the pool's */
	struct tern_pool *pool;
	struct tern_mem *mem;
	struct tern_buf buf;
	struct tern_window *window;
	uint32_t generation;
	struct tern_req close;
	bool closed, inaccessible;
	/* The window's bytes when it had ended, unless `imaged` is false. */
	uint64_t *image;
	bool imaged;
};

struct owner {
	struct reuse_board *board;
	int board_fd;
	struct tern_domain *domain;
	struct tern_context *ctx;
	struct tern_listener *listener;
	struct area areas[REUSE_AREAS];
	pid_t pids[REUSE_PUTTERS];
	struct tern_rng rng;
	unsigned peer_count, round;
	unsigned killed_count, stopped_count, timeout_count;
	struct reuse_growth growth;
};

static _Noreturn void fail(const struct owner *o, const char *what, int status)
{
	fprintf(stderr, "reuse: round %u\n", o->round);
	reuse_fail("owner", what, status);
}

static void require(const struct owner *o, int status, const char *what)
{
	if (status < 0)
		fail(o, what, status);
}

/* ---- processes ---- */

static void start_putter(struct owner *o, unsigned slot)
{
	char number[16], fd[16];

	snprintf(number, sizeof(number), "%u", slot);
	snprintf(fd, sizeof(fd), "%d", o->board_fd);
	o->pids[slot] = fork();
	require(o, o->pids[slot] < 0 ? -errno : 0, "fork");
	if (o->pids[slot] > 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	execl("/proc/self/exe", "reuse", "--putter", number, fd, NULL);
	_exit(127);
}

/* A putting process that finds an error exits, and has printed why. */
static void check_putters(struct owner *o)
{
	for (unsigned i = 0; i < REUSE_PUTTERS; i++)
		if (o->pids[i] && waitpid(o->pids[i], NULL, WNOHANG) != 0)
			fail(o, "a putting process has ended", -ECHILD);
}

static void kill_putter(struct owner *o, unsigned slot)
{
	pid_t pid = o->pids[slot];

	o->pids[slot] = 0;
	kill(pid, SIGKILL);
	if (waitpid(pid, NULL, 0) != pid)
		fail(o, "waitpid", -errno);
	o->killed_count++;
}

static void stop_putter(struct owner *o, unsigned slot)
{
	int status = 0;

	kill(o->pids[slot], SIGSTOP);
	if (waitpid(o->pids[slot], &status, WUNTRACED) != o->pids[slot] ||
		!WIFSTOPPED(status))
		fail(o, "a process cannot be stopped", -ECHILD);
	o->stopped_count++;
}

static void progress(struct owner *o)
{
	int r = tern_progress(o->ctx);

	require(o, r, "tern_progress");
	if (r == 0)
		sched_yield();
	check_putters(o);
}

#define PROGRESS_UNTIL(o, cond, what)                                                    \
	do {                                                                             \
		uint64_t until_ns_ = tern_clock_ns() + REUSE_HANG_NS;                    \
		while (!(cond)) {                                                        \
			progress(o);                                                     \
			if (tern_clock_ns() > until_ns_)                                 \
				fail(o, what, -ETIMEDOUT);                               \
		}                                                                        \
	} while (0)

/* Lets the putting processes put for a random time. */
static void go_on(struct owner *o, uint64_t most_ns)
{
	uint64_t until_ns = tern_clock_ns() + tern_rng_below(&o->rng, most_ns);

	while (tern_clock_ns() < until_ns)
		progress(o);
}

/* ---- peers ---- */

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct owner *o = arg;

	(void)status;
	if (event != TERN_PEER_DOWN)
		return;
	o->peer_count--;
	tern_peer_free(peer);
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct owner *o = arg;

	(void)peer;
	o->peer_count++;
}

/* ---- the memory of windows ---- */

static bool is_zero(const struct area *area)
{
	const uint64_t *words = tern_buf_ptr(&area->buf);

	for (uint64_t i = 0; i < REUSE_AREA_BYTES / 8; i++)
		if (words[i])
			return false;
	return true;
}

static void *map_at(const struct owner *o, void *address, int protection)
{
	void *base = mmap(address, REUSE_AREA_BYTES, protection,
		MAP_PRIVATE | MAP_ANONYMOUS | (address ? MAP_FIXED : 0), -1, 0);

	if (base == MAP_FAILED)
		fail(o, "mmap", -errno);
	return base;
}

static void take_memory(struct area *area)
{
	struct owner *o = area->owner;
	const struct tern_pool_opts opts = {
		.slab_bytes = REUSE_AREA_BYTES, .max_bytes = 4 * REUSE_AREA_BYTES};

	if (area->base) {
		require(o,
			tern_mem_wrap(
				o->domain, area->base, REUSE_AREA_BYTES, &area->mem),
			"tern_mem_wrap");
		area->buf = (struct tern_buf){area->mem, 0, REUSE_AREA_BYTES};
		return;
	}
	if (!area->pool)
		require(o, tern_pool_new(o->domain, &opts, &area->pool), "tern_pool_new");
	require(o, tern_pool_get(area->pool, REUSE_AREA_BYTES, &area->buf),
		"tern_pool_get");
}

static void give_memory(struct area *area, bool pool_too)
{
	if (area->base)
		tern_mem_put(area->mem);
	else
		tern_pool_put(area->pool, &area->buf);
	if (!area->base && pool_too)
		tern_pool_free(TERN_TAKE(area->pool));
}

/* Moves the pages away, so that the address is free for others at once. */
static void move_pages(struct area *area)
{
	if (mremap(area->base, REUSE_AREA_BYTES, REUSE_AREA_BYTES,
		    MREMAP_MAYMOVE | MREMAP_FIXED, area->image) == MAP_FAILED)
		fail(area->owner, "mremap", -errno);
}

/* Is called when the window has just ended: what is written too late shows only if the
 * memory has its new use by then. */
static void use_again(struct area *area)
{
	struct owner *o = area->owner;
	uint64_t way = tern_rng_below(&o->rng, 4);

	area->imaged = area->base || way == 0;
	area->inaccessible = area->base && way < 2;
	if (area->base) {
		give_memory(area, false);
		move_pages(area);
		map_at(o, area->base,
			area->inaccessible ? PROT_NONE : PROT_READ | PROT_WRITE);
		return;
	}
	if (area->imaged)
		memcpy(area->image, tern_buf_ptr(&area->buf), REUSE_AREA_BYTES);
	if (way >= 2) {
		give_memory(area, way == 3);
		take_memory(area);
	}
	memset(tern_buf_ptr(&area->buf), 0, REUSE_AREA_BYTES);
}

/* Checks that nobody has written since use_again(), and takes the memory for a window. */
static void check_reuse(struct area *area)
{
	if (area->inaccessible)
		map_at(area->owner, area->base, PROT_READ | PROT_WRITE);
	if (area->base)
		take_memory(area);
	if (!is_zero(area))
		fail(area->owner, "memory has changed after the end of its window", -EIO);
}

/* ---- windows ---- */

static void open_window(struct area *area)
{
	struct owner *o = area->owner;
	unsigned a = (unsigned)(area - o->areas);

	for (unsigned i = 0; i < REUSE_PUTTERS; i++)
		memset(o->board->putters[i].cells[a], 0,
			sizeof(o->board->putters[i].cells[a]));
	require(o, tern_window_new(o->ctx, &area->buf, TERN_WINDOW_WRITE, &area->window),
		"tern_window_new");
	tern_window_describe(area->window, &o->board->areas[a].desc);
	atomic_store(&o->board->areas[a].generation, ++area->generation);
}

static void on_closed(struct tern_req *req)
{
	struct area *area = req->arg;

	if (req->status || area->closed)
		fail(area->owner, "the end of a window", req->status);
	area->closed = true;
	use_again(area);
}

static void close_window(struct area *area, uint64_t timeout_ns)
{
	area->closed = false;
	area->close.done = on_closed;
	area->close.arg = area;
	require(area->owner, tern_window_close(area->window, &area->close, timeout_ns),
		"tern_window_close");
}

static bool is_used(const struct area *area)
{
	const struct owner *o = area->owner;
	unsigned a = (unsigned)(area - o->areas);

	for (unsigned i = 0; i < REUSE_PUTTERS; i++)
		if (reuse_uses(i, a) &&
			!atomic_load(&o->board->putters[i].cells[a][0].landed))
			return false;
	return true;
}

static bool is_left(const struct area *area)
{
	const struct owner *o = area->owner;
	unsigned a = (unsigned)(area - o->areas);

	for (unsigned i = 0; i < REUSE_PUTTERS; i++)
		if (reuse_uses(i, a) &&
			atomic_load(&o->board->putters[i].left[a]) != area->generation)
			return false;
	return true;
}

/* A cell of an area's image, and the puts that may be in it. */
struct view {
	const struct area *area;
	unsigned putter, cell;
	uint64_t first, last;
};

/* Word i of a cell after this put; put 0 is what was there before. */
static uint64_t word_of(const struct view *v, uint64_t put, uint64_t i)
{
	unsigned a = (unsigned)(v->area - v->area->owner->areas);

	return put ? reuse_word(v->area->generation, a, v->putter, v->cell, put) + i : 0;
}

/* A connection may be lost in the middle of a word. */
static bool is_torn(const struct view *v, uint64_t word, uint64_t i)
{
	uint64_t unknown = UINT64_MAX;

	for (uint64_t put = v->first; put <= v->last; put++) {
		uint64_t differ = word ^ word_of(v, put, i);

		for (unsigned bit = 0; bit < 64; bit += 8)
			if (!(differ >> bit & 0xff))
				unknown &= ~(0xffull << bit);
	}
	return !unknown;
}

static void check_word(const struct view *v, uint64_t word, uint64_t i, bool inside)
{
	if (inside ? is_torn(v, word, i) : word == 0)
		return;
	fprintf(stderr,
		"reuse: word %llu of cell %u of putter %u is not of a put from %llu to "
		"%llu\n",
		(unsigned long long)i, v->cell, v->putter, (unsigned long long)v->first,
		(unsigned long long)v->last);
	fail(v->area->owner, "a window without the puts that had ended", -EIO);
}

static void check_cell(const struct area *area, unsigned putter, unsigned cell)
{
	const struct reuse_count *count =
		&area->owner->board->putters[putter]
			 .cells[area - area->owner->areas][cell];
	const struct view v = {.area = area,
		.putter = putter,
		.cell = cell,
		.first = atomic_load(&count->landed),
		.last = atomic_load(&count->started)};
	const uint64_t *words = area->image + reuse_cell_offset(putter, cell) / 8;
	uint64_t at = 0, end = reuse_cell_bytes(cell) / 8;

	while (at < end) {
		for (uint64_t put = v.first; put <= v.last; put++) {
			uint64_t step = put ? 1 : 0, word = word_of(&v, put, 0);

			while (at < end && words[at] == word + at * step)
				at++;
		}
		if (at < end) {
			check_word(&v, words[at], at, true);
			at++;
		}
	}
	for (; at < REUSE_STRIDE / 8; at++)
		check_word(&v, words[at], at, false);
}

/* ---- a round ---- */

/* Closes the window of an area that is in use. Returns the putter that is left stopped;
 * REUSE_PUTTERS: none. */
static unsigned close_somehow(struct area *area)
{
	struct owner *o = area->owner;
	unsigned slot = (unsigned)tern_rng_below(&o->rng, REUSE_PUTTERS);
	uint64_t way = tern_rng_below(&o->rng, 12);
	bool kills = way == 4 || way == 5, stops = way >= 6, cuts = way % 2;

	if (way == 6 || way == 7)
		stop_putter(o, slot);
	o->timeout_count += cuts;
	close_window(area, cuts ? 1 : TERN_NEVER);
	if (way >= 8) {
		go_on(o, 200 * TERN_NS_PER_US);
		stop_putter(o, slot);
	}
	if (kills) {
		go_on(o, 200 * TERN_NS_PER_US);
		kill_putter(o, slot);
	}
	/* A stopped process does not leave a window, and one that is stopped in a put is
	 * waited for also after its connection was cut. */
	if (stops) {
		uint64_t until_ns = tern_clock_ns() + 10 * TERN_NS_PER_MS;

		while (!area->closed && tern_clock_ns() < until_ns)
			progress(o);
		if (area->closed)
			return slot;
		kill(o->pids[slot], SIGCONT);
	}
	PROGRESS_UNTIL(o, area->closed, "a window that does not end");
	return REUSE_PUTTERS;
}

static void round_of(struct owner *o, struct area *area)
{
	unsigned stopped;

	PROGRESS_UNTIL(o, is_used(area), "puts that do not land");
	go_on(o, 2 * TERN_NS_PER_MS);
	stopped = close_somehow(area);
	go_on(o, TERN_NS_PER_MS);
	if (stopped < REUSE_PUTTERS)
		kill(o->pids[stopped], SIGCONT);
	for (unsigned i = 0; i < REUSE_PUTTERS; i++)
		if (!o->pids[i])
			start_putter(o, i);
	PROGRESS_UNTIL(o, is_left(area), "a process that does not leave a window");
	check_reuse(area);
	for (unsigned i = 0; area->imaged && i < REUSE_PUTTERS * REUSE_CELLS; i++)
		check_cell(area, i / REUSE_CELLS, i % REUSE_CELLS);
	open_window(area);
	PROGRESS_UNTIL(o, o->peer_count == REUSE_PUTTERS, "a peer that does not return");
	reuse_measure(&o->growth, o->round < 10);
}

/* ---- beginning and end ---- */

static void begin(struct owner *o, const char *url)
{
	const struct tern_domain_opts domain_opts = {.no_cma = o->board->no_cma};
	const struct tern_context_opts opts = REUSE_CONTEXT;
	const struct tern_peer_opts peer_opts = {.event = on_event, .arg = o};

#ifdef PR_SET_PTRACER
	/* Where Yama allows a process to write to its children only. */
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
#endif
	require(o, tern_domain_new(&domain_opts, &o->domain), "tern_domain_new");
	require(o, tern_context_new(o->domain, &opts, &o->ctx), "tern_context_new");
	require(o, tern_listen(o->ctx, url, &peer_opts, on_accept, o, &o->listener), url);
	snprintf(o->board->address, sizeof(o->board->address), "%s",
		tern_listener_address(o->listener));
	for (unsigned a = 0; a < REUSE_AREAS; a++) {
		struct area *area = &o->areas[a];

		area->owner = o;
		area->image = map_at(o, NULL, PROT_READ | PROT_WRITE);
		if (a % 2 == 0)
			area->base = map_at(o, NULL, PROT_READ | PROT_WRITE);
		else /* resident before the growth is measured */
			memset(area->image, 1, REUSE_AREA_BYTES);
		take_memory(area);
		memset(tern_buf_ptr(&area->buf), 0, REUSE_AREA_BYTES);
		open_window(area);
	}
	for (unsigned i = 0; i < REUSE_PUTTERS; i++)
		start_putter(o, i);
}

static void end(struct owner *o)
{
	atomic_store(&o->board->over, true);
	for (unsigned i = 0; i < REUSE_PUTTERS; i++) {
		int status = 0;

		while (waitpid(o->pids[i], &status, WNOHANG) == 0)
			require(o, tern_progress(o->ctx), "tern_progress");
		if (status)
			fail(o, "a putting process has failed at its end", -ECHILD);
	}
	tern_listener_free(o->listener);
	tern_context_free(o->ctx);
	for (unsigned a = 0; a < REUSE_AREAS; a++)
		give_memory(&o->areas[a], true);
	tern_domain_free(o->domain);
}

static void tell(const struct owner *o)
{
	unsigned long long landed = 0, stale = 0, lost = 0;
	unsigned sessions = 0;

	for (unsigned i = 0; i < REUSE_PUTTERS; i++) {
		landed += o->board->putters[i].landed_count;
		stale += o->board->putters[i].stale_count;
		lost += o->board->putters[i].lost_count;
		sessions += o->board->putters[i].session_count;
	}
	printf("reuse: %u windows, %llu puts (made by %s), %llu ended with their window, "
	       "%llu with their session; %u sessions; %u processes killed, %u stopped, "
	       "%u cut\n",
		o->round, landed,
		o->board->putters[0].by_kernel ? "the kernel" : "the owner", stale, lost,
		sessions, o->killed_count, o->stopped_count, o->timeout_count);
}

static struct reuse_board *map_board(int fd)
{
	void *board = mmap(NULL, sizeof(struct reuse_board), PROT_READ | PROT_WRITE,
		MAP_SHARED, fd, 0);

	tern_assert(board != MAP_FAILED);
	return board;
}

static int own(const char *url, unsigned round_count, uint64_t seed)
{
	static struct owner o = {.growth = {.who = "owner"}};
	bool no_cma = strncmp(url, "no-cma:", 7) == 0;
	char address[128];

	url += no_cma ? 7 : 0;
	snprintf(address, sizeof(address), "%s", url);
	if (strcmp(url, "shm://") == 0)
		snprintf(address, sizeof(address), "shm://reuse-%d", (int)getpid());
	o.rng.seed = seed;
	o.board_fd = memfd_create("reuse", 0);
	tern_assert(o.board_fd >= 0);
	tern_assert(ftruncate(o.board_fd, sizeof(struct reuse_board)) == 0);
	o.board = map_board(o.board_fd);
	o.board->no_cma = no_cma;
	begin(&o, address);
	for (o.round = 0; o.round < round_count; o.round++)
		round_of(&o, &o.areas[o.round % REUSE_AREAS]);
	end(&o);
	tell(&o);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "--putter") == 0)
		return reuse_put(map_board(atoi(argv[3])), (unsigned)atoi(argv[2]));
	if (argc < 2) {
		fprintf(stderr, "usage: reuse URL [ROUNDS [SEED]]\n");
		return 2;
	}
	return own(argv[1], argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1000,
		argc > 3 ? strtoull(argv[3], NULL, 10) : tern_clock_ns());
}
