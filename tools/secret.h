/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may come in: the secret that the processes of a job share, and what is said to a
 * user who would let in whoever connects.
 *
 * A secret never stands on a command line, where every user of the host sees it. It comes
 * from a file (--secret-file, or TERN_SECRET_FILE), or through an open descriptor
 * (--secret-fd): `tern train` makes one for each job and gives it to its children so.
 * (Not in the environment, which programs started later inherit and which debuggers and
 * crash reports show; what was read from a pipe is gone.)
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

/* Rows of a command's table; `field` of its settings is a struct secret_settings. */
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

/* Reads what the settings name; "" if they name nothing. -EINVAL with one line. */
int secret_read(const struct secret_settings *settings, struct secret *out,
	struct message *error);

/* A new one from the system's random numbers; "" if this build cannot use secrets. */
int secret_make(struct secret *out);

/* Leaves no copy in memory. */
void secret_forget(struct secret *secret);

/* What the library is given. */
static inline const char *secret_text(const struct secret *secret)
{
	return *secret->text ? secret->text : NULL;
}

/* May this be listened at (`listen` as fabric_listen_address has it)? Beyond this host
 * only with a secret, or with --insecure. -EINVAL with one line. */
int secret_check_listen(const struct secret_settings *settings,
	const struct secret *secret, const struct fabric_settings *fabric,
	const char *listen, struct message *error);

#endif
