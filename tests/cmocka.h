/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka with the headers it wants before it. */
#ifndef TERN_TESTS_CMOCKA_H
#define TERN_TESTS_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
