/* SPDX-License-Identifier: Apache-2.0 */
/* What is said by `tern --version`: what a report of a fault must name. */
#ifndef TERN_TOOLS_VERSION_H
#define TERN_TOOLS_VERSION_H

/* "tern 0.1.0", then lines of details, on stdout. */
void version_print(void);

#endif
