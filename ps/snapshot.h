/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots: what a job's servers hold at the end of one step, or in async mode after a certain
 * number of steps of each worker, as files in a directory that all servers share. A snapshot is
 * one manifest and one part for each server:
 *
 *     step-000000000200-1f2e3d4c.json                  the manifest
 *     step-000000000200-1f2e3d4c.0.safetensors         the part of server 0
 *     step-000000000200-1f2e3d4c.1.safetensors
 *
 * The number behind the step is random, so no snapshot ever writes into the files of another.
 * The manifest is written when all parts are on disk: a snapshot with a manifest is complete.
 * The manifest has the job, the slots that were left out of its steps ("omitted", if there are any:
 * ps/omitted.h), and the size, the digest and the chunks of each part. So a part
 * that was cut or changed since is noticed, and the snapshot can be loaded into any number of
 * servers. It also has the newest blob of the job (ps/blob.h) of a step up to its own, if
 * there is one.
 *
 * A part is a safetensors file. For chunk c it has "w.c", the parameters; if the optimizer
 * keeps them, "m.c" and "v.c"; and if a slot has not pushed all tensors (server/skip.c),
 * "skipped.c": for each tensor of the chunk, how many steps have not updated it. In async mode it has
 * "applied.c": for each worker, how many of its steps were applied to the chunk. The manifest has for
 * each worker the number of steps that all chunks have, and the number of steps that some chunk has.
 * These two numbers differ only if a step is torn: a worker was lost while it sent the gradient of that
 * step, so some chunks have it, and others have not. The step of the snapshot is the sum of the numbers
 * of steps that some chunk has.
 */
#ifndef TERN_PS_SNAPSHOT_H
#define TERN_PS_SNAPSHOT_H

#include "base/env.h"
#include "ps/blob.h"
#include "ps/job.h"
#include "ps/omitted.h"
#include "ps/plan.h"
#include "ps/safetensors.h"

struct tern_snapshot_id { /* of no snapshot: step 0 */
	uint64_t step;
	uint32_t number;
};

/* Longest name of a file, with its NUL: 20 digits of a step, and 3 of a part. */
#define TERN_SNAPSHOT_NAME_BYTES 56u

struct tern_snapshot_name {
	char text[TERN_SNAPSHOT_NAME_BYTES];
};

/* Names of files, without the directory. */
struct tern_snapshot_name tern_snapshot_manifest_name(struct tern_snapshot_id id);
struct tern_snapshot_name tern_snapshot_part_name(
	struct tern_snapshot_id id, uint32_t part);
/* Without what follows the number: what users call a snapshot. */
struct tern_snapshot_name tern_snapshot_short_name(struct tern_snapshot_id id);

/* A part's `part` that names the manifest. */
#define TERN_SNAPSHOT_MANIFEST UINT32_MAX

/* Reads the name of a file. False: it is no file of a snapshot. */
bool tern_snapshot_name_read(
	const char *name, struct tern_snapshot_id *id, uint32_t *part);

/* True for the temporary file of a file of a snapshot, which a process that was killed has left
 * (tools/host_file.c). */
bool tern_snapshot_is_torn(const char *name);

/* The older one first: by step, then by number. */
int tern_snapshot_compare(struct tern_snapshot_id a, struct tern_snapshot_id b);

struct tern_snapshot_part {
	uint64_t bytes, digest; /* of the file: base/digest.h */
	uint32_t *chunks;       /* numbers, ascending */
	uint32_t chunk_count;
};

struct tern_snapshot {
	struct tern_snapshot_id id;
	struct tern_ps_job job;
	struct tern_omitted omitted; /* slots that were left out of its steps */
	struct tern_snapshot_part *parts;
	uint32_t part_count;
	/* async: by worker, how many of its steps all chunks have, and how many some chunk has. Sync
	 * mode: NULL. */
	uint64_t *least, *most;
	struct tern_blob blob; /* step 0: there is none */
};

/* The contents of the manifest of a snapshot whose parts have the chunks of `plan`, by server, and
 * their sizes and digests, as text from malloc(). Of the slots that were left out those of the
 * snapshot's steps are written. Nothing of the snapshot is changed or kept. NULL: no memory. */
char *tern_snapshot_encode(
	const struct tern_snapshot *snapshot, const struct tern_plan *plan);

/* Reads a manifest, and checks that each chunk of the job is in one part. -EINVAL with the
 * reason in why->text; -ENOMEM. Freed with tern_snapshot_fini(). */
int tern_snapshot_decode(const char *text, size_t bytes, struct tern_snapshot *out,
	struct tern_ps_text *why);
void tern_snapshot_fini(struct tern_snapshot *snapshot);

/* Checks a part against its entry in the manifest. False: why->text says what is wrong. */
bool tern_snapshot_check_part(const struct tern_snapshot *snapshot, uint32_t part,
	const void *data, size_t bytes, struct tern_ps_text *why);

/* The vector `what` ("w", "m", "v", "skipped" or "applied") of a chunk in a part. NULL: there is
 * none of this type and number of elements. */
const struct tern_safetensor *tern_snapshot_vector(const struct tern_safetensors *file,
	const char *what, uint32_t chunk, enum tern_dtype dtype, uint64_t count);
/* Copies the elements of a vector, in this machine's byte order. */
void tern_snapshot_copy_vector(void *to, const struct tern_safetensor *vector);

/* Checks that a part has all vectors of its chunks, each with its type and size, and in async mode
 * the steps of the manifest. `plan` is
 * that of the snapshot's job. False: why->text says what is wrong. */
bool tern_snapshot_check_vectors(const struct tern_snapshot *snapshot,
	const struct tern_plan *plan, uint32_t part, const struct tern_safetensors *file,
	struct tern_ps_text *why);

/* True if the snapshot cannot go on as `job`, which `who` describes; why->text says in which
 * property they differ. Workers (not in async mode, where the steps are divided among them),
 * servers, the number of steps (unless it is too low) and the ways in which tensors are started may
 * be others; so may the arithmetic, but then the bytes
 * of the result are others, too. */
bool tern_snapshot_differs(const struct tern_snapshot *snapshot,
	const struct tern_ps_job *job, const char *who, struct tern_ps_text *why);

/*
 * Finds the newest snapshot of a directory that is complete and whole: reads its manifest and
 * all parts. An older one is tried if a file is missing or is not what was written; any
 * other error ends the search. So all servers that look into the same directory find the same
 * one.
 */
struct tern_snapshot_search {
	/* Set by the caller, who keeps the structure, `env` and `path` until done() was
	 * called. */
	struct tern_env *env;
	/* A directory; or the manifest of the snapshot that is wanted, and no other. */
	const char *path;
	/* A snapshot is passed over, and why. May be NULL. */
	void (*passed_over)(struct tern_snapshot_search *search, const char *text);
	/* 0: `found` is the snapshot, which the caller frees, in `directory`; -ENOENT: there is
	 * none; or another error. `why` is one line. Not called before
	 * tern_snapshot_search_start() has returned. */
	void (*done)(struct tern_snapshot_search *search, int status);
	struct tern_snapshot found;
	char *directory; /* freed with tern_snapshot_search_fini() */
	struct tern_ps_text why;
	/* Private. */
	struct tern_snapshot_id *ids; /* complete snapshots, the oldest first */
	size_t id_count; /* those that were not tried; ids[id_count] is being tried */
	uint32_t part;
	char *file_path;
	struct tern_file_op op;
};

/* Errors of tern_env_file(), and -ENOMEM: done() is not called then. */
int tern_snapshot_search_start(struct tern_snapshot_search *search);
/* Frees what the search has used, except `found`. Not while it runs. */
void tern_snapshot_search_fini(struct tern_snapshot_search *search);

/* "directory/name" in memory from malloc(); NULL: no memory. */
char *tern_snapshot_path(const char *directory, const char *name);

/* Reads the names of complete snapshots, the oldest first, from the result of TERN_FILE_LIST,
 * into memory from malloc(). -ENOMEM. */
int tern_snapshot_list(
	const char *names, size_t bytes, struct tern_snapshot_id **ids, size_t *count);

#endif
