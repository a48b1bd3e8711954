/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the file of a job's parameters (params_file.h), which anybody may have written:
 * PyTorch, say. Names are compared first, so that a file of another model is refused by
 * the list of its tensors, and not by the shape of one of them. */
#include "ps/params_file.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/endian.h"
#include "base/util.h"
#include "kernels/bf16.h"
#include "kernels/half.h"
#include "ps/shown.h"

/* ---- names ---- */

/* Names in a message. Those for which there is no room are only counted. */
struct name_list {
	char text[140];
	size_t used, hidden;
};

static void add_name(struct name_list *list, const char *name)
{
	const char *shown = TERN_TENSOR_SHOWN(name);
	size_t bytes = strlen(shown) + (list->used ? 2 : 0);

	if (list->hidden || list->used + bytes >= sizeof(list->text)) {
		list->hidden++;
		return;
	}
	snprintf(list->text + list->used, sizeof(list->text) - list->used, "%s%s",
		list->used ? ", " : "", shown);
	list->used += bytes;
}

/* Appends the names to the message; nothing if there are none. */
static void tell_names(
	const char *what, const struct name_list *list, struct tern_ps_text *why)
{
	size_t used = strlen(why->text), room = sizeof(why->text) - used;
	char more[40] = "";

	if (!list->used)
		return;
	if (list->hidden)
		snprintf(more, sizeof(more), " and %zu more", list->hidden);
	snprintf(why->text + used, room, "%s%s: %s%s", used ? "; " : "", what, list->text,
		more);
}

static bool is_param(const struct tern_param *params, uint32_t count, const char *name)
{
	for (uint32_t i = 0; i < count; i++)
		if (strcmp(params[i].name, name) == 0)
			return true;
	return false;
}

static int check_names(const struct tern_safetensors *file,
	const struct tern_param *params, uint32_t count, struct tern_ps_text *why)
{
	struct name_list missing = {.used = 0}, extra = {.used = 0};
	const struct tern_safetensor *list;
	size_t tensors;

	list = tern_safetensors_list(file, &tensors);
	for (uint32_t i = 0; i < count; i++)
		if (!tern_safetensors_find(file, params[i].name))
			add_name(&missing, params[i].name);
	for (size_t i = 0; i < tensors; i++)
		if (!is_param(params, count, list[i].name))
			add_name(&extra, list[i].name);
	*why->text = '\0';
	tell_names("the file lacks tensors of the model", &missing, why);
	tell_names("the file has tensors that the model lacks", &extra, why);
	return *why->text ? -EINVAL : 0;
}

/* ---- shapes ---- */

static bool dims_are_equal(const struct tern_shape *a, const struct tern_shape *b)
{
	return a->rank == b->rank &&
	       memcmp(a->dims, b->dims, a->rank * sizeof(*a->dims)) == 0;
}

/* Is this matrix the other one's transpose, as far as the shapes tell? */
static bool is_transposed(const struct tern_shape *a, const struct tern_shape *b)
{
	return a->rank == 2 && b->rank == 2 && a->dims[0] == b->dims[1] &&
	       a->dims[1] == b->dims[0];
}

static int check_shape(const struct tern_param *p, const struct tern_safetensor *t,
	struct tern_ps_text *why)
{
	enum tern_dtype dtype = t->shape.dtype;
	char ours[100], theirs[100];

	if (!dims_are_equal(&t->shape, &p->shape)) {
		tern_ps_print_shape(&p->shape, ours, sizeof(ours));
		tern_ps_print_shape(&t->shape, theirs, sizeof(theirs));
		snprintf(why->text, sizeof(why->text),
			"tensor %s: the file has %s, the model %s%s",
			TERN_TENSOR_SHOWN(p->name), theirs, ours,
			is_transposed(&t->shape, &p->shape)
				? ": transpose it (Tern has [in, out], torch.nn.Linear "
				  "[out, in])"
				: "");
		return -EINVAL;
	}
	if (dtype == TERN_F32 || dtype == TERN_F16 || dtype == TERN_BF16 ||
		dtype == TERN_F64)
		return 0;
	snprintf(why->text, sizeof(why->text),
		"tensor %s: the file has the dtype %s: expected f32, f16, bf16 or f64",
		TERN_TENSOR_SHOWN(p->name), tern_dtype_name(dtype));
	return -EINVAL;
}

/* ---- values ---- */

static double f64_at(const char *at)
{
	uint64_t bits = tern_get_le64(at);
	double value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* Can a float32 have this value? NaN and infinity can be float32, too. */
static bool is_f32(double value)
{
	if (!isfinite(value))
		return true;
	return fabs(value) <= (double)FLT_MAX && (double)(float)value == value;
}

/* Converts the values to float32. Returns the number of the first one that float32 cannot
 * have; `count`: there is none. */
static uint64_t convert(const struct tern_safetensor *t, uint64_t count, float *out)
{
	const char *in = t->data;

	if (t->shape.dtype == TERN_F16)
		for (uint64_t i = 0; i < count; i++)
			out[i] = tern_f16_value(tern_get_le16(in + 2 * i));
	else if (t->shape.dtype == TERN_BF16)
		for (uint64_t i = 0; i < count; i++)
			out[i] = tern_bf16_value(tern_get_le16(in + 2 * i));
	else if (t->shape.dtype == TERN_F64)
		for (uint64_t i = 0; i < count; i++) {
			if (!is_f32(f64_at(in + 8 * i)))
				return i;
			out[i] = (float)f64_at(in + 8 * i);
		}
	else
		for (uint64_t i = 0; i < count; i++) {
			uint32_t bits = tern_get_le32(in + 4 * i);

			memcpy(&out[i], &bits, sizeof(bits));
		}
	return count;
}

static int read_param(const struct tern_safetensors *file, const struct tern_param *p,
	float *flat, struct tern_ps_text *why)
{
	const struct tern_safetensor *t = tern_safetensors_find(file, p->name);
	int r = check_shape(p, t, why);
	uint64_t wrong;

	if (r < 0)
		return r;
	wrong = convert(t, p->count, flat + p->first);
	if (wrong == p->count)
		return 0;
	snprintf(why->text, sizeof(why->text),
		"tensor %s: value %llu, the f64 %.17g, is no float32: expected values "
		"that float32 has exactly; save the tensor as f32",
		TERN_TENSOR_SHOWN(p->name), (unsigned long long)wrong,
		f64_at((const char *)t->data + 8 * wrong));
	return -EINVAL;
}

int tern_params_file_read(const struct tern_safetensors *file,
	const struct tern_param *params, uint32_t count, float *flat,
	struct tern_ps_text *why)
{
	int r = check_names(file, params, count, why);

	for (uint32_t i = 0; r == 0 && i < count; i++)
		r = read_param(file, &params[i], flat, why);
	return r;
}
