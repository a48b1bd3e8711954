/* SPDX-License-Identifier: Apache-2.0 */
#include "base/escape.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/util.h"

#define ESCAPE_BYTES 4u /* length of \xNN */

/* True for invisible characters above ASCII (Unicode categories Cc, Cf, Zl, Zp). Among
 * them are those that move the cursor, end the line or change the text direction. */
static bool is_hidden(uint32_t c)
{
	static const struct {
		uint32_t first, last;
	} hidden[] = {
		{0x80, 0x9f},
		{0xad, 0xad},
		{0x600, 0x605},
		{0x61c, 0x61c},
		{0x6dd, 0x6dd},
		{0x70f, 0x70f},
		{0x890, 0x891},
		{0x8e2, 0x8e2},
		{0x180e, 0x180e},
		{0x200b, 0x200f},
		{0x2028, 0x202e},
		{0x2060, 0x206f},
		{0xfeff, 0xfeff},
		{0xfff0, 0xfffb},
		{0x110bd, 0x110cd},
		{0x13430, 0x1343f},
		{0x1bca0, 0x1bca3},
		{0x1d173, 0x1d17a},
		{0xe0000, 0xe0fff},
	};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(hidden); i++)
		if (c >= hidden[i].first && c <= hidden[i].last)
			return true;
	return false;
}

/* Length in bytes of the UTF-8 character that starts with `lead`; 0: no character starts
 * with this byte. */
static size_t character_bytes(unsigned char lead)
{
	if (lead < 0x80)
		return 1;
	if (lead >= 0xc2 && lead <= 0xdf)
		return 2;
	if (lead >= 0xe0 && lead <= 0xef)
		return 3;
	return lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
}

/* Length in bytes of the printable character at `p`; 0: the byte at `p` must be
 * escaped. */
static size_t printable_bytes(const unsigned char *p, size_t left)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t bytes = character_bytes(*p);
	uint32_t c;

	if (bytes == 1)
		return *p >= ' ' && *p <= '~';
	if (bytes == 0 || bytes > left)
		return 0;
	c = *p & (0x7fu >> bytes);
	for (size_t i = 1; i < bytes; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (p[i] & 0x3f);
	}
	if (c < least[bytes] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
		return 0;
	return is_hidden(c) ? 0 : bytes;
}

char *tern_escape(char *out, size_t size, const void *text, size_t bytes)
{
	static const char more[] = "...";
	const unsigned char *p = text;
	size_t at = 0, whole = 0; /* whole: largest length so far at which `more` fits */

	while (bytes > 0) {
		size_t plain = printable_bytes(p, bytes);
		size_t wanted = plain ? plain : ESCAPE_BYTES;

		if (at + wanted >= size) {
			snprintf(out + whole, size - whole, "%s", more);
			return out;
		}
		if (plain)
			memcpy(out + at, p, plain);
		else
			snprintf(out + at, size - at, "\\x%02x", *p);
		at += wanted;
		p += plain ? plain : 1;
		bytes -= plain ? plain : 1;
		if (at + sizeof(more) <= size)
			whole = at;
	}
	out[at] = 0;
	return out;
}
