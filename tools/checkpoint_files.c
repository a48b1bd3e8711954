/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and reads snapshots for the actions of `tern checkpoint`. */
#include "tools/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/escape.h"
#include "tools/host_file.h"

/* ---- finding snapshots ---- */

static int find_in(const char *path, struct checkpoint_found *out, struct message *error)
{
	int r = snapshots_list(path, &out->in);

	if (r < 0)
		return options_refuse(error, "%.300s: %s", path, strerror(-r));
	out->directory = strdup(path);
	return out->directory ? 0 : options_refuse(error, "%.300s: no memory", path);
}

static int find_one(const char *path, struct tern_snapshot_id id,
	struct checkpoint_found *out, struct message *error)
{
	const char *slash = strrchr(path, '/');

	/* "/step-....json" is in the directory "/". */
	out->directory = slash ? strndup(path, (size_t)(slash - path) + (slash == path))
			       : strdup(".");
	out->in.ids = malloc(sizeof(id));
	if (!out->directory || !out->in.ids)
		return options_refuse(error, "%.300s: no memory", path);
	*out->in.ids = id;
	out->in.count = 1;
	return 0;
}

int checkpoint_find(const char *path, struct checkpoint_found *out, struct message *error)
{
	struct tern_snapshot_id id;
	struct stat st;
	int r;

	*out = (struct checkpoint_found){0};
	if (stat(path, &st) < 0)
		return options_refuse(error,
			"%.300s: %s: expected a directory of snapshots, or a manifest, "
			"step-....json",
			path, strerror(errno));
	if (S_ISDIR(st.st_mode))
		r = find_in(path, out, error);
	else if (snapshots_is_manifest(path, &id))
		r = find_one(path, id, out, error);
	else
		r = options_refuse(error,
			"%.300s: expected a directory of snapshots, or a manifest, "
			"step-....json",
			path);
	if (r < 0)
		checkpoint_found_free(out);
	return r;
}

void checkpoint_found_free(struct checkpoint_found *found)
{
	free(found->directory);
	free(found->in.ids);
	*found = (struct checkpoint_found){0};
}

/* ---- manifests ---- */

struct contents {
	void *data; /* from malloc() */
	size_t bytes;
};

static int read_file(const struct checkpoint *c, const char *directory, const char *name,
	struct contents *out)
{
	char *path = tern_snapshot_path(directory, name);
	int r;

	*out = (struct contents){NULL, 0};
	if (!path)
		return -ENOMEM;
	r = host_file_read(path, c->stop, c->stop_arg, &out->data, &out->bytes);
	free(path);
	return r;
}

static int decode(const struct contents *file, struct tern_snapshot_id id,
	struct tern_snapshot *out, struct tern_ps_text *why)
{
	int r = tern_snapshot_decode(file->data, file->bytes, out, why);

	if (r < 0 || tern_snapshot_compare(out->id, id) == 0)
		return r;
	snprintf(why->text, sizeof(why->text), "it is the manifest of another one, %s",
		tern_snapshot_short_name(out->id).text);
	tern_snapshot_fini(out);
	return -EINVAL;
}

int checkpoint_read(const char *directory, struct tern_snapshot_id id,
	struct checkpoint *out, struct tern_ps_text *why)
{
	struct tern_snapshot_name name = tern_snapshot_manifest_name(id);
	struct tern_ps_text text = {""};
	struct contents file;
	int r;

	*out = (struct checkpoint){0};
	r = read_file(out, directory, name.text, &file);
	if (r == 0)
		r = decode(&file, id, &out->snapshot, &text);
	free(file.data);
	if (r == 0)
		r = tern_plan_init(&out->plan, &out->snapshot.job);
	if (r == 0) {
		out->directory = strdup(directory);
		r = out->directory ? 0 : -ENOMEM;
	}
	if (r < 0) {
		checkpoint_close(out);
		snprintf(why->text, sizeof(why->text), "%s: %.300s", name.text,
			*text.text ? TERN_SHOWN(text.text) : strerror(-r));
	}
	return r;
}

bool checkpoint_is_gone(const char *directory, struct tern_snapshot_id id)
{
	char *path = tern_snapshot_path(directory, tern_snapshot_manifest_name(id).text);
	struct stat st;
	bool gone = path && stat(path, &st) < 0 && errno == ENOENT;

	free(path);
	return gone;
}

int checkpoint_open(const char *path, struct checkpoint *out, struct message *error)
{
	struct checkpoint_found found;
	struct tern_ps_text why;
	int r = checkpoint_find(path, &found, error);

	if (r < 0)
		return r;
	if (found.in.count == 0)
		r = options_refuse(error,
			"%.300s: no complete snapshot is there: expected the directory "
			"that a job has as --snapshots, or a manifest, step-....json",
			path);
	else if (checkpoint_read(found.directory, found.in.ids[found.in.count - 1], out,
			 &why) < 0)
		r = options_refuse(error, "%.150s: %.340s", found.directory, why.text);
	checkpoint_found_free(&found);
	return r;
}

void checkpoint_close(struct checkpoint *c)
{
	free(c->directory);
	tern_snapshot_fini(&c->snapshot);
	tern_plan_fini(&c->plan);
	*c = (struct checkpoint){0};
}

uint64_t checkpoint_bytes(const struct tern_snapshot *snapshot)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < snapshot->part_count; i++)
		bytes += snapshot->parts[i].bytes;
	return bytes;
}

/* ---- parts ---- */

static int check_part(const struct checkpoint *c, uint32_t part,
	const struct contents *file, struct checkpoint_part *out,
	struct tern_ps_text *why)
{
	const struct tern_snapshot *s = &c->snapshot;
	int r;

	if (!tern_snapshot_check_part(s, part, file->data, file->bytes, why))
		return -EINVAL;
	r = tern_safetensors_parse(tern_snapshot_part_name(s->id, part).text, file->data,
		file->bytes, &out->file, why);
	if (r == 0 && !tern_snapshot_check_vectors(s, &c->plan, part, out->file, why))
		r = -EINVAL;
	return r;
}

int checkpoint_read_part(const struct checkpoint *c, uint32_t part,
	struct checkpoint_part *out, struct tern_ps_text *why)
{
	struct tern_snapshot_name name = tern_snapshot_part_name(c->snapshot.id, part);
	struct contents file;
	int r = read_file(c, c->directory, name.text, &file);

	*out = (struct checkpoint_part){.data = file.data};
	*why = (struct tern_ps_text){""};
	if (r == 0)
		r = check_part(c, part, &file, out, why);
	if (r < 0 && !*why->text)
		snprintf(why->text, sizeof(why->text), "%s: %s", name.text, strerror(-r));
	if (r < 0)
		checkpoint_part_free(out);
	return r;
}

void checkpoint_part_free(struct checkpoint_part *part)
{
	tern_safetensors_free(part->file);
	free(part->data);
	*part = (struct checkpoint_part){0};
}

/* Copies the parameters of a part to their places in the flat vector. */
static int add_part(
	const struct checkpoint *c, uint32_t part, float *flat, struct tern_ps_text *why)
{
	const struct tern_snapshot_part *p = &c->snapshot.parts[part];
	struct checkpoint_part read;
	int r = checkpoint_read_part(c, part, &read, why);

	for (uint32_t i = 0; r == 0 && i < p->chunk_count; i++) {
		const struct tern_chunk *chunk = &c->plan.chunks[p->chunks[i]];

		tern_snapshot_copy_vector(flat + chunk->first,
			tern_snapshot_vector(
				read.file, "w", p->chunks[i], TERN_F32, chunk->count));
	}
	if (r == 0)
		checkpoint_part_free(&read);
	return r;
}

float *checkpoint_read_params(const struct checkpoint *c, struct message *error)
{
	float *flat = calloc(c->plan.element_count, sizeof(*flat));
	struct tern_ps_text why = {"no memory for the parameters"};
	int r = flat ? 0 : -ENOMEM;

	for (uint32_t i = 0; r == 0 && i < c->snapshot.part_count; i++)
		r = add_part(c, i, flat, &why);
	if (r == 0)
		return flat;
	options_refuse(error, "%.150s: %.340s", c->directory, why.text);
	free(flat);
	return NULL;
}

/* ---- shapes ---- */

struct checkpoint_shape checkpoint_shape_text(const struct tern_shape *shape)
{
	struct checkpoint_shape out;
	size_t size = sizeof(out.text);
	size_t n = (size_t)snprintf(out.text, size, "%s[", tern_dtype_name(shape->dtype));

	for (uint32_t i = 0; i < shape->rank; i++)
		n += (size_t)snprintf(out.text + n, size - n, "%s%llu", i ? ", " : "",
			(unsigned long long)shape->dims[i]);
	snprintf(out.text + n, size - n, "]");
	return out;
}
