/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The RDMA devices of this machine for `tern info`: their properties, their capabilities,
 * and peculiarities that matter to a user of Tern ("differences").
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
 * `why`: the reason why the verbs fabric does not work; NULL: it works. `api`: the verbs
 * functions of a test; NULL: those of rdma-core.
 */
json_t *info_rdma(const struct fabric_settings *settings, const char *why,
	const struct tern_verbs_api *api);

/* Prints the result of info_rdma() for people on stdout; nothing if the result is a
 * "why". */
void info_rdma_print(const json_t *rdma);

#endif
