/* SPDX-License-Identifier: Apache-2.0 */
/* See fabric.h. */
#include "tools/fabric.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "tern-config.h"
#include "transport/domain.h"
#if TERN_HAVE_VERBS
#include "transport/verbs/verbs.h"
#endif

/* The values of --fabric: their names, and the rows of the table of fabrics for them;
 * rows[FABRIC_AUTO] is NULL. */
struct choices {
	const char **names;
	const struct tern_fabric_ops **rows;
	int count;
};

static void add_choices(struct choices *c, bool one_host)
{
	for (size_t i = 0; tern_fabric_table[i]; i++) {
		const struct tern_fabric_ops *row = tern_fabric_table[i];

		/* The simulated fabric is for tests: it connects no processes. */
		if (row->simulated || row->one_host != one_host)
			continue;
		c->names[c->count] = row->name;
		c->rows[c->count++] = row;
	}
}

static const struct choices *choices(void)
{
	static struct choices all;
	size_t most = 2; /* entries for "auto" and the final NULL */

	if (all.names)
		return &all;
	for (size_t i = 0; tern_fabric_table[i]; i++)
		most++;
	all.names = calloc(most, sizeof(all.names[0]));
	all.rows = calloc(most, sizeof(all.rows[0]));
	tern_assert(all.names && all.rows);
	all.names[all.count++] = "auto";
	add_choices(&all, false);
	add_choices(&all, true);
	return &all;
}

const char *const *fabric_names(void)
{
	return choices()->names;
}

int fabric_count(void)
{
	return choices()->count;
}

const struct tern_fabric_ops *fabric_row(int choice)
{
	return choices()->rows[choice];
}

bool fabric_stays_here(const struct fabric_settings *settings)
{
	const struct tern_fabric_ops *row = fabric_row(settings->choice);

	return row && row->one_host;
}

int fabric_check_listen(
	const struct fabric_settings *settings, const char *listen, struct message *error)
{
	if (!listen || !fabric_stays_here(settings))
		return 0;
	return options_refuse(error,
		"--listen %.200s: %s has no addresses of the form HOST:PORT: leave "
		"--listen out, or choose another --fabric",
		listen, fabric_name(settings));
}

/* ---- addresses to join ---- */

/* Finds the value of --fabric with this name, "auto" among them, and writes its index to
 * *choice. False: there is none. */
static bool find_choice(const char *name, size_t bytes, int *choice)
{
	for (*choice = 0; *choice < fabric_count(); (*choice)++) {
		const char *known = fabric_names()[*choice];

		if (strncmp(known, name, bytes) == 0 && !known[bytes])
			return true;
	}
	return false;
}

static int check_one(
	const struct tern_domain *domain, const char *address, struct message *why)
{
	const char *rest = strstr(address, "://"), *wrong = NULL;
	const struct tern_fabric_ops *row;
	int choice;

	if (!rest)
		return options_refuse(why, "%s: must be FABRIC://HOST:PORT", address);
	if (!find_choice(address, (size_t)(rest - address), &choice))
		return options_refuse(
			why, "%s: must begin with a name that --fabric knows", address);
	row = fabric_row(choice);
	rest += 3;
	if (row)
		wrong = tern_domain_why(domain, row);
	if (!wrong && row && row->one_host)
		wrong = *rest ? NULL : "must have a name after ://";
	else if (!wrong)
		wrong = options_wrong_address(rest, 1);
	return wrong ? options_refuse(why, "%s: %s", address, wrong) : 0;
}

/*
 * Returns the plus sign that ends the first address of a list ADDRESS+ADDRESS..., or the
 * list's end. A plus sign that is not followed by "FABRIC://" is part of a name.
 */
static const char *end_of_first(const char *list)
{
	const char *plus = strchr(list, '+');

	while (plus && strncmp(plus + 1 + strspn(plus + 1, "abcdefghijklmnopqrstuvwxyz-"),
			       "://", 3) != 0)
		plus = strchr(plus + 1, '+');
	return plus ? plus : list + strlen(list);
}

int fabric_check_address(
	const struct tern_domain *domain, const char *address, struct message *why)
{
	for (const char *end;; address = end + 1) {
		char one[160];
		int r;

		end = end_of_first(address);
		snprintf(one, sizeof(one), "%.*s", (int)(end - address), address);
		r = check_one(domain, one, why);
		if (r < 0 || !*end)
			return r;
	}
}

/* ---- options ---- */

int fabric_check(const struct fabric_settings *settings, struct message *error)
{
	if (!settings->verbs)
		return 0;
#if TERN_HAVE_VERBS
	struct verbs_opts opts;
	char why[256];

	if (verbs_opts_parse(settings->verbs, &opts, why, sizeof(why)) == 0)
		return 0;
	snprintf(error->text, sizeof(error->text), "--verbs %s", why);
#else
	snprintf(error->text, sizeof(error->text),
		"--verbs: this tern was built without rdma-core");
#endif
	return -EINVAL;
}

struct tern_domain_opts fabric_domain_opts(const struct fabric_settings *settings)
{
	return (struct tern_domain_opts){.verbs = settings->verbs};
}

const char *fabric_missing(
	const struct fabric_settings *settings, const struct tern_domain *domain)
{
	const struct tern_fabric_ops *row = fabric_row(settings->choice);

	return row ? tern_domain_why(domain, row) : NULL;
}

const char *fabric_default_listen(const struct fabric_settings *settings)
{
	const struct tern_fabric_ops *row = fabric_row(settings->choice);

	for (size_t i = 0; !row && tern_fabric_table[i]; i++)
		if (tern_fabric_table[i]->picks_port)
			row = tern_fabric_table[i];
	return row && row->default_listen ? row->default_listen : ":0";
}

void fabric_listen_address(const struct fabric_settings *settings, const char *listen,
	const char *name, char *out, size_t bytes)
{
	const char *fabric = fabric_name(settings);

	if (fabric_stays_here(settings))
		snprintf(out, bytes, "%s://%s-%d", fabric, name, (int)getpid());
	else
		snprintf(out, bytes, "%s://%s%s", fabric,
			listen && !strchr(listen, ':') ? ":" : "",
			listen ? listen : fabric_default_listen(settings));
}
