/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `tern --version`: the details that a bug report must name. */
#ifndef TERN_TOOLS_VERSION_H
#define TERN_TOOLS_VERSION_H

/* Prints "tern 0.1.0", then lines of details, on stdout. */
void version_print(void);

#endif
