/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the reader of a snapshot's manifest, behind its digest: the text gets the digest that
 * it needs, as somebody would give it who changes a manifest on purpose. A manifest that is
 * accepted has each chunk of its job in one part. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/digest.h"
#include "base/util.h"
#include "ps/snapshot.h"
#include "tests/fuzz/fuzz.h"

/* The text with its digest, from malloc(); NULL: it is no JSON object. */
static char *sign(const uint8_t *data, size_t bytes)
{
	json_t *root =
		json_loadb((const char *)data, bytes, JSON_REJECT_DUPLICATES, NULL);
	char digest[20], *text = NULL;

	json_object_del(root, "digest");
	text = json_is_object(root) ? json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS |
							       JSON_REAL_PRECISION(17))
				    : NULL;
	if (text) {
		snprintf(digest, sizeof(digest), "%016" PRIx64,
			tern_digest(text, strlen(text)));
		free(text);
		json_object_set_new(root, "digest", json_string(digest));
		text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
	}
	json_decref(root);
	return text;
}

static void check(const struct tern_snapshot *s)
{
	struct tern_plan plan;
	uint64_t chunks = 0;

	tern_assert(tern_plan_init(&plan, &s->job) == 0);
	for (uint32_t i = 0; i < s->part_count; i++)
		chunks += s->parts[i].chunk_count;
	tern_assert(chunks == plan.chunk_count);
	tern_plan_fini(&plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char *text = sign(data, bytes);
	struct tern_snapshot snapshot;
	struct tern_ps_text why = {{0}};
	void *raw = fuzz_copy(data, bytes);

	if (tern_snapshot_decode(raw, bytes, &snapshot, &why) == 0)
		tern_snapshot_fini(&snapshot);
	if (text && tern_snapshot_decode(text, strlen(text), &snapshot, &why) == 0) {
		check(&snapshot);
		tern_snapshot_fini(&snapshot);
	} else {
		tern_assert(memchr(why.text, 0, sizeof(why.text)));
	}
	free(raw);
	free(text);
	return 0;
}
