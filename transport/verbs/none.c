/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs fabric in a build without rdma-core: only its name, and the reason. */
#include "transport/fabric.h"

const struct tern_fabric_ops tern_verbs_fabric_ops = {
	.name = "verbs",
	.absent = "built without rdma-core (libibverbs-dev, librdmacm-dev)",
};
