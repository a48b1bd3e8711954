/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which fabrics this build has, in the order in which `auto` prefers them. Alone in its
 * file so that a test can link a table of its own in its place.
 */
#include "transport/domain.h"

#include <errno.h>

#include "tern-config.h"

#if !TERN_HAVE_VERBS
static int no_verbs(struct tern_domain *domain, const struct tern_domain_opts *opts,
	struct tern_fabric **out, const char **why)
{
	(void)domain;
	(void)opts;
	(void)out;
	*why = "built without rdma-core (libibverbs-dev, librdmacm-dev)";
	return -ENOSYS;
}

const struct tern_fabric_ops tern_verbs_fabric_ops = {.name = "verbs", .open = no_verbs};
#endif

const struct tern_fabric_ops *const tern_fabric_table[] = {
	&tern_shm_fabric_ops,
	&tern_verbs_fabric_ops,
	&tern_tcp_fabric_ops,
	&tern_sim_fabric_ops,
	&tern_sim_b_fabric_ops,
	NULL,
};
