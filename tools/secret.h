/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The secret that the processes of a job share, and the refusal to listen to other hosts
 * without one.
 *
 * A secret is never on a command line, where every user of the host could see it. It
 * comes from a file (--secret-file, or TERN_SECRET_FILE), or through an open descriptor
 * (--secret-fd): `tern train` makes a secret for each job, unless --insecure is given, and
 * passes it to its children through a pipe; `tern run` gives its workers, which are
 * programs of the user, a file without a name (SUPERVISE_SECRET_PATH), because they may
 * read it again. (The environment would not be safe: programs that are started later
 * inherit it, and debuggers and crash reports show it. Data read from a pipe is gone.)
 */
#ifndef TERN_TOOLS_SECRET_H
#define TERN_TOOLS_SECRET_H

#include "host/secret.h"
#include "tools/fabric.h"

struct secret_settings {
	/* --secret-file; NULL: the file named by TERN_SECRET_FILE, if set */
	const char *file;
	uint64_t fd; /* --secret-fd; 0: not given */
	bool insecure;
};

/* Rows for a command's table of options; `field` of its settings is a struct
 * secret_settings. */
#define SECRET_OPTIONS(settings, field)                                                  \
	OPTION(TEXT, "secret-file", "PATH",                                              \
		"file with the secret that all processes of the job share; only its "    \
		"owner may be able to read it; default: the environment variable "       \
		"TERN_SECRET_FILE",                                                      \
		settings, field.file),                                                   \
		OPTION(COUNT, "secret-fd", "N",                                          \
			"read the secret from this open file descriptor; tern train "    \
			"uses this",                                                     \
			settings, field.fd, .min = 3, .max = 1 << 20)
#define INSECURE_OPTION(settings, field)                                                 \
	OPTION(FLAG, "insecure", NULL,                                                   \
		"allow to listen for other hosts without a secret: any process that "    \
		"connects may join",                                                     \
		settings, field.insecure)

/* Reads the secret that the settings or TERN_SECRET_FILE name; *out is "" if they name
 * none. -EINVAL: `error` has one line. */
int secret_read(const struct secret_settings *settings, struct secret *out,
	struct message *error);

/* Makes a random secret with getrandom(). *out is "" if this build cannot use secrets (it
 * has no OpenSSL). Returns 0, or a negative errno if there are no random numbers. */
int secret_make(struct secret *out);

/* Erases the secret from memory. */
void secret_forget(struct secret *secret);

/* The secret in the form of struct tern_context_opts: NULL means none. */
static inline const char *secret_text(const struct secret *secret)
{
	return *secret->text ? secret->text : NULL;
}

/* Checks that the process may listen at `listen` (as for fabric_listen_address()), the value of
 * the command's `option`, such as "--listen". An address that other hosts can reach needs a
 * secret or --insecure. -EINVAL: `error` has one line. */
int secret_check_listen(const struct secret_settings *settings,
	const struct secret *secret, const struct fabric_settings *fabric,
	const char *option, const char *listen, struct message *error);

#endif
