/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See info_machine.h. The files of control groups are below /sys/fs/cgroup, at the path
 * that /proc/self/cgroup names. In a container that path may be the host's, which does
 * not exist in the container: then only the limit of the topmost group is read.
 */
#include "tools/info_machine.h"

#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/util.h"

#define PATH_BYTES 4096
#define NODES_MAX  1024
/* cgroup version 1 writes about 2^63 for "no limit". */
#define NO_LIMIT (1ull << 62)

/* Reads the first line of a small file in /proc or /sys; "" if it cannot be read. */
static const char *first_line(const char *path, char *line, int bytes)
{
	FILE *f = fopen(path, "re");

	*line = '\0';
	if (f) {
		if (!fgets(line, bytes, f))
			*line = '\0';
		fclose(f);
	}
	line[strcspn(line, "\n")] = '\0';
	return line;
}

static json_int_t number_in(const char *path)
{
	char line[64];

	return atoll(first_line(path, line, sizeof(line)));
}

/* Reads a setting of the kernel: the word in brackets ("madvise" if the file contains
 * "always [madvise] never"), or the whole line if it has no brackets. */
static json_t *chosen_in(const char *path)
{
	char line[128];
	char *open, *close;

	first_line(path, line, sizeof(line));
	open = strchr(line, '[');
	close = open ? strchr(open, ']') : NULL;
	return close ? json_stringn(open + 1, (size_t)(close - open - 1))
		     : json_string(line);
}

/* ---- control groups ---- */

static void take_memory(
	const char *directory, const char *file, struct cgroup_limits *out)
{
	char path[PATH_BYTES], line[64];
	uint64_t bytes;

	if (snprintf(path, sizeof(path), "%s/%s", directory, file) >= (int)sizeof(path))
		return;
	if (!isdigit((unsigned char)*first_line(path, line, sizeof(line))))
		return; /* "max" (no limit), or no such file */
	bytes = strtoull(line, NULL, 10);
	if (bytes < NO_LIMIT)
		out->memory_bytes = TERN_MIN(out->memory_bytes, bytes);
}

static void take_cpus(double quota_us, double period_us, struct cgroup_limits *out)
{
	double cpus = quota_us / period_us;

	if (quota_us > 0 && period_us > 0 && (out->cpus == 0 || cpus < out->cpus))
		out->cpus = cpus;
}

static void take_cpu_v1(const char *directory, struct cgroup_limits *out)
{
	char path[PATH_BYTES + 32], quota[64], period[64];

	snprintf(path, sizeof(path), "%s/cpu.cfs_quota_us", directory);
	first_line(path, quota, sizeof(quota));
	snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", directory);
	first_line(path, period, sizeof(period));
	take_cpus(atof(quota), atof(period), out);
}

static void take_cpu_v2(const char *directory, struct cgroup_limits *out)
{
	char path[PATH_BYTES + 32], line[64];
	double quota = 0, period = 0;

	snprintf(path, sizeof(path), "%s/cpu.max", directory);
	if (sscanf(first_line(path, line, sizeof(line)), "%lf %lf", &quota, &period) == 2)
		take_cpus(quota, period, out);
}

static void take_directory(
	const char *directory, const char *controllers, struct cgroup_limits *out)
{
	if (!*controllers) {
		take_memory(directory, "memory.max", out);
		take_cpu_v2(directory, out);
	} else if (strcmp(controllers, "memory") == 0) {
		take_memory(directory, "memory.limit_in_bytes", out);
	} else {
		take_cpu_v1(directory, out);
	}
}

/* Reads the limits of a group and of all its parents, which limit it too. */
static void take_group(const char *root, const char *controllers, const char *group,
	struct cgroup_limits *out)
{
	char directory[PATH_BYTES];
	size_t top = (size_t)snprintf(directory, sizeof(directory),
		"%s/sys/fs/cgroup%s%s", root, *controllers ? "/" : "", controllers);

	if (top + strlen(group) >= sizeof(directory))
		return;
	strcpy(directory + top, group);
	for (;;) {
		char *slash = strrchr(directory + top, '/');

		take_directory(directory, controllers, out);
		if (!slash)
			return;
		*slash = '\0';
	}
}

void info_cgroup_limits(const char *root, struct cgroup_limits *out)
{
	char path[PATH_BYTES], line[PATH_BYTES];
	FILE *f;

	*out = (struct cgroup_limits){.memory_bytes = UINT64_MAX};
	snprintf(path, sizeof(path), "%.1000s/proc/self/cgroup", root);
	f = fopen(path, "re");
	if (!f)
		return;
	/* Lines are "0::/user.slice" in cgroup version 2; "4:memory:/a" and
	 * "2:cpu,cpuacct:/a" in version 1. */
	while (fgets(line, sizeof(line), f)) {
		char *controllers = strchr(line, ':');
		char *group = controllers ? strchr(controllers + 1, ':') : NULL;

		if (!group)
			continue;
		line[strcspn(line, "\n")] = '\0';
		*group++ = '\0';
		controllers++;
		if (!*controllers || strcmp(controllers, "memory") == 0 ||
			strncmp(controllers, "cpu,", 4) == 0 ||
			strcmp(controllers, "cpu") == 0)
			take_group(root, controllers, group, out);
	}
	fclose(f);
}

/* ---- memory ---- */

bool info_memory(const char *root, uint64_t *total, uint64_t *available)
{
	unsigned long long kib;
	char path[PATH_BYTES], line[128];
	unsigned found = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%.1000s/proc/meminfo", root);
	f = fopen(path, "re");
	while (f && found < 2 && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "MemTotal: %llu kB", &kib) == 1) {
			*total = kib << 10;
			found++;
		} else if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) {
			*available = kib << 10;
			found++;
		}
	}
	if (f)
		fclose(f);
	return found == 2;
}

uint64_t info_memory_allowed(void)
{
	uint64_t all =
		(uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	struct cgroup_limits limits;

	info_cgroup_limits("", &limits);
	return TERN_MIN(all, limits.memory_bytes);
}

uint32_t info_guests_allowed(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > 1024)
		return 512;
	return (uint32_t)limit.rlim_cur / 2;
}

/* ---- NUMA nodes ---- */

/* Returns the bytes of memory of a NUMA node, from a line "Node 0 MemTotal: 8123456
 * kB". */
static json_int_t node_memory(const char *root, unsigned node)
{
	char path[PATH_BYTES], line[128];
	unsigned long long kib;

	snprintf(path, sizeof(path), "%.1000s/sys/devices/system/node/node%u/meminfo",
		root, node);
	first_line(path, line, sizeof(line));
	return sscanf(line, "Node %*u MemTotal: %llu", &kib) == 1
		       ? (json_int_t)(kib * 1024)
		       : 0;
}

json_t *info_numa_nodes(const char *root)
{
	json_t *all = json_array();
	char path[PATH_BYTES], cpus[1024];

	for (unsigned i = 0; i < NODES_MAX; i++) {
		snprintf(path, sizeof(path),
			"%.1000s/sys/devices/system/node/node%u/cpulist", root, i);
		if (access(path, R_OK) < 0)
			continue;
		first_line(path, cpus, sizeof(cpus));
		json_array_append_new(
			all, json_pack("{sI ss sI}", "node", (json_int_t)i, "cpus", cpus,
				     "memory_bytes", node_memory(root, i)));
	}
	return all;
}

/* ---- the JSON object ---- */

json_t *info_machine(void)
{
	struct rlimit memlock = {0};
	struct cgroup_limits limits;
	cpu_set_t cpus;
	json_t *m;

	CPU_ZERO(&cpus);
	sched_getaffinity(0, sizeof(cpus), &cpus);
	getrlimit(RLIMIT_MEMLOCK, &memlock);
	info_cgroup_limits("", &limits);
	m = json_pack("{sI sI sI sI sI sI so so so}", "cores",
		(json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "cores_usable",
		(json_int_t)CPU_COUNT(&cpus), "memory_bytes",
		(json_int_t)sysconf(_SC_PHYS_PAGES) * (json_int_t)sysconf(_SC_PAGESIZE),
		"hugepages_2m",
		number_in("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"),
		"hugepages_2m_free",
		number_in("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"),
		"memlock_bytes",
		memlock.rlim_cur == RLIM_INFINITY ? -1 : (json_int_t)memlock.rlim_cur,
		"transparent_hugepages",
		chosen_in("/sys/kernel/mm/transparent_hugepage/enabled"),
		"shmem_hugepages",
		chosen_in("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
		"tcp_congestion", chosen_in("/proc/sys/net/ipv4/tcp_congestion_control"));
	json_object_set_new(m, "cgroup_memory_bytes",
		limits.memory_bytes == UINT64_MAX
			? json_null()
			: json_integer((json_int_t)limits.memory_bytes));
	json_object_set_new(
		m, "cgroup_cpus", limits.cpus > 0 ? json_real(limits.cpus) : json_null());
	json_object_set_new(m, "numa_nodes", info_numa_nodes(""));
	return m;
}
