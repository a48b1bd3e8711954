/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of the verbs fabric where the headers of rdma-core were not there. */
#include <errno.h>

#include "transport/fabric.h"

static int fabric_open(struct tern_domain *domain, const struct tern_domain_opts *opts,
	struct tern_fabric **out, const char **why)
{
	(void)domain;
	(void)opts;
	(void)out;
	*why = "built without rdma-core (libibverbs-dev, librdmacm-dev)";
	return -ENOSYS;
}

const struct tern_fabric_ops tern_verbs_fabric_ops = {
	.name = "verbs",
	.open = fabric_open,
};
