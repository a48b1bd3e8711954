/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes text from outside safe to show: a peer's name, a key's name, a reason that came
 * over the network, a file's contents. Shown raw, such text could move a terminal's
 * cursor, forge a log line of this program, or reverse the direction of the text after
 * it.
 *
 * tern_log() passes every line through tern_escape(), so log lines are always safe. Text
 * that is returned to the user, printed or stored must be escaped by the code that
 * receives it.
 */
#ifndef TERN_BASE_ESCAPE_H
#define TERN_BASE_ESCAPE_H

#include <stddef.h>
#include <string.h>

/*
 * Copies `bytes` bytes of `text` into `out` (`size` bytes, at least 1; always
 * NUL-terminated). Printable characters of ASCII and UTF-8 stay as they are. Every other
 * byte becomes \xNN: control characters, malformed UTF-8, invisible characters, such as
 * those that change the text direction or end the line. Text that does not fit is cut
 * after a whole character and ends with "...". Escaping the result again changes nothing.
 * Returns `out`.
 */
char *tern_escape(char *out, size_t size, const void *text, size_t bytes);

/* Escapes `text` into a temporary buffer that lives as long as the enclosing block;
 * the result has at most TERN_SHOWN_MAX - 1 bytes. */
#define TERN_SHOWN_MAX 192u
#define TERN_SHOWN_BYTES(text, bytes)                                                    \
	tern_escape((char[TERN_SHOWN_MAX]){0}, TERN_SHOWN_MAX, (text), (bytes))
/* Escapes a NUL-terminated string in the same way. */
#define TERN_SHOWN(text) TERN_SHOWN_BYTES((text), strlen(text))

#endif
