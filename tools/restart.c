/* SPDX-License-Identifier: Apache-2.0 */
/* See restart.h. */
#include "tools/restart.h"

#include <stdio.h>
#include <time.h>

#define WINDOW_NS (600 * TERN_NS_PER_S)

bool restart_is_due(struct launch *l, struct launch_settings *settings,
	struct restarts *restarts, const char *cause)
{
	uint64_t now_ns = tern_clock_ns(), most = settings->restarts;
	const char *directory = settings->snapshots.directory;
	char from[TERN_SNAPSHOT_NAME_BYTES + 20] = "at its first step", text[900];
	struct tern_snapshot_id id;

	if (!directory)
		return false;
	if (now_ns - restarts->last_ns > WINDOW_NS)
		restarts->count = 0;
	if (restarts->count >= most)
		return false;
	restarts->count++;
	restarts->last_ns = now_ns;
	if (snapshots_newest(directory, &id) == 0) {
		settings->snapshots.resume = directory;
		snprintf(from, sizeof(from), "from snapshot %s",
			tern_snapshot_short_name(id).text);
	} else if (settings->snapshots.resume) {
		snprintf(from, sizeof(from), "from where it was resumed");
	}
	snprintf(text, sizeof(text),
		"%.600s: all processes are started again, and the job goes on %s "
		"(restart "
		"%llu, at most %llu in 10 minutes)",
		cause, from, (unsigned long long)restarts->count,
		(unsigned long long)most);
	launch_report(l, l->command->name,
		json_pack("{ss sI so}", "event", "restart", "count",
			(json_int_t)restarts->count, "text", report_text(text)));
	return true;
}

void restart_pause(const struct restarts *restarts)
{
	unsigned shift = (unsigned)TERN_MIN(restarts->count, 6ull) - 1;

	nanosleep(&(struct timespec){.tv_sec = 1l << shift}, NULL);
}
