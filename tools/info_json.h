/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for the JSON parts of `tern info`. */
#ifndef TERN_TOOLS_INFO_JSON_H
#define TERN_TOOLS_INFO_JSON_H

#include <jansson.h>

/* Appends a text, formatted as by printf(), to the JSON array `list`. */
void info_say(json_t *list, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Returns the text of a member of `object`; "" if there is none. The object owns the
 * text. */
const char *info_text(const json_t *object, const char *name);

#endif
