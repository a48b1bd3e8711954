/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See crash.h. The handler only makes system calls, except for backtrace(), whose library
 * is loaded beforehand. It may fail if the stack is corrupted: by then the signal has its
 * default action, so that the process ends all the same.
 */
#include "tools/crash.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#if __has_include(<execinfo.h>) /* glibc; not musl */
#include <execinfo.h>
#define HAVE_BACKTRACE 1
#else
#define HAVE_BACKTRACE 0
#endif

#include "base/util.h"

#define FRAMES_MAX  64
#define STACK_BYTES (64u << 10) /* stack of the handler: the thread's may be used up */

static const struct {
	int number;
	const char *name;
} caught[] = {
	{SIGSEGV, "SIGSEGV"},
	{SIGBUS, "SIGBUS"},
	{SIGFPE, "SIGFPE"},
	{SIGILL, "SIGILL"},
	{SIGABRT, "SIGABRT"},
};

static void say(const char *text)
{
	ssize_t written = write(STDERR_FILENO, text, strlen(text));

	(void)written; /* there is no way to report a failure */
}

static void say_backtrace(void)
{
#if HAVE_BACKTRACE
	void *frames[FRAMES_MAX];

	backtrace_symbols_fd(frames, backtrace(frames, FRAMES_MAX), STDERR_FILENO);
#endif
}

static void handle(int number)
{
	char name[17] = "";

	prctl(PR_GET_NAME, name);
	say(name);
	say(": ended by ");
	for (size_t i = 0; i < TERN_ARRAY_SIZE(caught); i++)
		if (caught[i].number == number)
			say(caught[i].name);
	say(HAVE_BACKTRACE ? "; where it was:\n" : "\n");
	say_backtrace();
	raise(number);
}

void crash_open(void)
{
	static char stack[STACK_BYTES];
	const struct sigaction action = {
		.sa_handler = handle, .sa_flags = SA_RESETHAND | SA_ONSTACK | SA_NODEFER};
	struct sigaction before;

	sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof(stack)}, NULL);
#if HAVE_BACKTRACE
	backtrace(&(void *){NULL}, 1);
#endif
	for (size_t i = 0; i < TERN_ARRAY_SIZE(caught); i++)
		if (sigaction(caught[i].number, NULL, &before) == 0 &&
			before.sa_handler == SIG_DFL)
			sigaction(caught[i].number, &action, NULL);
}
