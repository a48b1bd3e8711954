/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between NCCL and a network plug-in, declared in our own words: what NCCL calls
 * and in which layout. NCCL looks for the symbols ncclNetPlugin_vN, the newest first: 2.19
 * knows v8, 2.24 v9, 2.26 v10, 2.28 v11 and 2.30 v12, and each of them also the earlier ones.
 * The sizes below, and the offsets of all fields, were compared with those of NCCL 2.30's own
 * headers.
 *
 * What NCCL relies on, beyond the declarations:
 *
 * - listen() fills in a handle of HANDLE_BYTES, which NCCL brings to the other rank. connect()
 *   and accept() do not wait: they return 0 with a NULL object, and are called again. connect()
 *   gets the same memory of the handle each time.
 * - A connection carries data one way. isend() and irecv() return a NULL request if they
 *   cannot start now. A connection has at most REQUESTS_MAX requests at a time. The request
 *   may hold any value before irecv().
 * - A send may be shorter than its receive. A grouped receive has a tag for each part, and a
 *   send goes to the oldest receive with its tag.
 * - test() may be called with sizes NULL. After it has said `done` the request is free.
 * - One thread connects and moves data of a communicator; another one may register memory at
 *   the same time. A range may be registered more than once.
 * - finalize() is called once per communicator, also with a NULL context; after the last one
 *   NCCL closes the library.
 */
#ifndef TERN_PLUGINS_NCCL_ABI_H
#define TERN_PLUGINS_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

#define HANDLE_BYTES 128u
#define REQUESTS_MAX 32u

enum nccl_result {
	NCCL_SUCCESS = 0,
	NCCL_SYSTEM_ERROR = 2,
	NCCL_INTERNAL_ERROR = 3,
	NCCL_INVALID_ARGUMENT = 4,
	NCCL_INVALID_USAGE = 5,
	NCCL_REMOTE_ERROR = 6,
};

enum { MEMORY_HOST = 1, MEMORY_CUDA = 2, MEMORY_DMABUF = 4 }; /* ptrSupport, `type` */

enum nccl_level { NCCL_WARN = 2, NCCL_INFO = 3 };
/* Subsystems of a line. NCCL_DEBUG_SUBSYS chooses which NCCL shows: without it INIT and others,
 * and not NET. NCCL's own warnings are of all. */
#define NCCL_SUBSYS_INIT 0x1ul
#define NCCL_SUBSYS_NET  0x10ul
#define NCCL_SUBSYS_ALL  (~0ul)

typedef void (*nccl_log)(int level, unsigned long subsystems, const char *file, int line,
	const char *format, ...);
/* Profiler of NCCL: never called here. */
typedef int (*nccl_profile)(void **, int, void *, int64_t, void *);

struct nccl_config { /* v10 and later */
	int traffic_class;
};

struct nccl_vdevice_4 {
	int count, devices[4];
};
struct nccl_vdevice_8 {
	int count, devices[8];
};

/* Properties of a device. speed: Mbit/s. device_type 0: no offload to a GPU. */
struct nccl_properties_8 {
	const char *name, *pci_path;
	uint64_t guid;
	int memory, registers_globally, speed, port;
	float latency;
	int comms_max, receives_max, device_type, device_version;
};

#define NCCL_PROPERTIES_9(vdevice)                                                       \
	const char *name, *pci_path;                                                     \
	uint64_t guid;                                                                   \
	int memory, registers_globally, force_flush, speed, port;                        \
	float latency;                                                                   \
	int comms_max, receives_max, device_type, device_version;                        \
	struct vdevice virtual_device;                                                   \
	size_t p2p_bytes_max, collective_bytes_max

struct nccl_properties_9 { /* v9, v10 */
	NCCL_PROPERTIES_9(nccl_vdevice_4);
};
struct nccl_properties_11 {
	NCCL_PROPERTIES_9(nccl_vdevice_4);
	int multi_requests_max;
};
struct nccl_properties_12 {
	NCCL_PROPERTIES_9(nccl_vdevice_8);
	int multi_requests_max;
	int16_t rail, plane; /* -1: unknown */
};

_Static_assert(sizeof(struct nccl_properties_8) == 64, "v8");
_Static_assert(sizeof(struct nccl_properties_9) == 104, "v9, v10");
_Static_assert(sizeof(struct nccl_properties_11) == 112, "v11");
_Static_assert(sizeof(struct nccl_properties_12) == 128, "v12");

/* The functions that are the same from v9 on, in their order. */
#define NCCL_TRANSFERS(part)                                                             \
	int (*regMr)(void *comm, void *data, size_t bytes, int type, void **out);        \
	int (*regMrDmaBuf)(void *comm, void *data, size_t bytes, int type,               \
		uint64_t offset, int fd, void **out);                                    \
	int (*deregMr)(void *comm, void *memory);                                        \
	part int (*iflush)(void *comm, int n, void **data, int *sizes, void **memory,    \
		void **request);                                                         \
	int (*test)(void *request, int *done, int *sizes);                               \
	int (*closeSend)(void *comm);                                                    \
	int (*closeRecv)(void *comm);                                                    \
	int (*closeListen)(void *listener);                                              \
	int (*getDeviceMr)(void *comm, void *memory, void **out);                        \
	int (*irecvConsumed)(void *comm, int n, void *request)

#define NCCL_MOVES_8                                                                     \
	int (*isend)(void *comm, void *data, int bytes, int tag, void *memory,           \
		void **request);                                                         \
	int (*irecv)(void *comm, int n, void **data, int *bytes, int *tags,              \
		void **memory, void **request);
#define NCCL_MOVES_9                                                                     \
	int (*isend)(void *comm, void *data, size_t bytes, int tag, void *memory,        \
		void **request);                                                         \
	int (*irecv)(void *comm, int n, void **data, size_t *bytes, int *tags,           \
		void **memory, void **request);
#define NCCL_MOVES_10                                                                    \
	int (*isend)(void *comm, void *data, size_t bytes, int tag, void *memory,        \
		void *of_profiler, void **request);                                      \
	int (*irecv)(void *comm, int n, void **data, size_t *bytes, int *tags,           \
		void **memory, void **of_profiler, void **request);

struct nccl_net_8 {
	const char *name;
	int (*init)(nccl_log log);
	int (*devices)(int *count);
	int (*getProperties)(int device, struct nccl_properties_8 *out);
	int (*listen)(int device, void *handle, void **out);
	int (*connect)(int device, void *handle, void **out, void **of_gpu);
	int (*accept)(void *listener, void **out, void **of_gpu);
	NCCL_TRANSFERS(NCCL_MOVES_8);
};

struct nccl_net_9 {
	const char *name;
	int (*init)(nccl_log log);
	int (*devices)(int *count);
	int (*getProperties)(int device, struct nccl_properties_9 *out);
	int (*listen)(int device, void *handle, void **out);
	int (*connect)(int device, void *handle, void **out, void **of_gpu);
	int (*accept)(void *listener, void **out, void **of_gpu);
	NCCL_TRANSFERS(NCCL_MOVES_9);
	int (*makeVDevice)(int *out, struct nccl_vdevice_4 *of);
};

struct nccl_net_10 {
	const char *name;
	int (*init)(nccl_log log, nccl_profile profile);
	int (*devices)(int *count);
	int (*getProperties)(int device, struct nccl_properties_9 *out);
	int (*listen)(int device, void *handle, void **out);
	int (*connect)(int device, struct nccl_config *config, void *handle, void **out,
		void **of_gpu);
	int (*accept)(void *listener, void **out, void **of_gpu);
	NCCL_TRANSFERS(NCCL_MOVES_10);
	int (*makeVDevice)(int *out, struct nccl_vdevice_4 *of);
};

#define NCCL_NET_11(name_, properties, vdevice)                                          \
	struct name_ {                                                                   \
		const char *name;                                                        \
		int (*init)(void **ctx, uint64_t id, struct nccl_config *config,         \
			nccl_log log, nccl_profile profile);                             \
		int (*devices)(int *count);                                              \
		int (*getProperties)(int device, struct properties *out);                \
		int (*listen)(void *ctx, int device, void *handle, void **out);          \
		int (*connect)(                                                          \
			void *ctx, int device, void *handle, void **out, void **of_gpu); \
		int (*accept)(void *listener, void **out, void **of_gpu);                \
		NCCL_TRANSFERS(NCCL_MOVES_10);                                           \
		int (*makeVDevice)(int *out, struct vdevice *of);                        \
		int (*finalize)(void *ctx);                                              \
		int (*setNetAttr)(void *ctx, void *attributes);                          \
	}
NCCL_NET_11(nccl_net_11, nccl_properties_11, nccl_vdevice_4);
NCCL_NET_11(nccl_net_12, nccl_properties_12, nccl_vdevice_8);

_Static_assert(sizeof(struct nccl_net_8) == 152, "v8");
_Static_assert(sizeof(struct nccl_net_9) == 160, "v9");
_Static_assert(sizeof(struct nccl_net_10) == 160, "v10");
_Static_assert(sizeof(struct nccl_net_11) == 176, "v11");
_Static_assert(sizeof(struct nccl_net_12) == 176, "v12");

#endif
