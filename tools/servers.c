/* SPDX-License-Identifier: Apache-2.0 */
/* See servers.h. */
#include "tools/servers.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Takes one address, of n characters. */
static int take(const char *text, size_t n, const struct fabric_settings *fabric,
	const struct tern_domain *domain, struct servers *out, struct message *why)
{
	bool whole = memmem(text, n, "://", 3) != NULL;
	char *to = out->address[out->count++];
	int room = sizeof(out->address[0]);

	if (!n || snprintf(to, (size_t)room, "%s%s%.*s", whole ? "" : fabric_name(fabric),
			  whole ? "" : "://", (int)n, text) >= room)
		return options_refuse(why, "address %u is %s", out->count,
			n ? "longer than 127 characters" : "empty");
	return fabric_check_address(domain, to, why);
}

int servers_read(const char *join, const struct fabric_settings *fabric,
	const struct tern_domain *domain, struct servers *out, struct message *error)
{
	struct message why;
	int r = 0;

	out->count = 0;
	for (const char *p = join; r == 0; p++) {
		size_t n = strcspn(p, ",");

		if (out->count == TERN_SERVERS_MAX)
			r = options_refuse(
				&why, "has more than %u addresses", TERN_SERVERS_MAX);
		else
			r = take(p, n, fabric, domain, out, &why);
		p += n;
		if (!*p)
			break;
	}
	return r ? options_refuse(error, "--join %.300s: %.200s", join, why.text) : 0;
}

int servers_check_distinct(
	const struct servers *servers, const char *join, struct message *error)
{
	for (uint32_t i = 1; i < servers->count; i++)
		for (uint32_t k = 0; k < i; k++)
			if (strcmp(servers->address[i], servers->address[k]) == 0)
				return options_refuse(error,
					"--join %.300s: has %s twice: expected each "
					"server of the job once",
					join, servers->address[i]);
	return 0;
}

int servers_read_one(const char *option, const char *value,
	const struct fabric_settings *fabric, const struct tern_domain *domain,
	struct servers *out, struct message *error)
{
	struct message why;

	out->count = 0;
	if (!value)
		return 0;
	if (strchr(value, ','))
		return options_refuse(
			error, "--%s %.300s: expected one address", option, value);
	if (take(value, strlen(value), fabric, domain, out, &why))
		return options_refuse(
			error, "--%s %.300s: %.200s", option, value, why.text);
	return 0;
}
