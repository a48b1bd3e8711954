/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated disks. What tools/host_file.c promises of a real disk holds for these: a file
 * that is written is the old one or the new one at any time. The temporary file of a write
 * that a crash cut short stays, torn.
 */
#include "transport/sim/disk.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PATH_BYTES 256u

struct file {
	struct tern_list node;
	char path[PATH_BYTES];
	void *data;
	size_t bytes;
};

struct tern_sim_disk *tern_sim_disk_make(void)
{
	struct tern_sim_disk *disk = calloc(1, sizeof(*disk));

	tern_assert(disk);
	tern_list_init(&disk->node);
	tern_list_init(&disk->files);
	return disk;
}

static struct file *find(const struct tern_sim_disk *disk, const char *path)
{
	tern_list_for_each (n, &disk->files) {
		struct file *f = tern_list_entry(n, struct file, node);

		if (strcmp(f->path, path) == 0)
			return f;
	}
	return NULL;
}

static void forget(struct tern_sim_disk *disk, struct file *f)
{
	tern_list_remove(&f->node);
	disk->change_count++;
	disk->used_bytes -= f->bytes;
	free(f->data);
	free(f);
}

void tern_sim_disk_destroy(struct tern_sim_disk *disk)
{
	while (!tern_list_empty(&disk->files))
		forget(disk, tern_list_first(&disk->files, struct file, node));
	free(disk);
}

struct tern_sim_disk_opts *tern_sim_disk_opts(struct tern_sim_disk *disk)
{
	return &disk->opts;
}

static struct file *make(struct tern_sim_disk *disk, const char *path, size_t bytes)
{
	struct file *f = find(disk, path);

	if (f)
		forget(disk, f);
	f = calloc(1, sizeof(*f));
	tern_assert(f && strlen(path) < sizeof(f->path));
	strcpy(f->path, path);
	f->data = malloc(bytes + 1);
	tern_assert(f->data);
	f->bytes = bytes;
	disk->used_bytes += bytes;
	disk->change_count++;
	tern_list_push(&disk->files, &f->node);
	return f;
}

void tern_sim_disk_put(
	struct tern_sim_disk *disk, const char *path, const void *data, size_t bytes)
{
	memcpy(make(disk, path, bytes)->data, data, bytes);
}

const void *tern_sim_disk_get(
	const struct tern_sim_disk *disk, const char *path, size_t *bytes)
{
	const struct file *f = find(disk, path);

	if (!f)
		return NULL;
	*bytes = f->bytes;
	return f->data;
}

void tern_sim_disk_remove(struct tern_sim_disk *disk, const char *path)
{
	struct file *f = find(disk, path);

	if (f)
		forget(disk, f);
}

/* ---- operations ---- */

/* The name of the temporary file, as tools/host_file.c has it, but not random: of two
 * writers of one path at the same time, the second takes the first one's file. */
static void name_aside(const char *path, char aside[PATH_BYTES])
{
	const char *slash = strrchr(path, '/');
	int dir_bytes = slash ? (int)(slash + 1 - path) : 0;

	if (snprintf(aside, PATH_BYTES, "%.*s.%s.new", dir_bytes, path,
		    path + dir_bytes) >= (int)PATH_BYTES)
		tern_never("a long name of a file");
}

static size_t bytes_of(const struct tern_file_op *op)
{
	size_t bytes = 0;

	for (int i = 0; i < op->part_count; i++)
		bytes += op->parts[i].iov_len;
	return bytes;
}

/* Writes the first `bytes` of the operation's contents to a file. */
static void write_file(struct tern_sim_disk *disk, const char *path,
	const struct tern_file_op *op, size_t bytes)
{
	struct file *f = make(disk, path, bytes);
	size_t at = 0;

	for (int i = 0; i < op->part_count && at < bytes; i++) {
		size_t n = TERN_MIN(op->parts[i].iov_len, bytes - at);

		memcpy((char *)f->data + at, op->parts[i].iov_base, n);
		at += n;
	}
}

/* The directory's length if `path` is a file in it; 0: it is not. */
static size_t is_in(const char *path, const char *dir)
{
	size_t bytes = strlen(dir);

	return strncmp(path, dir, bytes) == 0 && path[bytes] == '/' &&
			       !strchr(path + bytes + 1, '/')
		       ? bytes
		       : 0;
}

static void list(const struct tern_sim_disk *disk, struct tern_file_op *op)
{
	char *at;

	op->bytes = 0;
	tern_list_for_each (n, &disk->files) {
		const struct file *f = tern_list_entry(n, struct file, node);
		size_t dir = is_in(f->path, op->path);

		op->bytes += dir ? strlen(f->path + dir + 1) + 1 : 0;
	}
	op->data = at = malloc(op->bytes + 1);
	tern_assert(at);
	tern_list_for_each (n, &disk->files) {
		const struct file *f = tern_list_entry(n, struct file, node);
		size_t dir = is_in(f->path, op->path);

		if (dir)
			at = stpcpy(at, f->path + dir + 1) + 1;
	}
}

static int read_file(const struct tern_sim_disk *disk, struct tern_file_op *op)
{
	const struct file *f = find(disk, op->path);

	if (!f)
		return -ENOENT;
	op->data = malloc(f->bytes + 1);
	tern_assert(op->data);
	memcpy(op->data, f->data, f->bytes);
	((char *)op->data)[f->bytes] = '\0';
	op->bytes = f->bytes;
	return 0;
}

static int read_piece(const struct tern_sim_disk *disk, struct tern_file_op *op)
{
	const struct file *f = find(disk, op->path);
	size_t at;

	if (!f)
		return -ENOENT;
	at = TERN_MIN(op->at, f->bytes);
	op->all = f->bytes;
	op->bytes = TERN_MIN(op->most, f->bytes - at);
	op->data = malloc(op->bytes + 1);
	tern_assert(op->data);
	memcpy(op->data, (char *)f->data + at, op->bytes);
	((char *)op->data)[op->bytes] = '\0';
	return 0;
}

static int write_piece(struct tern_sim_disk *disk, const struct tern_file_op *op)
{
	size_t more = bytes_of(op);
	struct file *f = find(disk, op->path);
	char *data, *at;

	if (op->at == 0 && f)
		return -EEXIST;
	if (op->at && (!f || f->bytes != op->at))
		return -ENOENT;
	data = malloc(op->at + more + 1);
	tern_assert(data);
	if (f)
		memcpy(data, f->data, op->at);
	at = data + op->at;
	for (int i = 0; i < op->part_count; i++)
		at = mempcpy(at, op->parts[i].iov_base, op->parts[i].iov_len);
	tern_sim_disk_put(disk, op->path, data, op->at + more);
	free(data);
	return 0;
}

static int publish(struct tern_sim_disk *disk, const struct tern_file_op *op)
{
	const struct file *f = find(disk, op->path);

	if (!f)
		return -ENOENT;
	tern_sim_disk_put(disk, op->to, f->data, f->bytes);
	tern_sim_disk_remove(disk, op->path);
	return 0;
}

static bool is_full(const struct tern_sim_disk *disk, size_t more)
{
	return disk->opts.capacity_bytes &&
	       disk->used_bytes + more > disk->opts.capacity_bytes;
}

bool tern_sim_disk_begin(
	struct tern_sim_disk *disk, struct tern_file_op *op, struct tern_rng *rng)
{
	char aside[PATH_BYTES];
	size_t bytes = bytes_of(op);

	op->status = 0;
	if (disk->opts.fail_permille &&
		tern_rng_below(rng, 1000) < disk->opts.fail_permille)
		op->status = -EIO;
	else if ((op->kind == TERN_FILE_WRITE || op->kind == TERN_FILE_WRITE_PIECE) &&
		 is_full(disk, bytes))
		op->status = -ENOSPC;
	else if (op->kind == TERN_FILE_WRITE) {
		name_aside(op->path, aside);
		write_file(disk, aside, op, tern_rng_below(rng, bytes + 1));
	}
	return op->status < 0;
}

void tern_sim_disk_end(struct tern_sim_disk *disk, struct tern_file_op *op)
{
	char aside[PATH_BYTES];

	switch (op->kind) {
	case TERN_FILE_READ:
		op->status = read_file(disk, op);
		break;
	case TERN_FILE_WRITE:
		name_aside(op->path, aside);
		tern_sim_disk_remove(disk, aside);
		write_file(disk, op->path, op, bytes_of(op));
		break;
	case TERN_FILE_LIST:
		list(disk, op);
		break;
	case TERN_FILE_REMOVE:
		op->status = find(disk, op->path) ? 0 : -ENOENT;
		tern_sim_disk_remove(disk, op->path);
		break;
	case TERN_FILE_READ_PIECE:
		op->status = read_piece(disk, op);
		break;
	case TERN_FILE_WRITE_PIECE:
		op->status = write_piece(disk, op);
		break;
	case TERN_FILE_PUBLISH:
		op->status = publish(disk, op);
		break;
	}
}
