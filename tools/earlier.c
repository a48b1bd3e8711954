/* SPDX-License-Identifier: Apache-2.0 */
/* See earlier.h. Only the safetensors header of the file is read, and it is not
 * trusted: a damaged file, or one whose header is longer than HEADER_BYTES_MAX, counts as
 * a file of another job. */
#include "tools/earlier.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include <tern/channel.h>

#include "base/endian.h"
#include "base/util.h"
#include "client/worker.h"

#define LENGTH_BYTES     8
#define HEADER_BYTES_MAX (16u << 20)

static const char *or_empty(const char *text)
{
	return text ? text : "";
}

/* Writes all that the optimizer does into a text. */
static void print_optimizer(const struct tern_optimizer *o, char *out, size_t bytes)
{
	size_t used = (size_t)snprintf(
		out, bytes, "%s %.9g", tern_optimizer_name(o->kind), (double)o->lr);

	for (unsigned i = 0; i < TERN_SETTING_COUNT && used < bytes; i++)
		used += (size_t)snprintf(out + used, bytes - used, " %.9g",
			(double)tern_optimizer_value(o, i));
	if (used < bytes)
		snprintf(out + used, bytes - used, " %s %llu %llu %.17g",
			tern_schedule_name(o->schedule.kind),
			(unsigned long long)o->schedule.warmup,
			(unsigned long long)o->schedule.steps, o->schedule.factor);
}

void earlier_name(const struct job_settings *job, char name[EARLIER_NAME_BYTES])
{
	/* In async mode the steps are divided among the workers, so the result depends on
	 * the number of workers. */
	uint64_t workers = job->mode.kind == TERN_MODE_ASYNC ? job->workers : 0;
	TERN_CLEANUP(tern_cleanup_free) char *text = NULL;
	char optimizer[256];

	*name = '\0';
	print_optimizer(&job->optimizer.rule, optimizer, sizeof(optimizer));
	if (asprintf(&text,
		    "%s\n%s\n%s\n%s\n%s\n%llu:%llu\n%llu\n%llu\n%s\n%.17g\n%llu\n"
		    "%llu\n%llu%s%s",
		    tern_mode_text(job->mode.kind, job->mode.ssp).text, job->model,
		    job->data, or_empty(job->labels), or_empty(job->test),
		    (unsigned long long)job->split.a, (unsigned long long)job->split.b,
		    (unsigned long long)job->slots, (unsigned long long)workers,
		    optimizer, job->clip_norm, (unsigned long long)job->batch,
		    (unsigned long long)job->steps, (unsigned long long)job->seed,
		    job->init_from ? "\n" : "", or_empty(job->init_from)) < 0) {
		text = NULL;
		return;
	}
	snprintf(name, EARLIER_NAME_BYTES, "%016llx", (unsigned long long)tern_key(text));
}

static bool read_all(int fd, void *to, size_t bytes)
{
	return read(fd, to, bytes) == (ssize_t)bytes;
}

/* Reads the JSON header of a safetensors file. NULL: the file has no valid header. */
static json_t *read_header(const char *path)
{
	TERN_CLEANUP(tern_cleanup_close)
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	TERN_CLEANUP(tern_cleanup_free) char *text = NULL;
	unsigned char length[LENGTH_BYTES];
	uint64_t bytes;

	if (fd < 0 || !read_all(fd, length, sizeof(length)))
		return NULL;
	bytes = tern_get_le64(length);
	text = bytes <= HEADER_BYTES_MAX ? malloc(bytes) : NULL;
	if (!text || !read_all(fd, text, bytes))
		return NULL;
	return json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
}

json_t *earlier_metadata(const char *path)
{
	json_t *header = read_header(path);
	json_t *metadata = json_incref(json_object_get(header, "__metadata__"));

	json_decref(header);
	return metadata;
}

bool earlier_is_of(const char *path, const char *name, uint64_t *step)
{
	json_t *metadata = earlier_metadata(path);
	const char *job =
		json_string_value(json_object_get(metadata, TERN_WORKER_METADATA_JOB));
	const char *count =
		json_string_value(json_object_get(metadata, TERN_WORKER_METADATA_STEP));
	bool is = *name && job && count && strcmp(job, name) == 0;

	if (is)
		*step = strtoull(count, NULL, 10);
	json_decref(metadata);
	return is;
}

void earlier_remove(const char *path, const char *name)
{
	uint64_t step;

	if (earlier_is_of(path, name, &step))
		unlink(path);
}
