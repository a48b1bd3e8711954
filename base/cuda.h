/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the CUDA driver that Tern calls, as a table.
 *
 * The build needs only the toolkit's headers (TERN_HAVE_CUDA in tern-config.h; without it
 * this header must not be included). The functions come from the driver's libcuda.so.1,
 * which is loaded at the first use: the same program starts on machines with and without
 * a driver. A test replaces the table by its own (tests/fakes/cuda).
 *
 * Code that uses CUDA gets the table as an argument, as it gets its environment, and
 * calls the driver only through the table. Every entry returns a CUresult, which
 * tern_cuda_status() converts to a negative errno. An errno is less precise than a
 * CUresult, so the code that makes a call also makes the error text, with
 * tern_cuda_text(). The functions take stream 0 for the legacy default stream; Tern uses
 * only streams that it has created.
 */
#ifndef TERN_BASE_CUDA_H
#define TERN_BASE_CUDA_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda.h>
#include <cudaTypedefs.h>

/* Oldest supported driver, as cuDriverGetVersion counts: 1000 * major + 10 * minor. */
#define TERN_CUDA_DRIVER_MIN 12000

/* The driver's functions: a pointer for each line of base/cuda_calls.h. That file also
 * says which pointers may be NULL. */
struct tern_cuda_api {
#define TERN_CUDA_CALL(field, name, version)          PFN_##name##_v##version field;
#define TERN_CUDA_CALL_OPTIONAL(field, name, version) PFN_##name##_v##version field;
#include "base/cuda_calls.h"
};

/*
 * Loads and initialises the driver at the first call in this process; later calls return
 * the same result. Thread-safe. The driver stays loaded. If a process forks afterwards,
 * the child must not use CUDA: the driver does not survive a fork.
 *
 * On failure *why is a one-line message for the user, in static storage. -ENOSYS: there
 * is no driver, it is too old, it lacks a function that Tern needs, or the library is
 * not a driver (the toolkit's stub); -ENODEV: the driver has no device for this process;
 * otherwise the tern_cuda_status() of cuInit's result.
 */
int tern_cuda_load(const struct tern_cuda_api **out, const char **why);

/*
 * Converts a CUresult to 0 or a negative errno: -EAGAIN for work that is not done yet
 * (CUDA_ERROR_NOT_READY), -ENOMEM for lack of device or host memory, -ENOEXEC for code
 * that does not run on the device, -ENOTRECOVERABLE for sticky errors; -EINVAL, -ENODEV,
 * -EBUSY, -ENOTSUP, -EPERM, -ENOENT and -EEXIST for the errors of these meanings; -EIO
 * for all others.
 */
int tern_cuda_status(CUresult result);

/*
 * True if a kernel or the device failed in a way that corrupts the CUDA context (a sticky
 * error). Everything in the context, memory included, is lost, each later call fails too,
 * and only a new process can use the device again. The caller can only report the error
 * and shut down.
 */
bool tern_cuda_is_sticky(CUresult result);

/* Writes the text of an error to `out`, as "an illegal memory access was encountered
 * (CUDA_ERROR_ILLEGAL_ADDRESS)", and returns `out`. Also works for results that the
 * driver does not know. */
const char *tern_cuda_text(
	const struct tern_cuda_api *api, CUresult result, char *out, size_t bytes);

#endif
