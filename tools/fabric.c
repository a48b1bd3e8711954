/* SPDX-License-Identifier: Apache-2.0 */
/* See fabric.h. */
#include "tools/fabric.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tern-config.h"
#include "transport/domain.h"
#if TERN_HAVE_VERBS
#include "transport/verbs.h"
#endif

const char *const fabric_names[] = {[FABRIC_AUTO] = "auto",
	[FABRIC_VERBS] = "verbs",
	[FABRIC_TCP] = "tcp",
	[FABRIC_SHM] = "shm",
	NULL};

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
	if (settings->choice == FABRIC_AUTO)
		return NULL;
	for (size_t i = 0; tern_fabric_table[i]; i++) {
		if (strcmp(tern_fabric_table[i]->name, fabric_names[settings->choice]) ==
			0)
			return domain->why[i];
	}
	return "this tern was built without rdma-core"; /* the only one that may be absent
							 */
}

void fabric_listen_address(const struct fabric_settings *settings, const char *listen,
	const char *name, char *out, size_t bytes)
{
	/* An address that is not routed is none of an RDMA device's. */
	const char *initial = settings->choice == FABRIC_VERBS ? ":0" : "127.0.0.1:0";

	if (settings->choice == FABRIC_SHM)
		snprintf(out, bytes, "shm://%s-%d", name, (int)getpid());
	else
		snprintf(out, bytes, "%s://%s%s", fabric_names[settings->choice],
			listen && !strchr(listen, ':') ? ":" : "",
			listen ? listen : initial);
}
