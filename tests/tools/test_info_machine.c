/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what `tern info` prints about control groups (limits of CPU and memory) and
 * NUMA nodes, from files made by the tests. */
#include "tests/harness/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/info_machine.h"

static char root[] = "/tmp/tern-machine-XXXXXX";

static int make_root(void **state)
{
	(void)state;
	return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
	char command[100];

	(void)state;
	snprintf(command, sizeof(command), "rm -r %s/*; rmdir %s", root, root);
	return system(command);
}

static void put(const char *path, const char *text)
{
	char whole[300];
	FILE *f;

	snprintf(whole, sizeof(whole), "%s/%s", root, path);
	for (char *c = whole + strlen(root) + 1; (c = strchr(c, '/')); c++) {
		*c = '\0';
		mkdir(whole, 0777);
		*c = '/';
	}
	f = fopen(whole, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void test_no_control_group_is_no_limit(void **state)
{
	struct cgroup_limits limits;

	(void)state;
	info_cgroup_limits(root, &limits);
	assert_true(limits.memory_bytes == UINT64_MAX);
	assert_true(limits.cpus == 0);
}

static void test_the_lowest_limit_up_to_the_top_counts(void **state)
{
	struct cgroup_limits limits;

	(void)state;
	put("proc/self/cgroup", "0::/pod/box\n");
	put("sys/fs/cgroup/pod/box/memory.max", "max\n");
	put("sys/fs/cgroup/pod/box/cpu.max", "400000 100000\n");
	put("sys/fs/cgroup/pod/memory.max", "1073741824\n");
	put("sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
	put("sys/fs/cgroup/cpu.max", "max 100000\n");
	info_cgroup_limits(root, &limits);
	assert_true(limits.memory_bytes == 1u << 30);
	assert_true(limits.cpus == 1.5);
}

/* The path in /proc/self/cgroup is that of the host. The container itself sees only the
 * files of its topmost group. */
static void test_the_group_of_a_container_is_the_top(void **state)
{
	struct cgroup_limits limits;

	(void)state;
	put("proc/self/cgroup", "0::/kubepods/elsewhere\n");
	put("sys/fs/cgroup/memory.max", "2147483648\n");
	info_cgroup_limits(root, &limits);
	assert_true(limits.memory_bytes == 2u << 30);
}

static void test_control_groups_of_version_1_are_known(void **state)
{
	struct cgroup_limits limits;

	(void)state;
	put("proc/self/cgroup", "4:memory:/job\n3:cpuset:/\n2:cpu,cpuacct:/job\n");
	put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "536870912\n");
	put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n");
	put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
	put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
	put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
	info_cgroup_limits(root, &limits);
	assert_true(limits.memory_bytes == 1u << 29);
	assert_true(limits.cpus == 0.5);
}

static void test_memory_that_is_left_is_known(void **state)
{
	uint64_t total = 0, left = 0;

	(void)state;
	assert_false(info_memory(root, &total, &left));
	put("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:        1 kB\n"
			    "MemAvailable:   2048 kB\n");
	assert_true(info_memory(root, &total, &left));
	assert_true(total == 16ull << 30);
	assert_true(left == 2u << 20);
}

static void test_nodes_have_processors_and_memory(void **state)
{
	json_t *nodes, *second;

	(void)state;
	put("sys/devices/system/node/node0/cpulist", "0-3\n");
	put("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:  1024 kB\n");
	put("sys/devices/system/node/node2/cpulist", "4-7,12\n");
	put("sys/devices/system/node/node2/meminfo", "Node 2 MemTotal:  2048 kB\n");
	nodes = info_numa_nodes(root);
	assert_int_equal(json_array_size(nodes), 2);
	second = json_array_get(nodes, 1);
	assert_int_equal(json_integer_value(json_object_get(second, "node")), 2);
	assert_string_equal(json_string_value(json_object_get(second, "cpus")), "4-7,12");
	assert_int_equal(
		json_integer_value(json_object_get(second, "memory_bytes")), 2 << 20);
	json_decref(nodes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_control_group_is_no_limit),
		cmocka_unit_test(test_the_lowest_limit_up_to_the_top_counts),
		cmocka_unit_test(test_the_group_of_a_container_is_the_top),
		cmocka_unit_test(test_control_groups_of_version_1_are_known),
		cmocka_unit_test(test_memory_that_is_left_is_known),
		cmocka_unit_test(test_nodes_have_processors_and_memory),
	};

	return cmocka_run_group_tests(tests, make_root, remove_root);
}
