/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the network plug-in of NCCL says about settings that it cannot use. It reads them once
 * in a process, so each case loads it in a child, and this process never has it.
 */
#include "tests/harness/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/plugins/nccl_driver.h"

static const char *plugin;

/* Results of a case, which runs in a child process. This struct is in memory that the child
 * shares with the test. */
static struct outcome {
	char trouble[200]; /* why the plug-in was not called */
	char warned[600];  /* the last warning that the plug-in has logged */
	unsigned warnings;
	unsigned long subsystems; /* of the last warning */
	int init, devices, count; /* two results, and the number of devices */
} * outcome;

__attribute__((format(printf, 5, 6))) static void take_log(int level,
	unsigned long subsystems, const char *file, int line, const char *format, ...)
{
	va_list ap;

	(void)file, (void)line;
	if (level != NCCL_WARN)
		return;
	va_start(ap, format);
	vsnprintf(outcome->warned, sizeof(outcome->warned), format, ap);
	va_end(ap);
	outcome->warnings++;
	outcome->subsystems = subsystems;
}

/* Calls the plug-in as NCCL does before it uses a plug-in. */
static void call_plugin(unsigned version)
{
	struct driver d;
	const char *why = driver_open(&d, plugin, version);

	if (why) {
		snprintf(outcome->trouble, sizeof(outcome->trouble), "%s", why);
		return;
	}
	outcome->init = driver_init(&d, take_log);
	if (outcome->init == 0)
		outcome->devices = driver_devices(&d, &outcome->count);
}

static void start_with(const char *variable, const char *value, unsigned version)
{
	int status;
	pid_t pid;

	memset(outcome, 0, sizeof(*outcome));
	outcome->count = -1;
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		setenv(variable, value, 1);
		call_plugin(version);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_string_equal(outcome->trouble, "");
}

static void has_warned_once(const char *words)
{
	if (outcome->warnings != 1 || !strstr(outcome->warned, words))
		fail_msg("%u warnings, not one of \"%s\": %s", outcome->warnings, words,
			outcome->warned);
	/* NCCL hides a warning whose subsystems are not among those of NCCL_DEBUG_SUBSYS. */
	assert_true(outcome->subsystems == NCCL_SUBSYS_ALL);
}

static void test_a_variable_that_names_no_interface_is_told_in_a_line(void **state)
{
	(void)state;
	for (unsigned version = 8; version <= 12; version++) {
		start_with("TERN_NET_IFNAME", "=nothing", version);
		assert_int_equal(outcome->init, 0);
		assert_int_equal(outcome->devices, 0);
		assert_int_equal(outcome->count, 0);
		has_warned_once("NET/Tern : TERN_NET_IFNAME==nothing names no network "
				"interface that is up; up are ");
	}
	start_with("NCCL_SOCKET_IFNAME", "nothing", 11);
	assert_int_equal(outcome->count, 0);
	has_warned_once("NET/Tern : NCCL_SOCKET_IFNAME=nothing names no network");
}

static void test_a_variable_that_names_an_interface_warns_of_nothing(void **state)
{
	(void)state;
	start_with("TERN_NET_IFNAME", "=lo", 11);
	assert_int_equal(outcome->count, 1);
	assert_int_equal(outcome->warnings, 0);
}

static void test_a_secret_file_that_cannot_be_read_is_told_in_a_line(void **state)
{
	(void)state;
	start_with("TERN_SECRET_FILE", "/nowhere/secret", 11);
	assert_int_equal(outcome->init, NCCL_SYSTEM_ERROR);
	has_warned_once("NET/Tern : cannot start: TERN_SECRET_FILE /nowhere/secret: No "
			"such file or directory");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			test_a_variable_that_names_no_interface_is_told_in_a_line),
		cmocka_unit_test(
			test_a_variable_that_names_an_interface_warns_of_nothing),
		cmocka_unit_test(
			test_a_secret_file_that_cannot_be_read_is_told_in_a_line),
	};

	if (argc < 2)
		return 2;
	plugin = argv[1];
	unsetenv("TERN_NET_IFNAME");
	unsetenv("NCCL_SOCKET_IFNAME");
	unsetenv("TERN_SECRET_FILE");
	outcome = mmap(NULL, sizeof(*outcome), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (outcome == MAP_FAILED)
		return 2;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
