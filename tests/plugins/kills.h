/* SPDX-License-Identifier: Apache-2.0 */
/* How many processes the tests of plug-ins kill, and the seed of the moments:
 * TERN_PLUGIN_KILLS and TERN_PLUGIN_SEED in the environment. tests/harness/kills.py is the
 * same for tests in Python. */
#ifndef TERN_TESTS_PLUGINS_KILLS_H
#define TERN_TESTS_PLUGINS_KILLS_H

#include <stdint.h>

/* Both exit with 2 if the variable is no such number. */
unsigned kills_count(void);
uint64_t kills_seed(void);
/* Prints how many processes were killed. ./run test adds these numbers up. */
void kills_tell(unsigned count);

#endif
