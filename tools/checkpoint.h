/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The actions of `tern checkpoint`, and what they share: finding the snapshots
 * (ps/snapshot.h) that a path names, and reading their manifests and parts. A file that
 * was read is never believed: manifests are checked by their digest, and parts by the
 * size and digest in the manifest.
 */
#ifndef TERN_TOOLS_CHECKPOINT_H
#define TERN_TOOLS_CHECKPOINT_H

#include "ps/params_file.h"
#include "ps/snapshot.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/snapshots.h"

struct checkpoint_call { /* a command line */
	const char *const *paths;
	const char *to, *blob; /* --to, --blob; NULL: not given */
	bool overwrite;
	struct output out;
};

/* The actions. Each returns an enum exit_code. */
int checkpoint_list(struct checkpoint_call *call);
int checkpoint_show(struct checkpoint_call *call);
int checkpoint_verify(struct checkpoint_call *call);
int checkpoint_export(struct checkpoint_call *call);
int checkpoint_diff(struct checkpoint_call *call);

/* ---- finding snapshots ---- */

struct checkpoint_found {
	char *directory;
	struct snapshots_found in; /* all of the directory, or the one that was named */
};

/* Finds the snapshots that `path` names: a directory, or a manifest. -EINVAL: `error` has
 * one line. A directory without complete snapshots is no error. */
int checkpoint_find(
	const char *path, struct checkpoint_found *out, struct message *error);
void checkpoint_found_free(struct checkpoint_found *found);

/* ---- reading them ---- */

struct checkpoint {
	char *directory;
	/* Called several times a second while parts are read; true: reading is to end. NULL:
	 * parts are read to their end. */
	bool (*stop)(void *arg);
	void *stop_arg;
	struct tern_snapshot snapshot;
	struct tern_plan plan; /* of the snapshot's job */
};

/* Reads the manifest of the snapshot `id`. After an error why->text says what is wrong,
 * and nothing is to be closed. */
int checkpoint_read(const char *directory, struct tern_snapshot_id id,
	struct checkpoint *out, struct tern_ps_text *why);
/* True if the manifest is gone. A job that runs removes old snapshots, and their
 * manifests first, so what is missing then is no damage. */
bool checkpoint_is_gone(const char *directory, struct tern_snapshot_id id);
/* Reads the manifest at `path`, or the newest one if `path` is a directory. -EINVAL:
 * `error` has one line. */
int checkpoint_open(const char *path, struct checkpoint *out, struct message *error);
void checkpoint_close(struct checkpoint *c);

struct checkpoint_part {
	void *data;
	struct tern_safetensors *file;
};

/* Reads a part and checks all of it. After an error why->text, which begins with the name
 * of the file, says what is wrong, and nothing is to be freed. */
int checkpoint_read_part(const struct checkpoint *c, uint32_t part,
	struct checkpoint_part *out, struct tern_ps_text *why);
void checkpoint_part_free(struct checkpoint_part *part);

/* Reads all parts, and returns the flat vector of the parameters in memory from malloc().
 * NULL: `error` has one line. */
float *checkpoint_read_params(const struct checkpoint *c, struct message *error);

/* Checks that a file of `bytes` can be written at `path`, the value of `option` ("--to").
 * -EINVAL: `error` has one line. A file that is there already is no error. */
int checkpoint_check_target(
	const char *option, const char *path, uint64_t bytes, struct message *error);

/* Writes parameters as a job does at its end (ps/params_file.h), with `more` in the metadata.
 * Replaces a file only when the new one is whole and on the disk. *bytes: of the file. Returns
 * 0 or a negative errno. */
int checkpoint_write_params(const struct tern_ps_job *job, const float *flat,
	const struct tern_safetensors_metadata *more, size_t more_count, const char *path,
	uint64_t *bytes);

/* Bytes of all parts, as the manifest has them. */
uint64_t checkpoint_bytes(const struct tern_snapshot *snapshot);

/* ---- showing them ---- */

/* "f32[2, 3]", at most of TERN_RANK_MAX dimensions. */
struct checkpoint_shape {
	char text[16 + 22 * TERN_RANK_MAX];
};
struct checkpoint_shape checkpoint_shape_text(const struct tern_shape *shape);

#endif
