/* SPDX-License-Identifier: Apache-2.0 */
/* Members of a JSON object that may be missing. */
#ifndef TERN_TOOLS_FIELD_H
#define TERN_TOOLS_FIELD_H

#include <jansson.h>

/* "" if there is no such text; else it is the object's. */
static inline const char *field_text(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text ? text : "";
}

/* 0 if there is no such number. */
static inline double field_number(const json_t *object, const char *name)
{
	return json_number_value(json_object_get(object, name));
}

#endif
