/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Includes cmocka, after the headers that cmocka requires. Where cmocka is not installed,
 * and always in programs that are built to run on a GPU machine, includes its replacement
 * asserts.h.
 */
#ifndef TERN_TESTS_HARNESS_CMOCKA_H
#define TERN_TESTS_HARNESS_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#if TERN_HAVE_CMOCKA && !defined(TERN_TESTS_ON_DEVICE)
#include <cmocka.h>
#else
#include "tests/harness/asserts.h"
#endif

#endif
