/* SPDX-License-Identifier: Apache-2.0 */
/* The table of fabrics. It has a file of its own so that a test can link another table
 * instead. */
#include "transport/domain.h"

const struct tern_fabric_ops *const tern_fabric_table[] = {
	TERN_FABRICS(TERN_FABRIC_POINTER) NULL};
