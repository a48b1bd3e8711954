/* SPDX-License-Identifier: Apache-2.0 */
/* What writing and reading of safetensors share: see safetensors.h for the format. */
#ifndef TERN_CLIENT_SAFETENSORS_FORMAT_H
#define TERN_CLIENT_SAFETENSORS_FORMAT_H

#include <tern/types.h>

#define LENGTH_BYTES 8
#define METADATA     "__metadata__"

/* Names of element types in a header, in the order of enum tern_dtype. */
extern const char *const safetensors_dtypes[TERN_DTYPE_COUNT];

#endif
