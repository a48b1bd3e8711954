/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `tern --version`: the details that a bug report must name. */
#ifndef TERN_TOOLS_VERSION_H
#define TERN_TOOLS_VERSION_H

/* Prints "tern VERSION" and lines of details about the build on stdout. */
void version_print(void);

#endif
