/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of a fabric on the command line: --fabric and --verbs, which mean the same
 * in every command, and the error for a fabric that does not work here.
 */
#ifndef TERN_TOOLS_FABRIC_H
#define TERN_TOOLS_FABRIC_H

#include <tern/context.h>

#include "tools/command.h"
#include "transport/fabric.h"

#define FABRIC_AUTO 0

/*
 * Values of --fabric: "auto", the fabrics between hosts, those within one host; each
 * group in the order of the table of fabrics. NULL-terminated, valid for ever.
 */
const char *const *fabric_names(void);
int fabric_count(void); /* number of these names */

struct fabric_settings {
	int choice;        /* index into fabric_names() */
	const char *verbs; /* options of the verbs fabric; NULL: its defaults */
};

/* Rows of a command's table of options; `field` of its settings is a struct
 * fabric_settings. */
#define FABRIC_VERBS_OPTION(settings, field)                                             \
	OPTION(TEXT, "verbs", "OPTIONS", "device=,from=,gid=,... as in docs/tuning.md",  \
		settings, field.verbs)
#define FABRIC_OPTIONS(settings, field)                                                  \
	OPTION(CHOICE, "fabric", "F", "what carries the bytes", settings, field.choice,  \
		.initial = "auto", .find_choices = fabric_names),                        \
		FABRIC_VERBS_OPTION(settings, field)

/* The row of the table of fabrics for a choice; NULL: auto. */
const struct tern_fabric_ops *fabric_row(int choice);
static inline const char *fabric_name(const struct fabric_settings *settings)
{
	return fabric_names()[settings->choice];
}

/* True if the fabric stays within this host, so that --listen has no meaning. */
bool fabric_stays_here(const struct fabric_settings *settings);

/* Refuses --listen for a fabric without addresses. `listen` is NULL if the option was
 * not given. -EINVAL with one line. */
int fabric_check_listen(const struct fabric_settings *settings, const char *listen,
	struct message *error);

/* Checks an address of --join: "FABRIC://REST", or several of them joined by +.
 * -EINVAL; `why` says what would be right. */
int fabric_check_address(
	const struct tern_domain *domain, const char *address, struct message *why);

/* Checks --verbs before anything is started. -EINVAL with one line. */
int fabric_check(const struct fabric_settings *settings, struct message *error);

/* Options of the domain for the settings, which must outlive them. */
struct tern_domain_opts fabric_domain_opts(const struct fabric_settings *settings);

/* Why the requested fabric does not work here; NULL: it does. */
const char *fabric_missing(
	const struct fabric_settings *settings, const struct tern_domain *domain);

/* Default address of listeners on a fabric with HOST:PORT addresses. */
const char *fabric_default_listen(const struct fabric_settings *settings);

/* Writes the address for tern_listen(). `listen` is HOST:PORT, PORT alone (every
 * address), or NULL for the default; `name` is for fabrics within this host, which
 * have no such addresses. */
void fabric_listen_address(const struct fabric_settings *settings, const char *listen,
	const char *name, char *out, size_t bytes);

#endif
