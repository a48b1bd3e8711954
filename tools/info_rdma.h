/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The RDMA devices of this machine for `tern info`: what they are, their capabilities,
 * and differences that matter to a user of Tern.
 */
#ifndef TERN_TOOLS_INFO_RDMA_H
#define TERN_TOOLS_INFO_RDMA_H

#include <jansson.h>

#include "tools/fabric.h"

struct tern_verbs_api;

/*
 * Returns {"why"} if the devices cannot be listed, else {"devices": [{"name",
 * "transport", "software", "used", "ports": [{"port", "state", "gids": [...], ...}],
 * "addresses": [{"address", "port", "netdev"}], "limits": {...}, "differences":
 * ["..."]}], "notes": ["..."]}.
 *
 * `why` is the reason why the verbs fabric does not work, NULL if it does; `api` is a
 * test's provider, NULL for rdma-core's.
 */
json_t *info_rdma(const struct fabric_settings *settings, const char *why,
	const struct tern_verbs_api *api);

/* Prints the same for people on stdout; nothing if it is a "why". */
void info_rdma_print(const json_t *rdma);

#endif
