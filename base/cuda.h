/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Tern calls of the CUDA driver, as a table.
 *
 * The build needs the toolkit's headers only (TERN_HAVE_CUDA in tern-config.h; without it
 * this header must not be included). The functions come from the driver's libcuda.so.1,
 * which is loaded when somebody asks for it: one program starts on machines with and
 * without a driver. A test puts a table of its own in its place (tests/fake_cuda).
 *
 * Who uses CUDA takes the table as an argument, as it takes its environment, and calls
 * the driver through nothing else. Every entry returns a CUresult, which
 * tern_cuda_status() brings to a negative errno; its text is asked for where the call was
 * made, since an errno says less. Default streams are the legacy ones; Tern makes its
 * own.
 */
#ifndef TERN_BASE_CUDA_H
#define TERN_BASE_CUDA_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda.h>
#include <cudaTypedefs.h>

/* Of the driver, as cuDriverGetVersion counts: 1000 * major + 10 * minor. */
#define TERN_CUDA_DRIVER_MIN 12000

/* base/cuda_calls.h lists the entries and says which may be NULL. */
struct tern_cuda_api {
#define TERN_CUDA_CALL(field, name, version)          PFN_##name##_v##version field;
#define TERN_CUDA_CALL_OPTIONAL(field, name, version) PFN_##name##_v##version field;
#include "base/cuda_calls.h"
};

/*
 * Loads the driver and initialises it, at the first call in this process; the others get
 * the same answer. Thread-safe. The driver stays loaded. A process that forks afterwards
 * must not use CUDA in the child: the driver does not survive a fork.
 *
 * On failure *why is a line for people, in static storage:
 * -ENOSYS: there is no driver, or it is too old, or not a driver (the toolkit's stub);
 * -ENODEV: it has no device for this process; else what cuInit's result stands for.
 */
int tern_cuda_load(const struct tern_cuda_api **out, const char **why);

/*
 * 0 or a negative errno: -EAGAIN for what is not done yet (CUDA_ERROR_NOT_READY), -ENOMEM
 * for memory of the device or of the host, -ENOEXEC for code that does not run on the
 * device, -ENOTRECOVERABLE for sticky errors, -EIO for all that has no errno of its own.
 */
int tern_cuda_status(CUresult result);

/*
 * Did a kernel, or the device, fail in a way that spoils the context? Everything in it,
 * memory included, is lost, each later call fails as well, and only a new process can use
 * the device again: what remains is to say so and end in order.
 */
bool tern_cuda_is_sticky(CUresult result);

/* "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)" into `out`,
 * which it returns. Also of results that the driver does not know. */
const char *tern_cuda_text(
	const struct tern_cuda_api *api, CUresult result, char *out, size_t bytes);

#endif
