/* SPDX-License-Identifier: Apache-2.0 */
/* The addresses of a job's servers, as in --join: with commas between them. */
#ifndef TERN_TOOLS_SERVERS_H
#define TERN_TOOLS_SERVERS_H

#include "ps/job.h"
#include "tools/fabric.h"

struct servers {
	char address[TERN_SERVERS_MAX][128]; /* FABRIC://REST, or several joined by + */
	uint32_t count;
};

/* Reads the value of --join. An address without "FABRIC://" gets the fabric of --fabric.
 * -EINVAL: `error` has one line. */
int servers_read(const char *join, const struct fabric_settings *fabric,
	const struct tern_domain *domain, struct servers *out, struct message *error);

/* Checks that no address is twice in the list that was read from `join`: one server cannot have two
 * numbers in a job. -EINVAL: `error` has one line. */
int servers_check_distinct(
	const struct servers *servers, const char *join, struct message *error);

/* Reads the value of an option that has one address, in the same form; NULL: it was not given, and there
 * is none. `option` is its name, without the dashes. */
int servers_read_one(const char *option, const char *value,
	const struct fabric_settings *fabric, const struct tern_domain *domain,
	struct servers *out, struct message *error);

#endif
