/* SPDX-License-Identifier: Apache-2.0 */
/* A process that puts into the windows of another one without a pause: see reuse.c. */
#include "tests/system/storm/reuse.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <string.h>

#include "rendezvous/rendezvous.h"

/* A sanitizer keeps freed memory, or remembers who used it. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MEMORY_IS_KEPT 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MEMORY_IS_KEPT 1
#endif
#endif

struct cell {
	struct tern_req req;
	struct pane *pane;
	struct tern_buf buf;
	uint64_t put; /* number of the put under way */
	bool busy;
};

/* The window of one area. */
struct pane {
	struct putter *putter;
	struct tern_remote *remote; /* NULL: not open on this session */
	uint32_t generation;
	bool stale; /* a put has ended with -ESTALE */
	unsigned busy_count;
	struct cell cells[REUSE_CELLS];
};

struct putter {
	struct reuse_board *board;
	struct reuse_putter *mine;
	unsigned slot;
	struct tern_context *ctx;
	struct tern_peer *peer;
	struct pane panes[REUSE_AREAS];
	bool up, down;
	int down_status;
	int lost; /* status of a put that ended with the session; 0: none */
	unsigned busy_count, session_count;
	struct reuse_growth growth;
};

static const char *const names[REUSE_PUTTERS] = {"putter 0", "putter 1"};

/* ---- puts ---- */

static void post(struct cell *cell);

static void on_done(struct tern_req *req)
{
	struct cell *cell = req->arg;
	struct pane *pane = cell->pane;
	struct putter *p = pane->putter;
	struct reuse_putter *mine = p->mine;
	unsigned area = (unsigned)(pane - p->panes), c = (unsigned)(cell - pane->cells);

	cell->busy = false;
	pane->busy_count--;
	p->busy_count--;
	if (req->status == 0) {
		atomic_store(&mine->cells[area][c].landed, cell->put);
		mine->landed_count++;
		if (!pane->stale && !p->lost)
			post(cell);
	} else if (req->status == -ESTALE) {
		pane->stale = true;
		mine->stale_count++;
	} else if (!p->board->over) {
		if (p->lost && p->lost != req->status)
			reuse_fail(names[p->slot], "puts of one session differ",
				req->status);
		p->lost = req->status;
		mine->lost_count++;
	}
}

static void post(struct cell *cell)
{
	struct pane *pane = cell->pane;
	struct putter *p = pane->putter;
	unsigned area = (unsigned)(pane - p->panes), c = (unsigned)(cell - pane->cells);
	struct reuse_count *count = &p->mine->cells[area][c];
	uint64_t *words = tern_buf_ptr(&cell->buf), word;
	int r;

	cell->put = atomic_load(&count->started) + 1;
	word = reuse_word(pane->generation, area, p->slot, c, cell->put);
	for (uint64_t i = 0; i < cell->buf.bytes / 8; i++)
		words[i] = word + i;
	atomic_store(&count->started, cell->put);
	cell->busy = true;
	pane->busy_count++;
	p->busy_count++;
	r = tern_put(pane->remote, &cell->req, &cell->buf, reuse_cell_offset(p->slot, c),
		NULL);
	if (r < 0)
		reuse_fail(names[p->slot], "tern_put", r);
}

static void fill_pane(struct pane *pane)
{
	for (unsigned c = 0; c < REUSE_CELLS; c++)
		if (!pane->cells[c].busy && !pane->stale && !pane->putter->lost)
			post(&pane->cells[c]);
}

static void open_pane(struct pane *pane)
{
	struct putter *p = pane->putter;
	unsigned area = (unsigned)(pane - p->panes);
	uint32_t generation = atomic_load(&p->board->areas[area].generation);
	int r;

	if (!reuse_uses(p->slot, area) || generation == atomic_load(&p->mine->left[area]))
		return;
	r = tern_remote_open(p->peer, &p->board->areas[area].desc, &pane->remote);
	if (r < 0)
		reuse_fail(names[p->slot], "tern_remote_open", r);
	pane->generation = generation;
	pane->stale = false;
}

static void close_pane(struct pane *pane)
{
	struct putter *p = pane->putter;
	int r = tern_remote_close(pane->remote);

	if (r < 0)
		reuse_fail(names[p->slot], "tern_remote_close", r);
	pane->remote = NULL;
	atomic_store(&p->mine->left[pane - p->panes], pane->generation);
}

static void serve_pane(struct pane *pane)
{
	if (!pane->remote)
		open_pane(pane);
	if (pane->remote)
		fill_pane(pane);
	if (pane->remote && pane->stale && !pane->busy_count)
		close_pane(pane);
}

/* ---- the session ---- */

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct putter *p = arg;

	(void)peer;
	if (event == TERN_PEER_UP)
		p->up = true;
	if (event != TERN_PEER_DOWN)
		return;
	p->down = true;
	p->down_status = status;
}

static void dial(struct putter *p)
{
	struct tern_peer_opts opts = {.event = on_event, .arg = p};
	uint64_t until_ns = tern_clock_ns() + REUSE_HANG_NS;
	int r = tern_connect(p->ctx, p->board->address, &opts, &p->peer);

	while (r >= 0 && !p->up && !p->down && !p->board->over &&
		tern_clock_ns() < until_ns)
		r = tern_progress(p->ctx);
	if (r < 0 || (!p->up && !p->board->over))
		reuse_fail(names[p->slot], "connecting", r < 0 ? r : p->down_status);
	if (!p->up)
		return;
	p->mine->by_kernel = tern_peer_caps(p->peer) & TERN_CAP_WINDOW_PUT;
	p->mine->session_count++;
	reuse_measure(&p->growth, p->session_count++ < 4);
}

/* The session is over. What its puts ended with is its own status. */
static void hang_up(struct putter *p)
{
	int expected = p->down_status ? p->down_status : -ESHUTDOWN;

	if (p->lost && p->lost != expected)
		reuse_fail(names[p->slot], "a put has another status than its session",
			p->lost);
	tern_peer_free(p->peer);
	p->peer = NULL;
	p->up = p->down = false;
	p->lost = 0;
	for (unsigned a = 0; a < REUSE_AREAS; a++)
		p->panes[a].remote = NULL;
}

static void step(struct putter *p)
{
	int r;

	if (!p->peer)
		dial(p);
	for (unsigned a = 0; p->up && !p->down && !p->lost && a < REUSE_AREAS; a++)
		serve_pane(&p->panes[a]);
	r = tern_progress(p->ctx);
	if (r < 0)
		reuse_fail(names[p->slot], "tern_progress", r);
	if (r == 0)
		sched_yield();
	if (p->down && !p->busy_count)
		hang_up(p);
}

int reuse_put(struct reuse_board *board, unsigned slot)
{
	struct putter p = {.board = board,
		.mine = &board->putters[slot],
		.slot = slot,
		.growth = {.who = names[slot]}};
	const struct tern_domain_opts domain_opts = {.no_cma = board->no_cma};
	const struct tern_context_opts opts = REUSE_CONTEXT;
	const struct tern_pool_opts pool_opts = {
		.slab_bytes = 32u << 20, .max_bytes = 32u << 20};
	struct tern_domain *domain;
	struct tern_pool *pool;
	int r = tern_domain_new(&domain_opts, &domain);

	if (r == 0)
		r = tern_context_new(domain, &opts, &p.ctx);
	if (r == 0)
		r = tern_pool_new(domain, &pool_opts, &pool);
	for (unsigned i = 0; r == 0 && i < REUSE_AREAS * REUSE_CELLS; i++) {
		struct pane *pane = &p.panes[i / REUSE_CELLS];
		struct cell *cell = &pane->cells[i % REUSE_CELLS];

		pane->putter = &p;
		cell->pane = pane;
		cell->req.done = on_done;
		cell->req.arg = cell;
		r = tern_pool_get(pool, reuse_cell_bytes(i % REUSE_CELLS), &cell->buf);
	}
	if (r < 0)
		reuse_fail(names[slot], "its start", r);
	while (!board->over)
		step(&p);
	tern_context_free(p.ctx);
	for (unsigned i = 0; i < REUSE_AREAS * REUSE_CELLS; i++)
		tern_pool_put(pool, &p.panes[i / REUSE_CELLS].cells[i % REUSE_CELLS].buf);
	tern_pool_free(pool);
	tern_domain_free(domain);
	return 0;
}

/* ---- growth ---- */

static int fd_count(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int count = 0;

	while (dir && readdir(dir))
		count++;
	if (dir)
		closedir(dir);
	return count;
}

static long long resident_bytes(void)
{
	long long all, resident = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	if (!file || fscanf(file, "%lld %lld", &all, &resident) != 2)
		reuse_fail("/proc/self/statm", "reading", -EIO);
	fclose(file);
	return resident * sysconf(_SC_PAGESIZE);
}

void reuse_measure(struct reuse_growth *growth, bool first)
{
	int fds = fd_count();
	long long resident = resident_bytes();

	if (first) {
		growth->fds = TERN_MAX(growth->fds, fds);
		growth->resident = TERN_MAX(growth->resident, resident);
	}
	if (fds > growth->fds + REUSE_FDS_MAX) {
		fprintf(stderr, "reuse: %s: %d file descriptors, and %d at the start\n",
			growth->who, fds, growth->fds);
		exit(1);
	}
#ifndef MEMORY_IS_KEPT
	if (resident > growth->resident + REUSE_GROWTH_MAX) {
		fprintf(stderr, "reuse: %s: %lld bytes, and %lld at the start\n",
			growth->who, resident, growth->resident);
		exit(1);
	}
#endif
}
