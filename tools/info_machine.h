/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of this machine that matter to Tern: processors, memory, and this
 * process's limits of them. */
#ifndef TERN_TOOLS_INFO_MACHINE_H
#define TERN_TOOLS_INFO_MACHINE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Limits of the control groups that the process is in: the lowest from its own group
 * up to the top. */
struct cgroup_limits {
	uint64_t memory_bytes; /* UINT64_MAX: no limit */
	double cpus;           /* 0: no limit */
};

/* `root` is a prefix of /proc and /sys: "", except in tests. */
void info_cgroup_limits(const char *root, struct cgroup_limits *out);

/* Memory of this host, and how much of it programs can still get. False: the system
 * does not say. */
bool info_memory(const char *root, uint64_t *total, uint64_t *available);

/* Returns [{"node": 0, "cpus": "0-3", "memory_bytes": N}, ...] */
json_t *info_numa_nodes(const char *root);

/* Returns an object of numbers and texts; null: no limit. */
json_t *info_machine(void);

#endif
