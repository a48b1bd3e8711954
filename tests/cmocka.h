/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka with the headers it wants before it, or what stands in for it. */
#ifndef TERN_TESTS_CMOCKA_H
#define TERN_TESTS_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#if TERN_HAVE_CMOCKA
#include <cmocka.h>
#else
#include "tests/asserts.h"
#endif

#endif
