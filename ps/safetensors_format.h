/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of the safetensors format (safetensors.h) that the writer and the reader use. */
#ifndef TERN_PS_SAFETENSORS_FORMAT_H
#define TERN_PS_SAFETENSORS_FORMAT_H

#include <tern/types.h>

#define LENGTH_BYTES 8
#define METADATA     "__metadata__"

/* Names of element types in a header, in the order of enum tern_dtype. */
extern const char *const safetensors_dtypes[TERN_DTYPE_COUNT];

#endif
