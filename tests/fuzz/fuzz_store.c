/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the store of snapshots (server/store.h) in the simulator. The first byte of the
 * input chooses whom the liar talks to, the victim. If it is server 0, the liar plays a
 * worker, server 1, which sends its parts, and guests, which read the snapshot that the
 * job begins with. If it is server 1, which has no directory, the liar plays a worker and
 * server 0.
 *
 * The liar's messages and pieces are made from the input, most of them nearly right, and
 * it may cut each connection at any time. Without input it answers as an honest process
 * would, so that a short input leads far into the protocol.
 *
 * Invariants: on the disk are files of snapshots only, and a snapshot with a manifest is
 * whole. Server 1 has no file, and begins with the values of the snapshot. The victim
 * ends once.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/util.h"
#include "server/server_state.h"
#include "server/snapshot_state.h"
#include "tests/fuzz/fuzz.h"
#include "transport/sim/disk.h"

#define ELEMENTS  24u /* of each of the two tensors */
#define PIECE     120u
#define STEPS     9u
#define CALLERS   16u
#define MOVES     256u
#define READINGS  16u /* as in server/store.c */
#define TEXT_MOST 300u
#define INPUT_MAX 512u /* longer inputs reach nothing new */
#define DIRECTORY "snapshots"

static const struct tern_snapshot_id begins = {.step = 2, .number = 1};

struct move { /* a send or a receive of the liar */
	struct tern_req req;
	struct tern_buf buf;
	struct world *w;
};

struct caller { /* a connection of the liar */
	struct world *w;
	struct tern_peer *peer;
	struct tern_talk talk;
	struct tern_channel *data;
	bool down;
};

/* A file on its way in pieces. */
struct passage {
	json_int_t part; /* -1: the manifest */
	uint64_t at, all;
};

struct world {
	struct tern_sim *sim;
	struct tern_sim_process *process; /* the liar's */
	struct tern_context *ctx;
	struct tern_pool *pool;
	bool honest;
	struct caller callers[CALLERS];
	unsigned caller_count;
	/* `other`: server 1; or server 0 in the job of the victim. `reader`: a guest
	 * that reads a snapshot; or the connection over which the victim reads one.
	 * NULL: none. */
	struct caller *worker, *other, *reader;
	struct move moves[MOVES];
	unsigned move_count;
	struct passage reading, sending;
	struct tern_snapshot_id id; /* the snapshot that the servers are taking */
	/* The victim. */
	bool is_zero;
	struct tern_sim_process *process_of_victim;
	struct tern_context *ctx_of_victim;
	struct tern_updater *updater;
	struct tern_server *server;
	unsigned end_count;
};

/* ---- the snapshot with which the job begins ---- */

static struct {
	char *bytes[3]; /* parts 0 and 1, and the manifest */
	uint64_t sizes[3];
	uint64_t digests[2];
} files;

static float value_of(uint64_t element)
{
	return 1.0f + (float)element / 4;
}

static struct tern_ps_job the_job(bool victim_is_zero)
{
	static char addresses[][128] = {"sim://victim", "sim://liar", "sim://victim"};
	/* Gradients of two types: so the tensors are two chunks, one for each server. */
	static struct tern_param params[] = {{.name = "a", .count = ELEMENTS},
		{.name = "b", .count = ELEMENTS, .push_bf16 = true}};
	struct tern_ps_job job = {.steps = STEPS,
		.slots = 1,
		.workers = 1,
		.records = 1,
		.batch = 1,
		.params = params,
		.param_count = 2,
		.element_count = 2ull * ELEMENTS,
		.servers = victim_is_zero ? addresses : addresses + 1,
		.server_count = 2};

	params[0].shape = params[1].shape = tern_shape_1d(TERN_F32, ELEMENTS);
	tern_optimizer_parse("sgd", &job.optimizer);
	return job;
}

static void make_part(unsigned server)
{
	float values[ELEMENTS];
	char name[8];
	struct tern_safetensor w = {
		.name = name, .shape = tern_shape_1d(TERN_F32, ELEMENTS), .data = values};
	struct iovec parts[2];

	for (unsigned i = 0; i < ELEMENTS; i++)
		values[i] = value_of(i + server * ELEMENTS);
	snprintf(name, sizeof(name), "w.%u", server);
	if (tern_safetensors_build(&w, 1, NULL, 0, parts) < 0)
		tern_never("a part");
	files.sizes[server] = parts[0].iov_len + parts[1].iov_len;
	files.bytes[server] = malloc(files.sizes[server]);
	if (!files.bytes[server])
		tern_never("memory for a part");
	memcpy(files.bytes[server], parts[0].iov_base, parts[0].iov_len);
	memcpy(files.bytes[server] + parts[0].iov_len, parts[1].iov_base,
		parts[1].iov_len);
	free(parts[0].iov_base);
	files.digests[server] = tern_digest(files.bytes[server], files.sizes[server]);
}

static void make_files(void)
{
	struct tern_snapshot_part parts[2] = {{0}};
	struct tern_snapshot snapshot = {
		.id = begins, .job = the_job(true), .parts = parts};
	struct tern_plan plan;

	for (unsigned i = 0; i < 2; i++) {
		make_part(i);
		parts[i].bytes = files.sizes[i];
		parts[i].digest = files.digests[i];
	}
	snapshot.part_count = 2;
	if (tern_plan_init(&plan, &snapshot.job) < 0)
		tern_never("a plan");
	files.bytes[2] = tern_snapshot_encode(&snapshot, &plan);
	if (!files.bytes[2])
		tern_never("a manifest");
	files.sizes[2] = strlen(files.bytes[2]);
	tern_plan_fini(&plan);
}

/* The file of this number; another number is that of the manifest. */
static unsigned file_of(json_int_t part)
{
	return part == 0 || part == 1 ? (unsigned)part : 2;
}

static void put_files(struct world *w)
{
	for (unsigned i = 0; i < 3; i++) {
		struct tern_snapshot_name name =
			i < 2 ? tern_snapshot_part_name(begins, i)
			      : tern_snapshot_manifest_name(begins);
		char *path = tern_snapshot_path(DIRECTORY, name.text);

		tern_sim_disk_put(
			tern_sim_disk(w->sim), path, files.bytes[i], files.sizes[i]);
		free(path);
	}
}

/* ---- numbers and texts; f is NULL where the liar is honest ---- */

static const char *const texts[] = {"../../etc/passwd", "/", "",
	"step-000000000002-00000001.0.safetensors", "0123456789abcdeg",
	"0123456789abcdef"};

static json_int_t number(struct fuzz *f, uint64_t right)
{
	unsigned how = f ? fuzz_below(f, 16) : 0;

	if (how == 15)
		return (json_int_t)fuzz_take(f, 8);
	if (how == 14)
		right += (uint64_t)(int8_t)fuzz_take(f, 1);
	return (json_int_t)right;
}

static const char *text(struct fuzz *f)
{
	return texts[fuzz_below(f, TERN_ARRAY_SIZE(texts))];
}

/* Makes a number, or a text in the place of a number. */
static json_t *value(struct fuzz *f, uint64_t right)
{
	if (f && fuzz_below(f, 16) == 15)
		return json_string(text(f));
	return json_integer(number(f, right));
}

static json_t *digest(struct fuzz *f, uint64_t right)
{
	char digits[20];

	snprintf(digits, sizeof(digits), "%016" PRIx64, right);
	return json_string(f && fuzz_below(f, 8) == 7 ? text(f) : digits);
}

/* ---- the liar's connections ---- */

static void say(struct caller *c, json_t *message)
{
	if (c && !c->down)
		tern_talk_say(&c->talk, message);
	else
		json_decref(message);
}

static void heard(struct tern_talk *talk, const json_t *message);

static void broken(struct tern_talk *talk, int status)
{
	(void)talk;
	(void)status;
}

static void on_event(
	struct tern_peer *peer, enum tern_peer_event event, int status, void *arg)
{
	struct caller *c = arg;

	(void)peer;
	(void)status;
	if (event != TERN_PEER_DOWN)
		return;
	c->down = true;
	tern_talk_close(&c->talk);
}

static void open_talk(struct caller *c)
{
	struct world *w = c->w;

	c->talk = (struct tern_talk){
		.pool = w->pool, .ctx = w->ctx, .heard = heard, .broken = broken};
	if (tern_channel_open(c->peer, TERN_PS_CHANNEL_DATA, &c->data) < 0 ||
		tern_talk_open(&c->talk, c->peer) < 0)
		tern_never("a connection");
}

static void on_accept(struct tern_peer *peer, void *arg)
{
	struct world *w = arg;
	struct caller *c = &w->callers[w->caller_count];

	if (w->caller_count == CALLERS) {
		tern_peer_free(peer);
		return;
	}
	w->caller_count++;
	*c = (struct caller){.w = w, .peer = peer};
	tern_peer_set_opts(peer, &(struct tern_peer_opts){.event = on_event, .arg = c});
	open_talk(c);
}

/* Connects to the victim if *at is no connection. */
static struct caller *call(struct world *w, struct caller **at)
{
	struct caller *c = &w->callers[w->caller_count];

	if ((*at && !(*at)->down) || w->caller_count == CALLERS)
		return *at;
	w->caller_count++;
	*c = (struct caller){.w = w};
	if (tern_connect(w->ctx, "sim://victim",
		    &(struct tern_peer_opts){
			    .event = on_event, .arg = c, .pool = w->pool},
		    &c->peer) < 0)
		tern_never("a peer");
	open_talk(c);
	*at = c;
	return c;
}

static void cut(struct fuzz *f, struct world *w)
{
	struct caller **all[] = {&w->worker, &w->other, &w->reader};
	struct caller *c = TERN_TAKE(*all[fuzz_below(f, 3)]);

	if (!c || c->down)
		return;
	if (fuzz_below(f, 2)) {
		tern_peer_close(c->peer);
		return;
	}
	c->down = true;
	tern_talk_close(&c->talk);
	tern_peer_free(c->peer);
}

/* ---- the liar's tensors ---- */

static struct move *new_move(struct world *w, uint64_t bytes)
{
	struct move *m = &w->moves[w->move_count];

	if (w->move_count == MOVES || tern_pool_get(w->pool, bytes, &m->buf) < 0)
		return NULL;
	w->move_count++;
	m->w = w;
	m->req = (struct tern_req){0};
	memset(tern_buf_ptr(&m->buf), 0, bytes);
	return m;
}

static void send(struct caller *c, struct move *m, uint64_t key, uint64_t step,
	enum tern_dtype dtype)
{
	struct tern_tensor tensor = {.buf = m->buf,
		.shape = tern_shape_1d(dtype, m->buf.bytes / tern_dtype_bytes(dtype))};

	if (c && !c->down)
		tern_send(c->data, &m->req, key, step, &tensor, NULL, 0);
}

/* Sends bytes of a file, most of the time those at `at`. */
static void send_bytes(struct fuzz *f, struct caller *c, uint64_t key, uint64_t step,
	unsigned file, uint64_t at)
{
	uint64_t left = at < files.sizes[file] ? files.sizes[file] - at : 0;
	uint64_t right = TERN_MAX(TERN_MIN(left, PIECE), 1u), bytes = right;
	struct move *m;

	if (f && fuzz_below(f, 8) == 7)
		bytes = 4 * (1 + fuzz_take(f, 1));
	m = c ? new_move(c->w, bytes) : NULL;
	if (!m)
		return;
	if (left)
		memcpy(tern_buf_ptr(&m->buf), files.bytes[file] + at,
			TERN_MIN(bytes, left));
	if (f && fuzz_below(f, 8) == 7)
		*(char *)tern_buf_ptr(&m->buf) ^= 1;
	send(c, m, key, step, f && fuzz_below(f, 16) == 15 ? TERN_I8 : TERN_U8);
}

/* The worker sends its gradient of the next step. */
static void push(struct fuzz *f, struct world *w)
{
	const struct chunk *c = w->server->chunk_count ? &w->server->chunks[0] : NULL;
	uint64_t step = (uint64_t)number(f, c ? c->version : 0);
	struct move *m;

	if (!c || !w->server->running)
		return;
	m = new_move(w, chunk_gradient_bytes(c));
	if (m)
		send(w->worker, m, c->plan->gradient_key, step,
			c->plan->push_bf16 ? TERN_BF16 : TERN_F32);
}

/* ---- joining ---- */

static json_t *job_json(const struct world *w)
{
	struct tern_ps_job job = the_job(w->is_zero);

	return tern_ps_job_json(&job);
}

static void join(struct world *w)
{
	say(call(w, &w->worker), json_pack("{s:s, s:i, s:i, s:i, s:o}", "type", "join",
					 "worker", 0, "incarnation", 1, "server",
					 w->is_zero ? 0 : 1, "job", job_json(w)));
}

/* Server 1 joins, or server 0 begins the steps. */
static void begin(struct fuzz *f, struct world *w)
{
	if (w->is_zero)
		say(call(w, &w->other),
			json_pack("{s:s, s:i, s:o, s:s, s:b, s:b, s:o, s:o, s:i}", "type",
				"peer", "server", 1, "job", job_json(w), "arithmetic", "",
				"snapshots", 1, "omits", 0, "version",
				value(f, begins.step), "number", value(f, begins.number),
				"life", 0));
	else
		say(w->other, json_pack("{s:s, s:o, s:i}", "type", "start", "version",
				      value(f, begins.step), "life", 7));
}

/* ---- the snapshot is read ---- */

/* A guest asks which snapshot server 0 begins with, or server 0 tells it. */
static void say_begins(struct fuzz *f, struct world *w)
{
	if (w->is_zero)
		say(call(w, &w->reader), json_pack("{s:s}", "type", "begins"));
	else
		say(w->reader, json_pack("{s:s, s:o, s:o}", "type", "begins", "step",
				       value(f, begins.step), "number",
				       value(f, begins.number)));
}

static void ask_piece(struct fuzz *f, struct world *w)
{
	say(call(w, &w->reader),
		json_pack("{s:s, s:o, s:o, s:o, s:o}", "type", "read", "step",
			value(f, begins.step), "number", value(f, begins.number), "part",
			value(f, (uint64_t)w->reading.part), "at",
			value(f, w->reading.at)));
}

static void say_piece(struct fuzz *f, struct world *w)
{
	uint64_t all = files.sizes[file_of(w->reading.part)], at = w->reading.at;
	uint64_t left = at < all ? all - at : 1;
	json_t *message =
		json_pack("{s:s, s:o, s:o, s:o}", "type", "piece", "at", value(f, at),
			"bytes", value(f, TERN_MIN(left, PIECE)), "all", value(f, all));

	if (f && fuzz_below(f, 16) == 15)
		json_object_set_new(message, "text", json_string(text(f)));
	say(w->reader, message);
}

static void send_piece(struct fuzz *f, struct world *w)
{
	send_bytes(f, w->reader, tern_key("snapshot/read"), w->reading.at,
		file_of(w->reading.part), w->reading.at);
}

/* The guest has a piece, and asks for the next one, or for the first one of the next
 * file. */
static void got_piece(struct tern_req *req)
{
	struct world *w = tern_container_of(req, struct move, req)->w;

	w->reading.at += req->status == 0 ? req->bytes : 0;
	if (w->reading.at >= w->reading.all) {
		w->reading.part++;
		w->reading.at = 0;
	}
	if (w->honest && req->status == 0 && w->reading.part < 2)
		ask_piece(NULL, w);
}

static void take_piece(struct world *w)
{
	struct move *m = w->reader && !w->reader->down ? new_move(w, PIECE) : NULL;

	if (!m)
		return;
	m->req.done = got_piece;
	tern_recv(w->reader->data, &m->req, tern_key("snapshot/read"), w->reading.at,
		&m->buf, NULL, 0);
}

/* ---- a part is sent ---- */

/* Server 0 begins a snapshot, or server 1 announces its part. */
static void announce(struct fuzz *f, struct world *w)
{
	if (!w->is_zero) {
		w->id = (struct tern_snapshot_id){
			w->server->chunk_count ? w->server->chunks[0].version + 1 : 1, 9};
		say(w->other,
			json_pack("{s:s, s:o, s:o}", "type", "snapshot", "step",
				value(f, w->id.step), "number", value(f, w->id.number)));
		return;
	}
	w->sending = (struct passage){.part = 1, .all = files.sizes[1]};
	say(w->other, json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "type", "part", "step",
			      value(f, w->id.step), "number", value(f, w->id.number),
			      "bytes", value(f, files.sizes[1]), "piece", value(f, PIECE),
			      "digest", digest(f, files.digests[1])));
}

static void report(struct fuzz *f, struct world *w)
{
	json_t *message = json_pack("{s:s, s:o, s:o, s:o, s:o, s:b}", "type", "snapshot",
		"step", value(f, w->id.step), "number", value(f, w->id.number), "bytes",
		value(f, files.sizes[1]), "digest", digest(f, files.digests[1]), "late",
		0);

	if (f && fuzz_below(f, 16) == 15)
		json_object_set_new(message, "text", json_string(text(f)));
	say(w->other, message);
}

static void send_part(struct fuzz *f, struct world *w)
{
	uint64_t step = (uint64_t)number(f, w->sending.at / PIECE);

	send_bytes(f, w->other, tern_key("snapshot/part"),
		((uint64_t)w->id.number << 32) + step, 1, w->sending.at);
	w->sending.at += PIECE;
}

/* Server 0 says "go", or how the part has ended. */
static void answer_part(struct fuzz *f, struct world *w, bool go)
{
	json_t *message = json_pack("{s:s, s:o, s:o, s:b}", "type", "part", "step",
		value(f, w->id.step), "number", value(f, w->id.number), "go", go);

	if (f && fuzz_below(f, 4) == 3)
		json_object_set_new(message, "text", json_string(text(f)));
	say(w->other, message);
}

static void got_part(struct tern_req *req)
{
	struct world *w = tern_container_of(req, struct move, req)->w;

	w->sending.at += req->status == 0 ? req->bytes : 0;
	if (w->honest && w->sending.at >= w->sending.all)
		answer_part(NULL, w, false);
}

static void take_part(struct world *w, uint64_t piece)
{
	struct move *m = w->other && !w->other->down ? new_move(w, PIECE) : NULL;

	if (!m)
		return;
	m->req.done = got_part;
	tern_recv(w->other->data, &m->req, tern_key("snapshot/part"),
		((uint64_t)w->id.number << 32) + piece, &m->buf, NULL, 0);
}

/* ---- what the liar hears ---- */

static uint64_t integer(const json_t *message, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(message, name));
}

static void hear_zero(struct world *w, const char *type, const json_t *message)
{
	if (strcmp(type, "begins") == 0 && w->honest) {
		ask_piece(NULL, w);
	} else if (strcmp(type, "piece") == 0) {
		w->reading.all = integer(message, "all");
		if (w->honest && !json_object_get(message, "text"))
			take_piece(w);
	} else if (strcmp(type, "snapshot") == 0) {
		w->id = (struct tern_snapshot_id){
			integer(message, "step"), (uint32_t)integer(message, "number")};
		if (w->honest)
			announce(NULL, w);
	} else if (strcmp(type, "part") == 0 && w->honest) {
		if (!json_is_true(json_object_get(message, "go")))
			report(NULL, w);
		else
			while (w->sending.at < w->sending.all)
				send_part(NULL, w);
	}
}

static void hear_other(struct caller *c, const char *type, const json_t *message)
{
	struct world *w = c->w;

	if (strcmp(type, "begins") == 0) {
		w->reader = c;
		if (w->honest)
			say_begins(NULL, w);
	} else if (strcmp(type, "read") == 0) {
		w->reader = c;
		w->reading =
			(struct passage){.part = (json_int_t)integer(message, "part"),
				.at = integer(message, "at")};
		if (w->honest) {
			say_piece(NULL, w);
			send_piece(NULL, w);
		}
	} else if (strcmp(type, "peer") == 0) {
		w->other = c;
		if (w->honest)
			begin(NULL, w);
	} else if (strcmp(type, "part") == 0) {
		w->sending = (struct passage){.all = integer(message, "bytes")};
		if (!w->honest)
			return;
		answer_part(NULL, w, true);
		for (uint64_t i = 0; i * PIECE < w->sending.all; i++)
			take_part(w, i);
	}
}

static void heard(struct tern_talk *talk, const json_t *message)
{
	struct caller *c = tern_container_of(talk, struct caller, talk);

	if (c->w->is_zero)
		hear_zero(c->w, tern_talk_type(message), message);
	else
		hear_other(c, tern_talk_type(message), message);
}

/* ---- the victim ---- */

static void ended(void *arg, int status, const char *why)
{
	struct world *w = arg;

	tern_assert(*why || status == 0);
	w->end_count++;
}

static struct tern_context *open_context(struct tern_sim_process *process)
{
	/* Pieces are larger than what is sent eagerly, so a send of one ends when it
	 * was taken. Parameters are smaller, since the worker does not receive them. */
	const struct tern_context_opts opts = {.eager_bytes = 100, .record_count = 128};
	struct tern_context *ctx;

	if (tern_context_new_in(
		    tern_sim_domain(process), &opts, tern_sim_env(process), &ctx) < 0)
		tern_never("a context");
	tern_sim_drive(process, ctx);
	return ctx;
}

static void open_server(struct world *w)
{
	struct tern_server_opts opts = {.domain = tern_sim_domain(w->process_of_victim),
		.ctx = w->ctx_of_victim,
		.updater = w->updater,
		.listen = "sim://victim",
		.snapshots = {.piece_bytes = PIECE, .every_steps = 1, .keep = 2},
		.ended = ended,
		.arg = w};

	if (w->is_zero) {
		put_files(w);
		opts.resume = opts.snapshots.directory = DIRECTORY;
	} else {
		opts.index = 1;
		opts.snapshots.via = "sim://liar";
	}
	if (tern_server_new(&opts, &w->server) < 0)
		tern_never("a server");
}

static void open_world(struct world *w, bool is_zero)
{
	struct tern_listener *listener;

	*w = (struct world){.sim = tern_sim_new(&(struct tern_sim_opts){.seed = 1}),
		.is_zero = is_zero,
		.reading = {.part = -1}};
	w->process = tern_sim_process_new(w->sim, "liar");
	w->process_of_victim = tern_sim_process_new(w->sim, "victim");
	w->ctx = open_context(w->process);
	w->ctx_of_victim = open_context(w->process_of_victim);
	if (tern_pool_new(tern_sim_domain(w->process), NULL, &w->pool) < 0 ||
		tern_updater_cpu_new(tern_kernels_cpu(), &w->updater) < 0 ||
		tern_listen(w->ctx, "sim://liar", NULL, on_accept, w, &listener) < 0)
		tern_never("a liar");
	open_server(w);
}

/* ---- what must be true ---- */

static bool is_whole(struct tern_sim_disk *disk, struct tern_snapshot_id id)
{
	struct tern_snapshot s;
	struct tern_ps_text why;
	bool whole = true;

	for (int64_t i = -1; whole && (i < 0 || i < s.part_count); i++) {
		struct tern_snapshot_name name =
			i < 0 ? tern_snapshot_manifest_name(id)
			      : tern_snapshot_part_name(id, (uint32_t)i);
		char *path = tern_snapshot_path(DIRECTORY, name.text);
		size_t bytes = 0;
		const void *data = tern_sim_disk_get(disk, path, &bytes);

		free(path);
		if (i < 0 && tern_snapshot_decode(data, bytes, &s, &why) < 0)
			return false;
		whole = i < 0 || (data && tern_snapshot_check_part(
						  &s, (uint32_t)i, data, bytes, &why));
	}
	tern_snapshot_fini(&s);
	return whole;
}

static void check_disk(struct world *w)
{
	struct tern_sim_disk *disk = tern_sim_disk(w->sim);
	struct tern_file_op op = {.kind = TERN_FILE_LIST, .path = DIRECTORY};
	size_t count = 0;

	tern_sim_disk_end(disk, &op);
	for (size_t at = 0; at < op.bytes; at += strlen((char *)op.data + at) + 1) {
		const char *name = (char *)op.data + at;
		struct tern_snapshot_id id;
		uint32_t part;

		count++;
		if (tern_snapshot_name_read(name, &id, &part))
			tern_assert(part < 2 || (part == TERN_SNAPSHOT_MANIFEST &&
							is_whole(disk, id)));
		else
			tern_assert(tern_snapshot_is_torn(name) ||
				    strcmp(name, ".tern-owner") == 0 ||
				    strcmp(name, "..tern-owner.new") == 0);
	}
	free(op.data);
	tern_list_for_each (n, &disk->files)
		count--;
	tern_assert(count == 0); /* no file is outside the directory */
}

static void check(struct world *w)
{
	const struct tern_server *s = w->server;
	const struct chunk *c = s->chunk_count ? &s->chunks[0] : NULL;

	if (w->is_zero) {
		check_disk(w);
		tern_assert(s->reading_count <= READINGS);
		return;
	}
	tern_assert(tern_list_empty(&tern_sim_disk(w->sim)->files));
	if (s->over || !s->joined_count || !c || s->first_version != begins.step ||
		c->version != begins.step)
		return;
	for (uint64_t i = 0; i < c->plan->count; i++)
		tern_assert(chunk_w(c, c->version)[i] == value_of(c->plan->first + i));
}

/* ---- all of it ---- */

static bool never(void *arg)
{
	(void)arg;
	return false;
}

static void run(struct world *w, uint64_t for_ns)
{
	tern_sim_rouse(w->process);
	tern_sim_rouse(w->process_of_victim);
	tern_sim_run(w->sim, never, NULL, for_ns);
	check(w);
}

/* Says any text of the input that is JSON. */
static void say_any(struct fuzz *f, struct world *w)
{
	struct caller *all[] = {w->worker, w->other, w->reader};
	struct caller *c = all[fuzz_below(f, 3)];
	size_t bytes = TERN_MIN(fuzz_take(f, 2) % TEXT_MOST, f->bytes);
	json_t *message = json_loadb((const char *)f->data, bytes, 0, NULL);

	f->data += bytes;
	f->bytes -= bytes;
	if (message)
		say(c, message);
}

/* The liar says or sends something by itself. */
static void lie(struct fuzz *f, struct world *w)
{
	switch (fuzz_below(f, 10)) {
	case 0:
		say_begins(f, w);
		break;
	case 1:
		w->is_zero ? ask_piece(f, w) : say_piece(f, w);
		break;
	case 2:
		w->is_zero ? take_piece(w) : send_piece(f, w);
		break;
	case 3:
		begin(f, w);
		break;
	case 4:
		announce(f, w);
		break;
	case 5:
		w->is_zero ? send_part(f, w) : take_part(w, fuzz_below(f, 4));
		break;
	case 6:
		w->is_zero ? report(f, w) : answer_part(f, w, fuzz_below(f, 2));
		break;
	case 7:
		say_any(f, w);
		break;
	default:
		cut(f, w);
		break;
	}
}

static void act(struct fuzz *f, struct world *w)
{
	static const uint64_t times[] = {10 * TERN_NS_PER_US, 200 * TERN_NS_PER_US,
		10 * TERN_NS_PER_MS, 500 * TERN_NS_PER_MS, 31 * TERN_NS_PER_S};

	switch (fuzz_below(f, 8)) {
	case 0:
		run(w, times[fuzz_below(f, TERN_ARRAY_SIZE(times))]);
		break;
	case 1:
		w->honest = !w->honest;
		break;
	case 2:
		join(w);
		break;
	case 3:
		push(f, w);
		break;
	case 4:
		if (w->is_zero)
			w->reader = NULL; /* the next question is that of another guest */
		break;
	default:
		lie(f, w);
		break;
	}
}

static void close_world(struct world *w)
{
	if (!w->server->over)
		tern_server_stop(w->server, "enough", false);
	run(w, 10 * TERN_NS_PER_S);
	tern_assert(w->end_count == 1);
	tern_sim_forget(w->process_of_victim, w->ctx_of_victim);
	tern_context_free(w->ctx_of_victim);
	tern_server_free(w->server);
	tern_updater_free(w->updater);
	w->honest = false;
	tern_sim_forget(w->process, w->ctx);
	tern_context_free(w->ctx);
	for (unsigned i = 0; i < w->move_count; i++)
		tern_pool_put(w->pool, &w->moves[i].buf);
	tern_pool_free(w->pool);
	tern_sim_process_free(w->process_of_victim);
	tern_sim_process_free(w->process);
	tern_sim_free(w->sim);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static struct world w;
	struct fuzz f = {data, bytes};

	if (bytes > INPUT_MAX)
		return -1;
	if (!files.bytes[0])
		make_files();
	open_world(&w, fuzz_below(&f, 2) == 0);
	while (f.bytes)
		act(&f, &w);
	close_world(&w);
	return 0;
}
