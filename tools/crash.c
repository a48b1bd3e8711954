/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See crash.h. The handler calls only async-signal-safe functions, except for backtrace()
 * and backtrace_symbols_fd(), whose library is loaded beforehand. They may crash if the
 * stack is corrupted. Each signal is handled once only (SA_RESETHAND), so the process still
 * ends.
 */
#include "tools/crash.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#if __has_include(<execinfo.h>) /* glibc has this header, musl has not */
#include <execinfo.h>
#define HAVE_BACKTRACE 1
#else
#define HAVE_BACKTRACE 0
#endif

#include "base/util.h"

#define FRAMES_MAX 64
/* On the thread that called crash_open(), the handler has a stack of its own, since the
 * thread's may have overflowed. */
#define STACK_BYTES (64u << 10)

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

	(void)written; /* a failure of this write cannot be reported */
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
