/* SPDX-License-Identifier: Apache-2.0 */
/* See secret.h. */
#include "tools/secret.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/util.h"
#include "rendezvous/rendezvous.h"
#include "transport/addr.h"

#define MADE_BYTES 32u

static bool usable(void)
{
	return tern_secret_check("any") == 0;
}

static int read_fd(
	const struct secret_settings *s, struct secret *out, struct secret_error *error)
{
	char what[32];
	int r;

	snprintf(what, sizeof(what), "--secret-fd %u", (unsigned)s->fd);
	r = secret_read_fd((int)s->fd, what, out, error);
	close((int)s->fd);
	return r;
}

int secret_read(
	const struct secret_settings *s, struct secret *out, struct message *error)
{
	const char *named = getenv("TERN_SECRET_FILE");
	struct secret_error why;
	int r = 0;

	*out->text = '\0';
	if (s->insecure && (s->file || s->fd))
		return options_refuse(error,
			"--insecure means no secret: it excludes --secret-file and "
			"--secret-fd");
	if (s->fd && s->file)
		return options_refuse(
			error, "--secret-file and --secret-fd exclude each other");
	if (s->fd)
		r = read_fd(s, out, &why);
	else if (s->file)
		r = secret_read_file("--secret-file", s->file, out, &why);
	else if (named && *named && !s->insecure)
		r = secret_read_file("TERN_SECRET_FILE", named, out, &why);
	if (r < 0)
		return options_refuse(error, "%s", why.text);
	if (*out->text && !usable())
		r = options_refuse(error,
			"%s: this tern was built without OpenSSL, which a secret needs",
			s->fd     ? "--secret-fd"
			: s->file ? "--secret-file"
				  : "TERN_SECRET_FILE");
	return r;
}

int secret_make(struct secret *out)
{
	unsigned char bytes[MADE_BYTES];
	ssize_t got;

	*out->text = '\0';
	if (!usable())
		return 0;
	got = getrandom(bytes, sizeof(bytes), 0);
	if (got != sizeof(bytes))
		return got < 0 ? -errno : -EIO;
	for (unsigned i = 0; i < MADE_BYTES; i++)
		snprintf(out->text + 2 * i, 3, "%02x", bytes[i]);
	explicit_bzero(bytes, sizeof(bytes));
	return 0;
}

void secret_forget(struct secret *secret)
{
	explicit_bzero(secret, sizeof(*secret));
}

int secret_check_listen(const struct secret_settings *s, const struct secret *secret,
	const struct fabric_settings *fabric, const char *option, const char *listen,
	struct message *error)
{
	const char *advice = usable() ? "give all processes of the job --secret-file, or "
					"--insecure if any of them may join"
				      : "this tern was built without OpenSSL and has no "
					"secrets: use --insecure if that is acceptable";

	if (*secret->text || s->insecure || fabric_stays_here(fabric))
		return 0;
	if (tern_addr_is_loopback(listen ? listen : fabric_default_listen(fabric)))
		return 0;
	if (listen)
		return options_refuse(error,
			"%s %.200s: lets in whoever connects from other hosts: %s",
			option, listen, advice);
	return options_refuse(error,
		"--fabric %s: lets in whoever connects from other hosts: %s",
		fabric_name(fabric), advice);
}
