/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of this machine for `tern info`: their properties, whether Tern's kernels run
 * on them, how tensors get in and out, and peculiarities that matter to a user of Tern
 * ("differences").
 */
#ifndef TERN_TOOLS_INFO_CUDA_H
#define TERN_TOOLS_INFO_CUDA_H

#include <jansson.h>

struct tern_cuda_api;

/*
 * Returns {"why"} if CUDA does not work on this machine, else {"driver": "13.0",
 * "toolkit": "13.0", "peermem": false, "devices": [{"name", "uuid", "pci", "numa_node",
 * "capability", "memory_bytes", "memory_free_bytes", "multiprocessors", "kernels":
 * "native", "ptx" or "none", "transfers": {...}, "differences": ["..."]}]}. A number that
 * is not known is -1. A device that does not answer has only "name" and "differences".
 *
 * `api`: the initialised driver of a test; NULL: this machine's driver.
 */
json_t *info_cuda(const struct tern_cuda_api *api);

/* Prints the result of info_cuda() for people on stdout. */
void info_cuda_print(const json_t *cuda);

#endif
