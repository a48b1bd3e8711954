/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/info_json.h"

#include <stdarg.h>

void info_say(json_t *list, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	json_array_append_new(list, json_vsprintf(fmt, ap));
	va_end(ap);
}

const char *info_text(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text ? text : "";
}
