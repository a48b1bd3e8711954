/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What carries the bytes, as the command line says it: --fabric and --verbs, which mean
 * the same to every command, and what is told to a user who asks for what is not there.
 */
#ifndef TERN_TOOLS_FABRIC_H
#define TERN_TOOLS_FABRIC_H

#include <tern/context.h>

#include "tools/command.h"

enum fabric_choice { FABRIC_AUTO, FABRIC_VERBS, FABRIC_TCP, FABRIC_SHM };

extern const char *const fabric_names[]; /* by enum fabric_choice; NULL-terminated */

struct fabric_settings {
	int choice;        /* enum fabric_choice */
	const char *verbs; /* options of the verbs fabric; NULL: its defaults */
};

/* Rows of a command's table; `field` of its settings is a struct fabric_settings. */
#define FABRIC_VERBS_OPTION(settings, field)                                             \
	OPTION(TEXT, "verbs", "OPTIONS", "device=,from=,gid=,... as in docs/tuning.md",  \
		settings, field.verbs)
#define FABRIC_OPTIONS(settings, field)                                                  \
	OPTION(CHOICE, "fabric", "F", "what carries the bytes", settings, field.choice,  \
		.initial = "auto", .choices = fabric_names),                             \
		FABRIC_VERBS_OPTION(settings, field)

/* What --verbs says, checked before anything is started. -EINVAL with one line. */
int fabric_check(const struct fabric_settings *settings, struct message *error);

/* The domain's options that follow from the settings, which must outlive them. */
struct tern_domain_opts fabric_domain_opts(const struct fabric_settings *settings);

/* Why the fabric that was asked for does not work here; NULL: it does. */
const char *fabric_missing(
	const struct fabric_settings *settings, const struct tern_domain *domain);

/* Where to listen, as an address for tern_listen. `listen` is HOST:PORT, PORT alone
 * (every address), or NULL for what the fabric is best asked for; `name` is for shared
 * memory, which has no addresses. */
void fabric_listen_address(const struct fabric_settings *settings, const char *listen,
	const char *name, char *out, size_t bytes);

#endif
