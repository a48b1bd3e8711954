/* SPDX-License-Identifier: Apache-2.0 */
/* Until the protocol is there, no context can be made. */
#include <errno.h>

#include "transport/context.h"

int tern_rendezvous_init(struct tern_context *ctx)
{
	(void)ctx;
	return -ENOSYS;
}
