/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/marks.h"

struct tern_marks_span tern_marks_span(
	const struct tern_ps_job *job, const struct tern_chunk *chunk)
{
	uint32_t first = tern_ps_job_tensor_at(job, chunk->first);
	uint32_t last = tern_ps_job_tensor_at(job, chunk->first + chunk->count - 1);

	return (struct tern_marks_span){first, last - first + 1};
}

struct tern_shape tern_marks_shape(const struct tern_shape *plain)
{
	return (struct tern_shape){
		.dtype = plain->dtype, .rank = 2, .dims = {1, plain->dims[0]}};
}

struct tern_shape tern_marks_omitted_shape(const struct tern_shape *plain)
{
	return (struct tern_shape){
		.dtype = plain->dtype, .rank = 3, .dims = {1, 1, plain->dims[0]}};
}

bool tern_marks_follow(const struct tern_shape *shape)
{
	return (shape->rank == 2 && shape->dims[0] == 1) || tern_marks_omitted(shape);
}

bool tern_marks_omitted(const struct tern_shape *shape)
{
	return shape->rank == 3 && shape->dims[0] == 1 && shape->dims[1] == 1;
}
