/* SPDX-License-Identifier: Apache-2.0 */
/* The table of fabrics with one more row (loopback), for programs that link this file
 * instead of transport/fabrics.c. */
#include "transport/domain.h"

extern const struct tern_fabric_ops tern_loopback_fabric_ops;

const struct tern_fabric_ops *const tern_fabric_table[] = {
	&tern_loopback_fabric_ops, TERN_FABRICS(TERN_FABRIC_POINTER) NULL};
