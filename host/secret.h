/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a job's secret from a file that no other user can read. */
#ifndef TERN_HOST_SECRET_H
#define TERN_HOST_SECRET_H

#include <stddef.h>

#define SECRET_BYTES_MAX 1024

struct secret {
	char text[SECRET_BYTES_MAX + 1]; /* NUL-terminated; "": no secret */
};

/* Why a secret was refused, in one line. */
struct secret_error {
	char text[512];
};

/* Reads the secret in the file at `path`, which `option` names in messages. Only its owner
 * may be able to read the file, and it must belong to this user or to root. -EINVAL, with
 * error->text. */
int secret_read_file(const char *option, const char *path, struct secret *out,
	struct secret_error *error);

/* Reads the secret from an open descriptor, which `what` names in messages. -EINVAL, with
 * error->text. */
int secret_read_fd(
	int fd, const char *what, struct secret *out, struct secret_error *error);

#endif
