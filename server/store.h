/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots of a job whose servers share no directory. Server 0 has the directory; each other server
 * is started with the address of server 0 (opts.snapshots.via), and keeps no file.
 *
 *     store.c        server 0: reads the snapshot that it begins with, for another server
 *     store_part.c   server 0: writes the part of another server
 *     remote.c       another server: asks for the snapshot and reads it, before the steps
 *     remote_part.c  another server: sends its part
 *
 * A snapshot is read by a server that has no job yet, and so is a guest of server 0:
 *
 *     another server              server 0
 *     "begins"              -->
 *                           <--   "begins", with the step and number of the snapshot; "again"
 *     "read", with a part and a place in it
 *                           -->
 *                           <--   "piece", with its size and that of the file; and the tensor (u8).
 *                                 Or "piece" with "text": why it cannot be read
 *
 * A part is sent over the connection between two servers of a job:
 *
 *     "part", with size and digest
 *                           -->
 *                           <--   "part" with "go"
 *     tensors (u8)          -->
 *                           <--   "part": it is on disk; or with "text" why it is not
 *
 * The receiver of pieces has memory for two of them, and takes the next one when the disk has the
 * one before. Nothing else waits for pieces: the steps go on meanwhile.
 */
#ifndef TERN_SERVER_STORE_H
#define TERN_SERVER_STORE_H

#include "server/snapshot_state.h"

/* The largest piece of a file, in bytes. */
#define STORE_PIECE_MOST (1u << 20)
/* The largest manifest that is read. The job in it has at most TERN_PS_JOB_TEXT_MAX bytes. */
#define STORE_MANIFEST_MOST (256ull << 20)

/* store.c */
void store_on_begins(struct server_peer *guest, const json_t *message);
void store_on_read(struct server_peer *guest, const json_t *message);
/* True while a piece for this guest is read from the disk. */
bool store_reads(const struct server_peer *guest);
void store_left(const struct server_peer *guest); /* the guest is freed */
void store_fini(struct tern_server *s);

/* store_part.c */
void store_on_part(struct server_peer *server, const json_t *message);
/* True unless the server has sent a part of this snapshot that is not on disk, or not as the server
 * reports. */
bool store_has(const struct tern_server *s, uint32_t server,
	const struct snapshot_report *report);
void store_parts_fini(struct snapshots *n);

/* remote.c */
/* Asks server 0 with which snapshot it begins. resume_told() is called later. -ENOMEM. */
int remote_ask(struct tern_server *s);
/* Reads a file of that snapshot: a part of `bytes` bytes, or TERN_SNAPSHOT_MANIFEST. resume_read()
 * is called later. */
void remote_read(struct tern_server *s, uint32_t part, uint64_t bytes);
/* A worker joins, and says where server 0 is. That may have moved since this server was started. */
void remote_hear_zero(struct tern_server *s, const json_t *join);
/* Nothing is to be read now: hangs up, and remote_read() connects again. A server that waits for its job
 * would only be a silent guest. */
void remote_rest(struct tern_server *s);
/* The address of server 0 that was tried last. */
const char *remote_address(const struct tern_server *s);
void remote_end(struct tern_server *s); /* the server has ended */
void remote_fini(struct tern_server *s);

/* remote_part.c */
/* Sends the part that is in n->iov to server 0. snapshot_kept() is called later. -ENOMEM. */
int remote_send(struct tern_server *s);
void remote_on_part(struct server_peer *zero, const json_t *message);
void remote_part_fini(struct snapshots *n);

/* resume.c */
void resume_told(struct tern_server *s, struct tern_snapshot_id id);
/* A file is here; `data` has `bytes` bytes from malloc(), which the callee frees. */
void resume_read(struct tern_server *s, uint32_t part, void *data, size_t bytes);
/* Server 0 cannot be read from: ends this server, which begins anew if the job goes back. */
void resume_unread(struct tern_server *s, int status, const char *why);
/* The snapshot with which this server begins; NULL: none. */
const struct tern_snapshot *resume_found(const struct tern_server *s);
/* The path of a part of it, or of TERN_SNAPSHOT_MANIFEST, in memory from malloc(); NULL: no memory. */
char *resume_path(const struct tern_server *s, uint32_t part);

/* snapshot.c */
/* Server 0 has this server's part (why NULL), or says why it has not. */
void snapshot_kept(struct tern_server *s, const char *why);

#endif
