/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of windows with a stranger (meet_scene.h), which knows the descriptor of a window
 * of B, or does not, and sends messages about windows that no correct Tern sends. */
#include "tests/rendezvous/meet_scene.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/endian.h"
#include "base/util.h"
#include "rendezvous/rendezvous.h"
#include "rendezvous/window.h"

#define ROOM_BYTES 1000u
#define HANDLE     7u

/* A window of B, and B's last message about it to the stranger. */
struct target {
	struct scene scene;
	struct memory_box box;
	struct tern_buf room;
	struct tern_window *window;
	struct tern_window_desc desc;
	struct tern_header heard;
	unsigned heard_count;
};

static void on_window(struct scene *s, const struct tern_header *h)
{
	struct target *t = s->arg;

	t->heard = *h;
	t->heard_count++;
}

static void target_init(
	struct target *t, const struct instance *instance, unsigned access)
{
	struct end *b;

	memset(t, 0, sizeof(*t));
	scene_init(&t->scene, instance);
	t->scene.on_window = on_window;
	t->scene.arg = t;
	b = &t->scene.meet->ends[B];
	box_init(&t->box, b->domain);
	t->room = box_take(&t->box, SLAB, ROOM_BYTES);
	buf_fill(&t->room, 1);
	assert_int_equal(tern_window_new(b->ctx, &t->room, access, &t->window), 0);
	tern_window_describe(t->window, &t->desc);
}

static void target_fini(struct target *t)
{
	struct tern_req req = {0};

	assert_int_equal(tern_window_close(t->window, &req, TERN_NEVER), 0);
	SCENE_PUMP(&t->scene, tern_test(&req) == 0);
	assert_true(buf_holds(&t->room, 1));
	box_free(&t->box);
	scene_fini(&t->scene);
}

static void put_capability(const struct target *t, unsigned char *capability)
{
	tern_put_le64(capability, t->desc.capability[0]);
	tern_put_le64(capability + 8, t->desc.capability[1]);
}

static struct tern_header open_message(const struct target *t, unsigned char *capability)
{
	put_capability(t, capability);
	return (struct tern_header){.type = TERN_MSG_WINDOW_OPEN,
		.key = t->desc.id,
		.step = t->desc.incarnation,
		.bytes = t->desc.bytes,
		.src = HANDLE,
		.payload = capability};
}

/* The stranger opens the window, as it may: it has the descriptor. */
static void stranger_opens(struct target *t)
{
	unsigned char capability[TERN_CAPABILITY_BYTES];
	struct tern_header h = open_message(t, capability);
	unsigned before = t->heard_count;

	stranger_says(&t->scene, &h);
	SCENE_PUMP(&t->scene, t->heard_count > before);
	assert_int_equal(t->heard.type, TERN_MSG_WINDOW_OPENED);
	assert_int_equal(t->heard.status, 0);
	assert_int_equal(t->heard.dst, HANDLE);
	assert_int_equal(t->heard.bytes, ROOM_BYTES);
}

static void stranger_leaves(struct target *t)
{
	stranger_says(&t->scene,
		&(struct tern_header){.type = TERN_MSG_WINDOW_LEFT, .key = t->desc.id});
}

/* Each of these ends the stranger's session, although it has opened the window. `id`: the
 * message names the window. */
static const struct {
	struct tern_header h;
	bool id;
} wrong[] = {
	/* Without an id of the stranger, or of the window. */
	{{.type = TERN_MSG_WINDOW_OPEN, .step = 1}, true},
	{{.type = TERN_MSG_WINDOW_WRITE, .bytes = 8}, true},
	{{.type = TERN_MSG_WINDOW_WRITE, .bytes = 8, .src = 1, .key = 77}, false},
	{{.type = TERN_MSG_WINDOW_READ,
		 .flags = TERN_FLAG_REGION,
		 .bytes = 8,
		 .src = 1,
		 .key = 77},
		false},
	{{.type = TERN_MSG_WINDOW_READ, .flags = TERN_FLAG_REGION, .bytes = 8}, true},
	{{.type = TERN_MSG_WINDOW_FENCE}, true},
	/* Outside the window. */
	{{.type = TERN_MSG_WINDOW_WRITE, .bytes = ROOM_BYTES + 1, .src = 1}, true},
	{{.type = TERN_MSG_WINDOW_WRITE, .bytes = 8, .step = ROOM_BYTES - 7, .src = 1},
		true},
	{{.type = TERN_MSG_WINDOW_WRITE, .bytes = 8, .step = UINT64_MAX - 3, .src = 1},
		true},
	{{.type = TERN_MSG_WINDOW_WRITE,
		 .flags = TERN_FLAG_REGION,
		 .bytes = UINT64_MAX,
		 .step = 8,
		 .src = 1},
		true},
	{{.type = TERN_MSG_WINDOW_READ,
		 .flags = TERN_FLAG_REGION,
		 .bytes = 8,
		 .step = ROOM_BYTES,
		 .src = 1},
		true},
	/* Nothing to move, and no memory to put into. */
	{{.type = TERN_MSG_WINDOW_WRITE, .src = 1}, true},
	{{.type = TERN_MSG_WINDOW_READ, .bytes = 8, .src = 1}, true},
	{{.type = TERN_MSG_WINDOW_MOVE, .src = 1}, true},
	{{.type = TERN_MSG_WINDOW_MOVE, .bytes = 8}, true},
	{{.type = TERN_MSG_WINDOW_MOVE, .bytes = TERN_MOVE_BYTES + 1, .src = 1}, true},
	/* Answers to nothing. */
	{{.type = TERN_MSG_WINDOW_OPENED, .dst = HANDLE}, true},
	{{.type = TERN_MSG_WINDOW_DONE, .dst = 0x10000}, true},
	{{.type = TERN_MSG_WINDOW_DONE, .dst = 0x10000, .status = -EIO}, true},
	{{.type = TERN_MSG_WINDOW_LEFT, .key = 77}, false},
	{{.type = TERN_MSG_WINDOW_MOVED, .dst = 1}, true},
	/* Statuses and flags that only other messages may have. */
	{{.type = TERN_MSG_WINDOW_FENCE, .src = 1, .status = -EIO}, true},
	{{.type = TERN_MSG_WINDOW_OPENED, .status = -EINPROGRESS, .dst = 1}, true},
	{{.type = TERN_MSG_WINDOW_CLOSE, .flags = TERN_FLAG_REGION}, true},
	{{.type = TERN_MSG_WINDOW_MOVE, .src = 1, .bytes = 8, .status = -EIO}, true},
	{{.type = TERN_MSG_WINDOW_MOVE, .flags = TERN_FLAG_REGION, .src = 1, .bytes = 8},
		true},
	/* Too long. */
	{{.type = TERN_MSG_NOTIFY, .bytes = TERN_NOTE_MAX + 1}, true},
};

static void test_wrong_messages_about_windows_end_their_session_only(
	const struct instance *instance)
{
	struct target t;

	target_init(&t, instance, TERN_WINDOW_READ | TERN_WINDOW_WRITE);
	for (unsigned i = 0; i < TERN_ARRAY_SIZE(wrong); i++) {
		struct tern_header h = wrong[i].h;

		if (wrong[i].id)
			h.key = t.desc.id;
		stranger_comes(&t.scene);
		stranger_opens(&t);
		scene_protocol_error(&t.scene, &h);
		scene_undisturbed(&t.scene, i);
		assert_true(buf_holds(&t.room, 1));
	}
	target_fini(&t);
}

/* A right that the window does not have, and a window that the stranger has not opened,
 * has left, or may not open. */
static void test_only_who_has_opened_a_window_may_use_it(const struct instance *instance)
{
	const struct tern_header write = {
		.type = TERN_MSG_WINDOW_WRITE, .bytes = 8, .src = 1};
	const struct tern_header read = {.type = TERN_MSG_WINDOW_READ,
		.flags = TERN_FLAG_REGION,
		.bytes = 8,
		.src = 1};
	unsigned char capability[TERN_CAPABILITY_BYTES];
	struct tern_header h;
	struct target t;

	for (unsigned access = 1; access <= 2; access++) {
		target_init(&t, instance, access);
		stranger_comes(&t.scene);
		stranger_opens(&t);
		h = access == TERN_WINDOW_READ ? write : read;
		h.key = t.desc.id;
		scene_protocol_error(&t.scene, &h);

		stranger_comes(&t.scene); /* the window is that of the other session */
		h.key = t.desc.id;
		scene_protocol_error(&t.scene, &h);

		stranger_comes(&t.scene);
		h = open_message(&t, capability);
		capability[15] ^= 0x80;
		t.heard_count = 0;
		stranger_says(&t.scene, &h);
		SCENE_PUMP(&t.scene, t.heard_count);
		assert_int_equal(t.heard.status, -EACCES);
		assert_int_equal(t.heard.channel, 0);
		assert_false(t.heard.flags & TERN_FLAG_REGION);
		h = access == TERN_WINDOW_READ ? read : write;
		h.key = t.desc.id;
		scene_protocol_error(&t.scene, &h);

		stranger_comes(&t.scene);
		stranger_opens(&t);
		stranger_leaves(&t);
		scene_protocol_error(&t.scene, &h);
		scene_undisturbed(&t.scene, access);
		target_fini(&t);
	}
}

/* A stranger asks without end, and reads no answer. What B keeps for it is bounded, and the
 * session ends. */
static void test_who_asks_without_end_is_cut(const struct instance *instance)
{
	unsigned char capability[TERN_CAPABILITY_BYTES];
	struct tern_header h;
	struct target t;

	for (unsigned i = 0; i < 2; i++) {
		struct tern_peer *peer;

		target_init(&t, instance, TERN_WINDOW_READ | TERN_WINDOW_WRITE);
		stranger_comes(&t.scene);
		stranger_opens(&t);
		peer = t.scene.caller;
		h = open_message(&t, capability);
		if (i)
			h = (struct tern_header){.type = TERN_MSG_WINDOW_FENCE, .src = 1};
		/* B does not send while its pump is held, as if there were no room. */
		peer->pump.running = true;
		for (unsigned n = 0; n <= TERN_PARTS_MAX && !t.scene.down_count; n++)
			stranger_says(&t.scene, &h);
		SCENE_PUMP(&t.scene, t.scene.down_count);
		assert_int_equal(t.scene.down_status, -EPROTO);
		target_fini(&t);
	}
}

/* ---- B keeps what it owes to a stranger that does not follow ---- */

/* The stranger asks for bytes and leaves before B has put them. */
static void test_a_closed_window_ends_although_a_peer_never_takes_its_bytes(
	const struct instance *instance)
{
	struct target t;
	struct tern_header h = {.flags = TERN_FLAG_REGION, .bytes = 8, .src = 1};
	struct tern_req req = {0};
	struct tern_peer *peer;
	const struct tern_peer_windows *w;

	target_init(&t, instance, TERN_WINDOW_READ | TERN_WINDOW_WRITE);
	stranger_comes(&t.scene);
	stranger_opens(&t);
	peer = t.scene.caller;
	w = &peer->windows;
	h.type = tern_peer_caps(peer) & TERN_CAP_PUT ? TERN_MSG_WINDOW_READ
						     : TERN_MSG_WINDOW_WRITE;
	h.key = t.desc.id;
	peer->pump.running = true; /* as if there were no room */
	stranger_says(&t.scene, &h);
	stranger_says(&t.scene,
		&(struct tern_header){.type = TERN_MSG_WINDOW_LEFT, .key = t.desc.id});
	SCENE_PUMP(&t.scene, w->job_count == 1 && tern_list_empty(&w->granted));
	assert_int_equal(tern_window_close(t.window, &req, TERN_NS_PER_MS), 0);
	SCENE_PUMP(&t.scene, tern_test(&req) == 0);
	assert_true(log_env_has(&t.scene.meet->ends[B].log,
		"has not left a window of 1000 bytes that was closed"));
	assert_int_equal(tern_window_new(t.scene.meet->ends[B].ctx, &t.room,
				 TERN_WINDOW_READ, &t.window),
		0);
	target_fini(&t);
}

/* ---- MOVE: window_move.c ---- */

/* A MOVE that the stranger may send. */
static struct tern_header move_message(const struct target *t, unsigned char *capability)
{
	put_capability(t, capability);
	return (struct tern_header){.type = TERN_MSG_WINDOW_MOVE,
		.key = t->desc.id,
		.bytes = 8,
		.src = HANDLE,
		.payload = capability};
}

/* Sends the MOVE, and the tensor that belongs to it. Returns the status of MOVED. */
static int moved_status(struct target *t, const struct tern_header *move)
{
	const struct tern_header tensor = {.type = TERN_MSG_EAGER,
		.channel = TERN_CHANNEL_WINDOWS,
		.key = move->src,
		.bytes = move->bytes,
		.shape = tern_shape_1d(TERN_U8, move->bytes)};
	unsigned before = t->heard_count;

	stranger_says(&t->scene, move);
	if (!(move->flags & TERN_FLAG_RECV))
		stranger_says(&t->scene, &tensor);
	SCENE_PUMP(&t->scene, t->heard_count > before);
	assert_int_equal(t->heard.type, TERN_MSG_WINDOW_MOVED);
	assert_int_equal(t->heard.dst, move->src);
	assert_int_equal(t->scene.caller->arrival_count, 0);
	return t->heard.status;
}

static void test_a_move_is_checked_by_the_owner(const struct instance *instance)
{
	unsigned char capability[TERN_CAPABILITY_BYTES];
	struct tern_req req = {0};
	struct tern_header h;
	struct target t;

	for (unsigned access = 1; access <= 2; access++) {
		unsigned flags = access == TERN_WINDOW_READ ? TERN_FLAG_RECV : 0;

		target_init(&t, instance, access);
		stranger_comes(&t.scene);
		h = move_message(&t, capability);
		h.flags = (uint16_t)(TERN_FLAG_RECV ^ flags);
		assert_int_equal(moved_status(&t, &h), -EACCES);
		h.flags = (uint16_t)flags;
		h.step = ROOM_BYTES - 7;
		assert_int_equal(moved_status(&t, &h), -ERANGE);
		h.step = UINT64_MAX - 3;
		assert_int_equal(moved_status(&t, &h), -ERANGE);
		h.step = 0;
		capability[15] ^= 0x80;
		assert_int_equal(moved_status(&t, &h), -EACCES);
		capability[15] ^= 0x80;
		h.key++;
		assert_int_equal(moved_status(&t, &h), -EACCES);
		h.key = t.desc.id;
		assert_true(buf_holds(&t.room, 1));
		assert_int_equal(moved_status(&t, &h), 0);
		assert_true(buf_holds(&t.room, 1) == (access == TERN_WINDOW_READ));
		assert_int_equal(tern_window_close(t.window, &req, TERN_NEVER), 0);
		assert_int_equal(tern_test(&req), 0); /* nobody has opened it */
		buf_fill(&t.room, 1);
		assert_int_equal(moved_status(&t, &h), -ESTALE);
		scene_undisturbed(&t.scene, access);
		assert_int_equal(tern_window_new(t.scene.meet->ends[B].ctx, &t.room,
					 access, &t.window),
			0);
		target_fini(&t);
	}
}

/* Tensors for parts that B does not have, or not any more, are not kept: no program could
 * receive them. */
static void test_a_half_without_a_move_is_dropped(const struct instance *instance)
{
	struct tern_header h = {.type = TERN_MSG_EAGER,
		.channel = TERN_CHANNEL_WINDOWS,
		.bytes = 8,
		.shape = tern_shape_1d(TERN_U8, 8)};
	struct tern_peer *peer;
	struct target t;

	target_init(&t, instance, TERN_WINDOW_WRITE);
	stranger_comes(&t.scene);
	peer = t.scene.caller;
	stranger_says(&t.scene, &h);
	h.type = TERN_MSG_RTS;
	h.src = 9;
	if (tern_peer_caps(peer) & TERN_CAP_GET)
		h.flags = TERN_FLAG_REGION;
	stranger_says(&t.scene, &h);
	SCENE_PUMP(&t.scene, peer->stream.rx_seq == t.scene.seq);
	SCENE_PUMP(&t.scene, t.scene.ats == h.src);
	assert_int_equal(t.scene.ats_status, -ESHUTDOWN);
	assert_true(tern_list_empty(&peer->records));
	assert_int_equal(peer->arrival_count, 0);
	scene_undisturbed(&t.scene, 1);
	target_fini(&t);
}

/* A program that says goodbye does not wait for bytes that the peer wants to move, and then
 * neither sends nor reads. */
static void test_a_goodbye_does_not_wait_for_moves_of_the_peer(
	const struct instance *instance)
{
	unsigned char capability[TERN_CAPABILITY_BYTES];
	struct tern_window *window;
	struct tern_req req = {0};
	struct tern_header h;
	struct tern_buf room;
	struct target t;

	for (unsigned get = 0; get < 2; get++) {
		target_init(&t, instance, TERN_WINDOW_READ);
		room = box_take(&t.box, SLAB, 1 << 20);
		assert_int_equal(tern_window_new(t.scene.meet->ends[B].ctx, &room,
					 TERN_WINDOW_READ | TERN_WINDOW_WRITE, &window),
			0);
		tern_window_describe(window, &t.desc);
		stranger_comes(&t.scene);
		h = move_message(&t, capability);
		h.flags = get ? TERN_FLAG_RECV : 0;
		h.bytes = room.bytes;
		stranger_says(&t.scene, &h);
		SCENE_PUMP(&t.scene, t.scene.caller->windows.served_count == 1);
		tern_peer_close(t.scene.caller);
		SCENE_PUMP(&t.scene, t.scene.fin_seq);
		assert_int_equal(t.scene.caller->windows.served_count, 1);
		tern_peer_free(t.scene.caller);
		assert_int_equal(tern_window_close(window, &req, TERN_NEVER), 0);
		SCENE_PUMP(&t.scene, tern_test(&req) == 0);
		target_fini(&t);
	}
}

static void test_who_moves_without_end_is_cut(const struct instance *instance)
{
	unsigned char capability[TERN_CAPABILITY_BYTES];
	struct tern_header h;
	struct target t;

	target_init(&t, instance, TERN_WINDOW_READ | TERN_WINDOW_WRITE);
	stranger_comes(&t.scene);
	h = move_message(&t, capability);
	for (unsigned n = 0; n < TERN_MOVES_MAX; n++)
		stranger_says(&t.scene, &h);
	SCENE_PUMP(&t.scene, t.scene.caller->windows.served_count == TERN_MOVES_MAX);
	scene_undisturbed(&t.scene, 1);
	scene_protocol_error(&t.scene, &h);
	target_fini(&t);
}

static void test_a_closed_window_ends_although_a_peer_never_sends_its_bytes(
	const struct instance *instance)
{
	unsigned char capability[TERN_CAPABILITY_BYTES];
	struct tern_req req = {0};
	struct tern_header h;
	struct target t;

	target_init(&t, instance, TERN_WINDOW_WRITE);
	stranger_comes(&t.scene);
	h = move_message(&t, capability);
	stranger_says(&t.scene, &h);
	SCENE_PUMP(&t.scene, t.scene.caller->windows.served_count == 1);
	assert_int_equal(tern_window_close(t.window, &req, TERN_NS_PER_MS), 0);
	assert_int_equal(tern_test(&req), -EINPROGRESS);
	SCENE_PUMP(&t.scene, tern_test(&req) == 0);
	assert_true(log_env_has(&t.scene.meet->ends[B].log,
		"has not left a window of 1000 bytes that was closed"));
	SCENE_PUMP(&t.scene, t.scene.down_count);
	assert_int_equal(t.scene.down_status, -ETIMEDOUT);
	assert_int_equal(tern_window_new(t.scene.meet->ends[B].ctx, &t.room,
				 TERN_WINDOW_READ, &t.window),
		0);
	target_fini(&t);
}

/* Puts that a fabric has taken, and has not ended. */
static struct {
	struct tern_fabric_ops ops;
	struct tern_op *taken[TERN_PARTS_MAX + 1];
	unsigned count;
} slow;

static int put_slowly(struct tern_conn *conn, struct tern_op *op, struct tern_mem *mem,
	uint64_t offset, uint64_t bytes, const struct tern_region *remote,
	uint64_t remote_offset)
{
	(void)mem, (void)offset, (void)bytes, (void)remote, (void)remote_offset;
	op->conn = conn;
	slow.taken[slow.count++] = op;
	return 0;
}

static void end_puts(unsigned count)
{
	while (count--) {
		struct tern_op *op = slow.taken[--slow.count];

		op->done(op, 0);
	}
}

/* The answer to a READ may be sent before the fabric has ended its put, so a peer that has
 * 64 unanswered messages may have more of them at B. */
static void test_a_peer_may_go_on_when_it_was_answered(const struct instance *instance)
{
	const struct tern_header fence = {.type = TERN_MSG_WINDOW_FENCE, .src = 1};
	struct tern_header read = {.type = TERN_MSG_WINDOW_READ,
		.flags = TERN_FLAG_REGION,
		.bytes = 8,
		.src = 1};
	const struct tern_fabric_ops *ops;
	unsigned before, turns = 0;
	struct tern_peer *peer;
	struct tern_port *port;
	struct target t;

	target_init(&t, instance, TERN_WINDOW_READ);
	stranger_comes(&t.scene);
	stranger_opens(&t);
	if (!(tern_peer_caps(t.scene.caller) & TERN_CAP_PUT)) {
		stranger_leaves(&t);
		target_fini(&t);
		print_message("skipped: the fabric cannot put\n");
		skip();
	}
	before = t.heard_count;
	read.key = t.desc.id;
	peer = t.scene.caller;
	port = tern_peer_conn(peer)->port;
	ops = port->ops;
	slow.ops = *ops;
	slow.ops.put = put_slowly;
	slow.count = 0;
	port->ops = &slow.ops;
	for (unsigned i = 0; i < TERN_PARTS_MAX; i++)
		stranger_says(&t.scene, &read);
	SCENE_PUMP(&t.scene, t.heard_count >= before + TERN_CONN_PUTS && turns++ > 20);
	/* Not more puts than those of a connection's sends are in flight at a time. */
	assert_int_equal(slow.count, TERN_CONN_PUTS);
	assert_int_equal(t.heard_count, before + TERN_CONN_PUTS);
	assert_int_equal(peer->windows.answered_count, TERN_CONN_PUTS);
	/* A FENCE does not wait for the puts of others. */
	stranger_says(&t.scene, &fence);
	SCENE_PUMP(&t.scene, t.heard_count == before + TERN_CONN_PUTS + 1);
	for (unsigned i = 0; i < TERN_CONN_PUTS; i++)
		stranger_says(&t.scene, &read);
	SCENE_PUMP(&t.scene, peer->windows.job_count == TERN_PARTS_MAX + TERN_CONN_PUTS);
	assert_int_equal(t.scene.down_count, 0);
	SCENE_PUMP(&t.scene, (end_puts(slow.count), peer->windows.job_count == 0));
	SCENE_PUMP(
		&t.scene, t.heard_count == before + TERN_PARTS_MAX + TERN_CONN_PUTS + 1);
	port->ops = ops;
	stranger_leaves(&t);
	target_fini(&t);
}

/* The stranger is the owner, and B has given its handle back, but has not said so yet. */
static void test_the_end_of_a_window_reaches_a_handle_without_users(
	const struct instance *instance)
{
	struct tern_window_desc desc = {
		.incarnation = 5, .id = 6, .capability = {7, 8}, .bytes = 9};
	struct tern_header opened = {.type = TERN_MSG_WINDOW_OPENED, .bytes = 9};
	struct tern_remote *remote, *again;
	struct tern_peer *peer;
	struct target t;

	target_init(&t, instance, TERN_WINDOW_READ);
	stranger_comes(&t.scene);
	peer = t.scene.caller;
	opened.channel = tern_peer_caps(peer) & TERN_CAP_PUT ? TERN_WINDOW_READ
							     : TERN_WINDOW_WRITE;
	desc.access = opened.channel;
	assert_int_equal(tern_remote_open(peer, &desc, &remote), 0);
	SCENE_PUMP(&t.scene, t.heard.type == TERN_MSG_WINDOW_OPEN);
	opened.dst = t.heard.src;
	stranger_says(&t.scene, &opened);
	SCENE_PUMP(&t.scene, remote->state == TERN_REMOTE_OPEN);
	peer->pump.running = true; /* as if there were no room */
	assert_int_equal(tern_remote_close(remote), 0);
	stranger_says(&t.scene,
		&(struct tern_header){.type = TERN_MSG_WINDOW_CLOSE, .key = desc.id});
	SCENE_PUMP(&t.scene, remote->state == TERN_REMOTE_OVER);
	/* It is another handle, of which the stranger has heard nothing. */
	assert_int_equal(tern_remote_open(peer, &desc, &again), 0);
	assert_ptr_not_equal(again, remote);
	peer->pump.running = false;
	t.heard_count = 0;
	tern_peer_pump(peer);
	SCENE_PUMP(&t.scene, t.heard_count == 2);
	assert_int_equal(t.heard.type, TERN_MSG_WINDOW_OPEN); /* behind LEFT */
	assert_int_equal(tern_remote_close(again), 0);
	target_fini(&t);
}

static unsigned count_lines(const struct log_env *log, const char *text)
{
	unsigned count = 0;

	for (unsigned i = 0; i < TERN_MIN(log->count, TERN_ARRAY_SIZE(log->lines)); i++)
		count += strstr(log->lines[i], text) != NULL;
	return count;
}

static void test_notifications_that_nobody_wants_are_one_line(
	const struct instance *instance)
{
	struct log_env *log;
	struct target t;

	target_init(&t, instance, TERN_WINDOW_READ);
	stranger_comes(&t.scene);
	log = &t.scene.meet->ends[B].log;
	log->count = 0;
	for (unsigned i = 0; i < 6; i++)
		stranger_says(&t.scene,
			&(struct tern_header){.type = TERN_MSG_NOTIFY, .bytes = 100 + i});
	scene_undisturbed(&t.scene, 1);
	SCENE_PUMP(&t.scene, t.scene.caller->stream.rx_seq == t.scene.seq);
	assert_int_equal(count_lines(log, "notifications are dropped, the first one of "
					  "100 bytes"),
		1);
	assert_int_equal(count_lines(log, "dropped"), 1);
	target_fini(&t);
}

const struct conformance_test meet_window_strangers[] = {
	CONFORMANCE(
		test_wrong_messages_about_windows_end_their_session_only, NEEDS_SLEEP),
	CONFORMANCE(test_only_who_has_opened_a_window_may_use_it, NEEDS_SLEEP),
	CONFORMANCE(test_who_asks_without_end_is_cut, NEEDS_SLEEP),
	CONFORMANCE(test_a_closed_window_ends_although_a_peer_never_takes_its_bytes,
		NEEDS_SLEEP),
	CONFORMANCE(test_a_move_is_checked_by_the_owner, NEEDS_SLEEP),
	CONFORMANCE(test_a_half_without_a_move_is_dropped, NEEDS_SLEEP),
	CONFORMANCE(test_a_goodbye_does_not_wait_for_moves_of_the_peer, NEEDS_SLEEP),
	CONFORMANCE(test_who_moves_without_end_is_cut, NEEDS_SLEEP),
	CONFORMANCE(test_a_closed_window_ends_although_a_peer_never_sends_its_bytes,
		NEEDS_SLEEP),
	CONFORMANCE(test_a_peer_may_go_on_when_it_was_answered, NEEDS_SLEEP | NEEDS_PUT),
	CONFORMANCE(test_the_end_of_a_window_reaches_a_handle_without_users, NEEDS_SLEEP),
	CONFORMANCE(test_notifications_that_nobody_wants_are_one_line, NEEDS_SLEEP),
	{0},
};
