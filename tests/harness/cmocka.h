/* SPDX-License-Identifier: Apache-2.0 */
/* Includes cmocka, with the headers that it requires before it, or its replacement. */
#ifndef TERN_TESTS_HARNESS_CMOCKA_H
#define TERN_TESTS_HARNESS_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#if TERN_HAVE_CMOCKA
#include <cmocka.h>
#else
#include "tests/harness/asserts.h"
#endif

#endif
