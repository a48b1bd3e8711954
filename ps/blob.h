/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blob of a job: bytes that its program gives with a step (tern_slot_keep()), and that servers
 * keep beside the parameters. In messages and manifests a blob is {"step":v, "bytes":n, "data":...},
 * with the bytes in base64 (RFC 4648, section 4).
 */
#ifndef TERN_PS_BLOB_H
#define TERN_PS_BLOB_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The most blobs that the servers need at a time, for a job that goes back (server/blobs.c). */
#define TERN_BLOBS 2u

struct tern_blob {
	/* Version of the parameters that the blob belongs to, 1 or more; 0: there is no blob. */
	uint64_t step;
	void *data; /* from malloc(); NULL if there are no bytes */
	size_t bytes;
};

/* Sets *blob to a copy of the bytes, and frees what it had. -ENOMEM: *blob stays as it was. */
int tern_blob_set(struct tern_blob *blob, uint64_t step, const void *data, size_t bytes);
int tern_blob_copy(struct tern_blob *to, const struct tern_blob *from);
void tern_blob_fini(struct tern_blob *blob); /* leaves no blob */

/* NULL: there is no blob, or no memory. */
json_t *tern_blob_json(const struct tern_blob *blob);

/* Reads a blob of at most TERN_KEEP_MAX bytes and of step 1 to `most`. -EINVAL: it is none; -ENOMEM.
 * *out is then without a blob. */
int tern_blob_read(const json_t *root, uint64_t most, struct tern_blob *out);

#endif
