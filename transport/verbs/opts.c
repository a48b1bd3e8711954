/* SPDX-License-Identifier: Apache-2.0 */
/* Options of the verbs fabric, "NAME=VALUE,...". They are one string, so that a program
 * can pass on what an administrator has written, without knowing the options.
 * docs/tuning.md explains them. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "transport/verbs/verbs.h"

enum kind { NUMBER, SWITCH, DEVICES, ADDRESS };

struct option {
	const char *name;
	enum kind kind;
	size_t at; /* offset in struct verbs_opts */
	long min, max;
};

#define AT(member) offsetof(struct verbs_opts, member)

static const struct option options[] = {
	{"device", DEVICES, 0, 0, 0},
	{"from", ADDRESS, AT(from), 0, 0},
	{"gid", NUMBER, AT(gid_index), 0, 255},
	{"tc", NUMBER, AT(traffic_class), 0, 255},
	{"timeout", NUMBER, AT(timeout_exponent), 1, 31},
	{"retry", NUMBER, AT(retry_count), 0, 7},
	{"depth", NUMBER, AT(depth), 16, 16384},
	{"inline", NUMBER, AT(inline_max), 0, VERBS_INLINE},
	{"reads", NUMBER, AT(read_max), 1, 255},
	/* Stored inverted: srq=on sets no_srq to false. */
	{"srq", SWITCH, AT(no_srq), 1, 0},
	{"guard", SWITCH, AT(guard), 0, 0},
};

static const struct verbs_opts defaults = {
	.gid_index = -1,
	.traffic_class = -1,
	/* 0.27 s, so that a busy receiver has time to acknowledge */
	.timeout_exponent = 16,
	.retry_count = 7,
	.depth = 256,
	.inline_max = 220,
	.read_max = 16,
};

static int bad(
	char *error, size_t bytes, const char *name, const char *value, const char *right)
{
	snprintf(error, bytes, "%s=%s: %s", name, value, right);
	return -EINVAL;
}

static int set_number(const struct option *o, const char *value, struct verbs_opts *out,
	char *error, size_t bytes)
{
	char *end, right[64];
	long number = strtol(value, &end, 10);
	int stored;

	if (!*value || *end || number < o->min || number > o->max) {
		snprintf(right, sizeof(right), "want a number from %ld to %ld", o->min,
			o->max);
		return bad(error, bytes, o->name, value, right);
	}
	stored = (int)number;
	memcpy((char *)out + o->at, &stored, sizeof(stored));
	return 0;
}

static int set_switch(const struct option *o, const char *value, struct verbs_opts *out,
	char *error, size_t bytes)
{
	bool on = strcmp(value, "on") == 0;

	if (!on && strcmp(value, "off") != 0)
		return bad(error, bytes, o->name, value, "want on or off");
	*((bool *)out + o->at) = o->min ? !on : on;
	return 0;
}

/* Parses a list of device names, such as "mlx5_0+mlx5_1". */
static int set_devices(
	const char *value, struct verbs_opts *out, char *error, size_t bytes)
{
	const char *right = "want names as in `tern info`, up to 8, with + between";
	const char *at = value;

	out->device_count = 0;
	for (;;) {
		size_t n = strcspn(at, "+");

		if (n == 0 || n >= VERBS_NAME_MAX ||
			out->device_count == VERBS_DEVICES_MAX)
			return bad(error, bytes, "device", value, right);
		memcpy(out->devices[out->device_count], at, n);
		out->devices[out->device_count++][n] = 0;
		if (!at[n])
			return 0;
		at += n + 1;
	}
}

static int set_address(const struct option *o, const char *value, struct verbs_opts *out,
	char *error, size_t bytes)
{
	const char *right = "want a numeric address of this machine";
	struct tern_addrs addrs;
	unsigned char bits[16];
	char text[VERBS_NAME_MAX + 8];

	/* The address must be numeric, so that no DNS look-up takes place, which would
	 * block. */
	snprintf(text, sizeof(text), strchr(value, ':') ? "[%.60s]:0" : "%.60s:0", value);
	if ((inet_pton(AF_INET, value, bits) != 1 &&
		    inet_pton(AF_INET6, value, bits) != 1) ||
		tern_addr_resolve(text, true, &addrs))
		return bad(error, bytes, o->name, value, right);
	memcpy((char *)out + o->at, &addrs.addr[0], sizeof(addrs.addr[0]));
	return 0;
}

static int set(const char *name, const char *value, struct verbs_opts *out, char *error,
	size_t bytes)
{
	for (size_t i = 0; i < TERN_ARRAY_SIZE(options); i++) {
		const struct option *o = &options[i];

		if (strcmp(o->name, name) != 0)
			continue;
		switch (o->kind) {
		case NUMBER:
			return set_number(o, value, out, error, bytes);
		case SWITCH:
			return set_switch(o, value, out, error, bytes);
		case DEVICES:
			return set_devices(value, out, error, bytes);
		case ADDRESS:
			return set_address(o, value, out, error, bytes);
		}
	}
	return bad(error, bytes, name, value,
		"no such option; there are device, from, gid, tc, timeout, retry, depth, "
		"inline, reads, srq, guard");
}

int verbs_opts_parse(const char *text, struct verbs_opts *out, char *error, size_t bytes)
{
	char item[160];

	*out = defaults;
	while (text && *text) {
		size_t n = strcspn(text, ",");
		char *value;
		int r;

		if (n >= sizeof(item)) {
			snprintf(error, bytes, "%.20s...: too long", text);
			return -EINVAL;
		}
		memcpy(item, text, n);
		item[n] = 0;
		value = strchr(item, '=');
		if (!value) {
			snprintf(error, bytes, "%s: want NAME=VALUE", item);
			return -EINVAL;
		}
		*value++ = 0;
		r = set(item, value, out, error, bytes);
		if (r)
			return r;
		text += n + (text[n] == ',');
	}
	return 0;
}
