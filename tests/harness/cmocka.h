/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Includes cmocka, with the headers that it requires before it, or its replacement: where
 * cmocka is not installed, and always in programs for a GPU's machine, where often nothing
 * can be installed.
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
