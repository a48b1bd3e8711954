/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/address.h"

#include <errno.h>
#include <string.h>

static bool scheme_is(const char *address, const char *scheme, const char **rest)
{
	size_t n = strlen(scheme);

	if (strncmp(address, scheme, n) != 0 || strncmp(address + n, "://", 3) != 0)
		return false;
	*rest = address + n + 3;
	return true;
}

static int add(struct tern_candidates *c, struct tern_fabric *fabric, const char *address)
{
	struct tern_candidate *at = &c->at[c->count];

	if (!fabric)
		return -ENODEV;
	if (c->count == TERN_CANDIDATES_MAX)
		return -E2BIG;
	if (!*address || strlen(address) >= sizeof(at->address))
		return -EINVAL;
	at->fabric = fabric;
	strcpy(at->address, address);
	c->count++;
	return 0;
}

/* Adds the address "FABRIC://REST", where FABRIC names one fabric. */
static int add_named(
	struct tern_domain *domain, const char *address, struct tern_candidates *out)
{
	const char *colon = strstr(address, "://");

	if (!colon || colon == address)
		return -EINVAL;
	return add(out, tern_domain_fabric(domain, address, (size_t)(colon - address)),
		colon + 3);
}

struct to {
	struct tern_candidates *out;
	struct tern_fabric *fabric;
};

static int add_to(void *arg, const char *address)
{
	struct to *to = arg;

	return add(to->out, to->fabric, address);
}

/* Adds the addresses that "auto://REST" stands for on each fabric. If a fabric cannot use
 * REST, the others still can. The result is that of the fabric that picks the port: it
 * decides whether REST is well-formed. -ENODEV: there is no such fabric. */
static int add_auto(
	struct tern_domain *domain, const char *rest, struct tern_candidates *out)
{
	int result = -ENODEV;

	for (unsigned i = 0; i < domain->fabric_count; i++) {
		struct to to = {out, domain->fabrics[i]};
		const struct tern_fabric_ops *ops = to.fabric->ops;
		int r = ops->auto_dial ? ops->auto_dial(rest, add_to, &to) : 0;

		if (ops->picks_port)
			result = r;
	}
	return result;
}

static int add_address(
	struct tern_domain *domain, const char *address, struct tern_candidates *out)
{
	const char *rest;

	return scheme_is(address, "auto", &rest) ? add_auto(domain, rest, out)
						 : add_named(domain, address, out);
}

/* Returns the plus after the first address of a list; NULL: there is only one address. A
 * plus that is not followed by "FABRIC://" is part of a name. */
static const char *end_of_first(const char *list)
{
	for (const char *c = strchr(list, '+'); c; c = strchr(c + 1, '+')) {
		size_t n = strspn(c + 1, "abcdefghijklmnopqrstuvwxyz-");

		if (n && strncmp(c + 1 + n, "://", 3) == 0)
			return c;
	}
	return NULL;
}

int tern_address_dial(
	struct tern_domain *domain, const char *list, struct tern_candidates *out)
{
	const char *plus = end_of_first(list);
	char one[160];
	int r;

	out->count = 0;
	for (; plus; list = plus + 1, plus = end_of_first(list)) {
		size_t bytes = (size_t)(plus - list);

		if (bytes >= sizeof(one))
			return -EINVAL;
		memcpy(one, list, bytes);
		one[bytes] = 0;
		r = add_address(domain, one, out);
		if (r < 0)
			return r;
	}
	return add_address(domain, list, out);
}

static struct tern_fabric *port_picker(const struct tern_domain *domain)
{
	for (unsigned i = 0; i < domain->fabric_count; i++)
		if (domain->fabrics[i]->ops->picks_port)
			return domain->fabrics[i];
	return NULL;
}

int tern_address_listen(struct tern_domain *domain, const char *address,
	struct tern_candidates *out, bool *is_auto)
{
	const char *rest;

	out->count = 0;
	*is_auto = scheme_is(address, "auto", &rest);
	return *is_auto ? add(out, port_picker(domain), rest)
			: add_named(domain, address, out);
}
