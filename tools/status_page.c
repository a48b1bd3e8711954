/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the answers to `tern status` about a job with more workers than one answer has room for. */
#include "tools/status.h"

bool status_add_page(json_t *answer, const json_t *page)
{
	json_t *workers = json_object_get(answer, "workers");
	const json_t *more = json_object_get(page, "workers");
	const json_t *job = json_object_get(answer, "job");
	const json_t *next = json_object_get(page, "next");
	size_t count = json_array_size(workers) + json_array_size(more);

	if (json_array_size(more) == 0 ||
		(json_int_t)count > json_integer_value(json_object_get(job, "workers")) ||
		(next && json_integer_value(next) != (json_int_t)count))
		return false;
	json_array_extend(workers, (json_t *)(uintptr_t)more);
	if (next)
		json_object_set(answer, "next", (json_t *)(uintptr_t)next);
	else
		json_object_del(answer, "next");
	return true;
}
