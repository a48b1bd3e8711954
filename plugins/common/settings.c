/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/common/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <tern/log.h>
#include <tern/types.h>

#define DEAD_S 60u

uint64_t settings_dead_ns(settings_warn warn)
{
	const char *text = getenv("TERN_DEAD_TIMEOUT");
	char *end;
	double seconds;

	if (!text || !*text)
		return DEAD_S * 1000000000ull;
	seconds = strtod(text, &end);
	if (*end == '\0' && seconds == 0)
		return TERN_NEVER;
	if (*end == '\0' && seconds >= 0.1 && seconds <= 1e6)
		return (uint64_t)(seconds * 1e9);
	warn("TERN_DEAD_TIMEOUT=%s: expected seconds from 0.1 to 1e6, or 0 for never; %u "
	     "are used",
		text, DEAD_S);
	return DEAD_S * 1000000000ull;
}

const char *settings_fabric(settings_warn warn)
{
	static const char *const known[] = {"auto", "tcp", "verbs"};
	const char *wanted = getenv("TERN_FABRICS");

	if (!wanted || !*wanted)
		return "auto";
	for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(wanted, known[i]) == 0)
			return known[i];
	warn("TERN_FABRICS=%s: expected auto, tcp or verbs", wanted);
	return NULL;
}

enum tern_log_level settings_log_level(settings_warn warn)
{
	static const struct {
		const char *name;
		enum tern_log_level level;
	} known[] = {{"error", TERN_LOG_ERROR}, {"warn", TERN_LOG_WARN},
		{"info", TERN_LOG_INFO}, {"debug", TERN_LOG_DEBUG}};
	const char *wanted = getenv("TERN_LOG");

	if (!wanted || !*wanted)
		return TERN_LOG_WARN;
	for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(wanted, known[i].name) == 0)
			return known[i].level;
	warn("TERN_LOG=%s: expected error, warn, info or debug; warn is used", wanted);
	return TERN_LOG_WARN;
}

bool settings_make_secret(char *out)
{
	unsigned char bytes[SECRET_BYTES / 2];

	if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes))
		return false;
	for (unsigned i = 0; i < sizeof(bytes); i++)
		sprintf(out + 2 * i, "%02x", bytes[i]);
	return true;
}
