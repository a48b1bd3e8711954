/* SPDX-License-Identifier: Apache-2.0 */
/* Settings that all plug-ins take from the environment: docs/plugins.md. */
#ifndef TERN_PLUGINS_COMMON_SETTINGS_H
#define TERN_PLUGINS_COMMON_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>
#include <tern/log.h>

#define SECRET_BYTES 33u /* of a secret's text, with its end */

/* Writes a warning into the log of the framework. */
typedef void (*settings_warn)(const char *format, ...)
	__attribute__((format(printf, 1, 2)));

/* TERN_DEAD_TIMEOUT: time after which a process that says nothing is dead, though its
 * host answers. A program that waits for its GPU answers: the contexts have threads of
 * their own. */
uint64_t settings_dead_ns(settings_warn warn);

/* TERN_FABRICS: fabric of the addresses. NULL: the variable names an unknown one. */
const char *settings_fabric(settings_warn warn);

/* TERN_LOG: level of the library's log lines. */
enum tern_log_level settings_log_level(settings_warn warn);

/* Writes a random secret. Returns false if the system has no random numbers. */
bool settings_make_secret(char *out);

#endif
