/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which fabrics this build has, in the order in which `auto` prefers them. Alone in its
 * file so that a test can link a table of its own in its place.
 */
#include "transport/domain.h"

const struct tern_fabric_ops *const tern_fabric_table[] = {
	&tern_shm_fabric_ops,
	&tern_verbs_fabric_ops,
	&tern_tcp_fabric_ops,
	&tern_sim_fabric_ops,
	NULL,
};
