/* SPDX-License-Identifier: Apache-2.0 */
/* Calls a network plug-in of NCCL as NCCL does, in any version of the interface, so that tests
 * are written once. */
#ifndef TERN_TESTS_PLUGINS_NCCL_DRIVER_H
#define TERN_TESTS_PLUGINS_NCCL_DRIVER_H

#include <stdbool.h>

#include "plugins/nccl/abi.h"

struct driver {
	unsigned version;
	const void *table;
	void *ctx;  /* v11 and later: of one communicator */
	int device; /* that is used */
};

/* Opens the library and finds the table of this version. NULL, or what is wrong. */
const char *driver_open(struct driver *d, const char *path, unsigned version);
int driver_init(struct driver *d, nccl_log log);
int driver_finalize(struct driver *d);
int driver_devices(const struct driver *d, int *count);
/* Name, kinds of memory and number of grouped receives of a device. */
int driver_properties(const struct driver *d, int device, const char **name, int *memory,
	int *receives_max);
int driver_listen(const struct driver *d, void *handle, void **out);
int driver_connect(const struct driver *d, void *handle, void **out);
int driver_accept(const struct driver *d, void *listener, void **out);
int driver_register(
	const struct driver *d, void *comm, void *data, size_t bytes, void **out);
/* GPU memory, and GPU memory at the start of the dma-buf fd. */
int driver_register_gpu(
	const struct driver *d, void *comm, void *data, size_t bytes, void **out);
int driver_register_dma_buf(
	const struct driver *d, void *comm, void *data, size_t bytes, int fd, void **out);
int driver_deregister(const struct driver *d, void *comm, void *memory);
int driver_send(const struct driver *d, void *comm, void *data, size_t bytes, int tag,
	void *memory, void **request);
int driver_receive(const struct driver *d, void *comm, int n, void **data, size_t *bytes,
	int *tags, void **memory, void **request);
int driver_flush(const struct driver *d, void *comm, void **data, int *sizes,
	void **memory, void **request);
int driver_test(const struct driver *d, void *request, int *done, int *sizes);
int driver_close_send(const struct driver *d, void *comm);
int driver_close_receive(const struct driver *d, void *comm);
int driver_close_listener(const struct driver *d, void *listener);

#endif
