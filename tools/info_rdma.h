/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The RDMA devices of this machine as `tern info` tells of them: what they are, what they
 * can do, and in what they differ in ways that Tern's user notices.
 */
#ifndef TERN_TOOLS_INFO_RDMA_H
#define TERN_TOOLS_INFO_RDMA_H

#include <jansson.h>

#include "tools/fabric.h"

struct tern_verbs_api;

/*
 * {"why"} if the devices cannot be listed, else
 * {"devices": [{"name", "transport", "software", "used", "ports": [{"port", "state",
 * "gids": [...], ...}], "addresses": [{"address", "port", "netdev"}], "limits": {...},
 * "differences": ["..."]}], "notes": ["..."]}.
 *
 * `why` is what the verbs fabric says of itself, NULL if it works; `api` a test's
 * provider, NULL for rdma-core's.
 */
json_t *info_rdma(const struct fabric_settings *settings, const char *why,
	const struct tern_verbs_api *api);

/* The same for people, on stdout; nothing if it is a "why". */
void info_rdma_print(const json_t *rdma);

#endif
