/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The secret that the processes of a job share, and the warning for a user who would let
 * any process join.
 *
 * A secret is never on a command line, where every user of the host could see it. It
 * comes from a file (--secret-file, or TERN_SECRET_FILE), or through an open descriptor
 * (--secret-fd): `tern train` makes a secret for each job and passes it to its children
 * in this way. (The environment is not used, since programs started later inherit it and
 * debuggers and crash reports show it; data read from a pipe is gone.)
 */
#ifndef TERN_TOOLS_SECRET_H
#define TERN_TOOLS_SECRET_H

#include "tools/fabric.h"

#define SECRET_BYTES_MAX 1024

struct secret_settings {
	const char *file; /* NULL: as the environment says */
	uint64_t fd;      /* 0: none */
	bool insecure;
};

struct secret {
	char text[SECRET_BYTES_MAX + 1]; /* "": none */
};

/* Rows of a command's table of options; `field` of its settings is a struct
 * secret_settings. */
#define SECRET_OPTIONS(settings, field)                                                  \
	OPTION(TEXT, "secret-file", "PATH",                                              \
		"what all processes of the job must know: a file that only its owner "   \
		"reads; default: TERN_SECRET_FILE of the environment",                   \
		settings, field.file),                                                   \
		OPTION(COUNT, "secret-fd", "N",                                          \
			"the same from an open descriptor; tern train uses it",          \
			settings, field.fd, .min = 3, .max = 1 << 20)
#define INSECURE_OPTION(settings, field)                                                 \
	OPTION(FLAG, "insecure", NULL,                                                   \
		"listen beyond this host without a secret: whoever connects may join",   \
		settings, field.insecure)

/* Reads the secret that the settings name; "" if they name none. -EINVAL with one
 * line. */
int secret_read(const struct secret_settings *settings, struct secret *out,
	struct message *error);

/* Makes a secret from the system's random numbers; "" if this build cannot use
 * secrets. */
int secret_make(struct secret *out);

/* Erases the secret from memory. */
void secret_forget(struct secret *secret);

/* The secret as the library's options take it; NULL: none. */
static inline const char *secret_text(const struct secret *secret)
{
	return *secret->text ? secret->text : NULL;
}

/* Checks that the process may listen at `listen` (an address of
 * fabric_listen_address()): beyond this host only with a secret, or with --insecure.
 * -EINVAL with one line. */
int secret_check_listen(const struct secret_settings *settings,
	const struct secret *secret, const struct fabric_settings *fabric,
	const char *listen, struct message *error);

#endif
