/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of this machine as `tern info` tells of them: what they are, whether Tern's
 * kernels run there, by which ways tensors get in and out, and in what they differ in
 * ways that Tern's user notices.
 */
#ifndef TERN_TOOLS_INFO_CUDA_H
#define TERN_TOOLS_INFO_CUDA_H

#include <jansson.h>

struct tern_cuda_api;

/*
 * {"why"} if there is no CUDA here, else
 * {"driver": "13.0", "toolkit": "13.0", "peermem": false, "devices": [{"name", "uuid",
 * "pci", "numa_node", "capability", "memory_bytes", "memory_free_bytes",
 * "multiprocessors", "kernels": "native", "ptx" or "none", "transfers": {...},
 * "differences": ["..."]}]}. -1 is what nobody knows.
 *
 * `api` is a test's driver, initialised; NULL for this machine's.
 */
json_t *info_cuda(const struct tern_cuda_api *api);

/* The same for people, on stdout. */
void info_cuda_print(const json_t *cuda);

#endif
