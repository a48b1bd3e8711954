/* SPDX-License-Identifier: Apache-2.0 */
/* Names of tensors, and numbers, in messages about a job. */
#ifndef TERN_PS_SHOWN_H
#define TERN_PS_SHOWN_H

#include <stdio.h>
#include <string.h>

#include "base/escape.h"
#include "ps/job.h"

/* The name escaped, and cut if it is long, so that the message has room for the rest. */
#define TERN_TENSOR_SHOWN_MAX 120u
#define TERN_TENSOR_SHOWN(name)                                                          \
	tern_escape((char[TERN_TENSOR_SHOWN_MAX]){0}, TERN_TENSOR_SHOWN_MAX, (name),     \
		strlen(name))

/* Writes a number as the user typed it: the fewest digits that give the same value, stored as
 * a float or a double. */
void tern_ps_print_number(double value, char *out, size_t size);

/* Writes dtype and dimensions, such as "f32[784,10]". */
void tern_ps_print_shape(const struct tern_shape *shape, char *out, size_t size);

/* Writes "tensor NAME: " before the text. */
static inline void tern_ps_name_tensor(
	struct tern_ps_text *why, const struct tern_param *p)
{
	struct tern_ps_text text = *why;

	snprintf(why->text, sizeof(why->text), "tensor %s: %.180s",
		TERN_TENSOR_SHOWN(p->name), text.text);
}

#endif
