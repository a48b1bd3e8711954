/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options that choose a fabric (verbs, tcp, shm): --fabric and --verbs, which mean
 * the same in every command, and the error text for a fabric that does not work on this
 * host.
 */
#ifndef TERN_TOOLS_FABRIC_H
#define TERN_TOOLS_FABRIC_H

#include <tern/context.h>

#include "tools/command.h"
#include "transport/fabric.h"

#define FABRIC_AUTO 0

/*
 * Values of --fabric: "auto", then the fabrics between hosts, then those within one host;
 * each group in the order of the table of fabrics. NULL-terminated, valid until the
 * process ends.
 */
const char *const *fabric_names(void);
int fabric_count(void); /* length of fabric_names() */

struct fabric_settings {
	int choice;        /* --fabric: index into fabric_names() */
	const char *verbs; /* --verbs: options of the verbs fabric; NULL: its defaults */
};

/* Rows for a command's table of options; `field` of its settings is a struct
 * fabric_settings. */
#define FABRIC_VERBS_OPTION(settings, field)                                             \
	OPTION(TEXT, "verbs", "OPTIONS",                                                 \
		"options of the fabric verbs: device=,from=,gid=,... as in "             \
		"docs/tuning.md",                                                        \
		settings, field.verbs)
#define FABRIC_OPTIONS(settings, field)                                                  \
	OPTION(CHOICE, "fabric", "F", "the transport that moves the tensors", settings,  \
		field.choice, .initial = "auto", .find_choices = fabric_names),          \
		FABRIC_VERBS_OPTION(settings, field)

/* The row of the table of fabrics (transport/fabric.h) for a value of --fabric; NULL:
 * auto. */
const struct tern_fabric_ops *fabric_row(int choice);
static inline const char *fabric_name(const struct fabric_settings *settings)
{
	return fabric_names()[settings->choice];
}

/* True if the fabric only connects processes of this host, so that --listen has no
 * meaning. */
bool fabric_stays_here(const struct fabric_settings *settings);

/* Refuses --listen for a fabric without HOST:PORT addresses. `listen` is NULL if the
 * option was not given. -EINVAL: `error` has one line. */
int fabric_check_listen(const struct fabric_settings *settings, const char *listen,
	struct message *error);

/* Checks an address of a peer, as in --join: "FABRIC://REST", or several of them joined
 * by +. -EINVAL: `why` says what is expected, or why the fabric does not work here. */
int fabric_check_address(
	const struct tern_domain *domain, const char *address, struct message *why);

/* Checks the value of --verbs before anything is started. -EINVAL: `error` has one
 * line. */
int fabric_check(const struct fabric_settings *settings, struct message *error);

/* Makes domain options from the settings. They point to strings of the settings, which
 * must outlive the options. */
struct tern_domain_opts fabric_domain_opts(const struct fabric_settings *settings);

/* Why the requested fabric does not work on this host; NULL: it works, or the choice is
 * "auto". */
const char *fabric_missing(
	const struct fabric_settings *settings, const struct tern_domain *domain);

/* Default HOST:PORT at which a listener of the chosen fabric listens. */
const char *fabric_default_listen(const struct fabric_settings *settings);

/* Writes the address for tern_listen(). `listen` is HOST:PORT, PORT alone (all addresses
 * of this host), or NULL for the default. `name` is used instead for fabrics within this
 * host, which have no HOST:PORT addresses. */
void fabric_listen_address(const struct fabric_settings *settings, const char *listen,
	const char *name, char *out, size_t bytes);

#endif
