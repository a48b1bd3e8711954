/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `tern info` as JSON: what all of them do with it. */
#ifndef TERN_TOOLS_INFO_JSON_H
#define TERN_TOOLS_INFO_JSON_H

#include <jansson.h>

/* Appends a line of text to an array. */
void info_say(json_t *list, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A member that is text; "": there is none. It belongs to the object. */
const char *info_text(const json_t *object, const char *name);

#endif
