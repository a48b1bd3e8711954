/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for the JSON parts of `tern info`. */
#ifndef TERN_TOOLS_INFO_JSON_H
#define TERN_TOOLS_INFO_JSON_H

#include <jansson.h>

/* Appends a line of text to an array. */
void info_say(json_t *list, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Text of a member, which belongs to the object; "": there is none. */
const char *info_text(const json_t *object, const char *name);

#endif
