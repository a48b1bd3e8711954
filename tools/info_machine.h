/* SPDX-License-Identifier: Apache-2.0 */
/* What of this machine matters to Tern: processors, memory, and what this process may
 * have of them. */
#ifndef TERN_TOOLS_INFO_MACHINE_H
#define TERN_TOOLS_INFO_MACHINE_H

#include <jansson.h>
#include <stdint.h>

/* The limits of the control groups that the process is in; the lowest from its own up. */
struct cgroup_limits {
	uint64_t memory_bytes; /* UINT64_MAX: none */
	double cpus;           /* 0: none */
};

/* `root` is in front of /proc and /sys: "", but in tests. */
void info_cgroup_limits(const char *root, struct cgroup_limits *out);

/* [{"node": 0, "cpus": "0-3", "memory_bytes": N}, ...] */
json_t *info_numa_nodes(const char *root);

/* An object of numbers and texts; null: no limit. */
json_t *info_machine(void);

#endif
