/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of this machine for `tern info`: what they are, whether Tern's kernels run
 * there, how tensors get in and out, and differences that matter to a user of Tern.
 */
#ifndef TERN_TOOLS_INFO_CUDA_H
#define TERN_TOOLS_INFO_CUDA_H

#include <jansson.h>

struct tern_cuda_api;

/*
 * Returns {"why"} if there is no CUDA here, else {"driver": "13.0", "toolkit": "13.0",
 * "peermem": false, "devices": [{"name", "uuid", "pci", "numa_node", "capability",
 * "memory_bytes", "memory_free_bytes", "multiprocessors", "kernels": "native", "ptx" or
 * "none", "transfers": {...}, "differences": ["..."]}]}. -1 means unknown.
 *
 * `api` is a test's driver, initialised; NULL for this machine's.
 */
json_t *info_cuda(const struct tern_cuda_api *api);

/* Prints the same for people on stdout. */
void info_cuda_print(const json_t *cuda);

#endif
