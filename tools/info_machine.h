/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of this machine that matter to Tern: processors, memory, and the limits on
 * both for this process. */
#ifndef TERN_TOOLS_INFO_MACHINE_H
#define TERN_TOOLS_INFO_MACHINE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Limits of the control groups (cgroups) that the process is in: the lowest of its own
 * group and all groups above. */
struct cgroup_limits {
	uint64_t memory_bytes; /* lowest memory limit; UINT64_MAX: none */
	double cpus;           /* lowest CPU limit, in processors; 0: none */
};

/* Reads the limits of this process's control groups. `root` is a prefix of /proc and
 * /sys: "", except in tests. */
void info_cgroup_limits(const char *root, struct cgroup_limits *out);

/* Reads the memory of this host and how much of it programs can still get, in bytes.
 * False: /proc/meminfo does not tell. */
bool info_memory(const char *root, uint64_t *total, uint64_t *available);

/* Bytes of memory that this process may use: the host's memory, or the cgroup's limit if
 * that is lower. */
uint64_t info_memory_allowed(void);
/* Most guests of a server: connected processes that have not joined its job. At least half of the
 * file descriptors are left for processes that have joined. */
uint32_t info_guests_allowed(void);

/* Returns the NUMA nodes: [{"node": 0, "cpus": "0-3", "memory_bytes": N}, ...] */
json_t *info_numa_nodes(const char *root);

/* Returns an object with all properties. No limit is null for control groups
 * ("cgroup_..."), and -1 for "memlock_bytes". */
json_t *info_machine(void);

#endif
