/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern info`: shows what was built in, what works on this machine, and the properties of
 * the machine that matter. All of it is gathered into one JSON object; the text for
 * people is printed from that object, so the two cannot differ.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <tern/tern.h>

#include "base/util.h"
#include "kernels/kernels.h"
#include "tern-config.h"
#include "tools/device.h"
#include "tools/fabric.h"
#include "tools/info_check.h"
#include "tools/info_cuda.h"
#include "tools/info_machine.h"
#include "tools/info_rdma.h"
#include "tools/log.h"
#include "tools/output.h"
#include "transport/domain.h"

struct info_settings {
	struct fabric_settings fabric; /* only `verbs` is used */
	bool check, json;
	enum tern_log_level log_level;
};

static const struct option options[] = {
	OPTION(FLAG, "check", NULL,
		"test every fabric that works on this machine by moving tensors",
		struct info_settings, check),
	FABRIC_VERBS_OPTION(struct info_settings, fabric),
	OPTION(FLAG, "json", NULL, "print one JSON object", struct info_settings, json),
	LOG_LEVEL_OPTION(struct info_settings, log_level),
	OPTION_END,
};

static json_t *built_in(void)
{
	return json_pack("{sb sb sb sb sb sb sb}", "io_uring", TERN_HAVE_URING, "verbs",
		TERN_HAVE_VERBS, "cuda", TERN_HAVE_CUDA, "openblas", TERN_HAVE_OPENBLAS,
		"openssl", TERN_HAVE_OPENSSL, "bzip2", TERN_HAVE_BZIP2, "zlib",
		TERN_HAVE_ZLIB);
}

static json_t *fabric(const struct tern_fabric_ops *row, const char *why)
{
	json_t *one = json_pack(
		"{ss sb ss*}", "name", row->name, "available", !why, "why", why);
	char about[160];

	if (!why && row->about) {
		row->about(about, sizeof(about));
		json_object_set_new(one, row->about_name, json_string(about));
	}
	return one;
}

static json_t *fabrics(const struct info_settings *s)
{
	struct tern_domain_opts opts = fabric_domain_opts(&s->fabric);
	json_t *all = json_array();
	struct tern_domain *domain;

	if (tern_domain_new(&opts, &domain))
		return all;
	for (size_t i = 0; tern_fabric_table[i]; i++)
		/* The simulated fabric is for tests: it connects no processes. */
		if (!tern_fabric_table[i]->simulated)
			json_array_append_new(
				all, fabric(tern_fabric_table[i], domain->why[i]));
	tern_domain_free(domain);
	return all;
}

/* Returns why the verbs fabric does not work on this machine; NULL: it works. `all`: what
 * fabrics() returned. */
static const char *verbs_missing(const json_t *all)
{
	size_t i;
	json_t *one;

	json_array_foreach(all, i, one)
	{
		if (strcmp(json_string_value(json_object_get(one, "name")),
			    tern_verbs_fabric_ops.name) == 0)
			return json_string_value(json_object_get(one, "why"));
	}
	return "this tern was built without rdma-core";
}

static json_t *kernels(void)
{
	static const char *const names[] = {"avx512", "avx2", "portable"};
	const struct tern_kernels *used = tern_kernels_cpu();
	json_t *usable = json_array();

	for (size_t i = 0; i < TERN_ARRAY_SIZE(names); i++) {
		if (tern_kernels_named(names[i]))
			json_array_append_new(usable, json_string(names[i]));
	}
	return json_pack("{ss so ss}", "used", used->name, "usable", usable,
		"fingerprint", tern_kernels_fingerprint(used));
}

/* ---- output as text ---- */

static void print_value(const json_t *value);

/* Prints the members of an object in one line, such as "node 0 cpus 0-3 memory_bytes
 * 8589934592". */
static void print_members(const json_t *object)
{
	const char *key, *between = "";
	json_t *one;

	json_object_foreach((json_t *)object, key, one)
	{
		printf("%s%s ", between, key);
		print_value(one);
		between = " ";
	}
}

static void print_value(const json_t *value)
{
	size_t i;
	json_t *one;

	switch (json_typeof(value)) {
	case JSON_STRING:
		fputs(json_string_value(value), stdout);
		break;
	case JSON_INTEGER:
		printf("%lld", (long long)json_integer_value(value));
		break;
	case JSON_TRUE:
	case JSON_FALSE:
		fputs(json_is_true(value) ? "yes" : "no", stdout);
		break;
	case JSON_ARRAY:
		json_array_foreach(value, i, one)
		{
			if (i)
				fputs(", ", stdout);
			print_value(one);
		}
		break;
	case JSON_REAL:
		printf("%g", json_real_value(value));
		break;
	case JSON_NULL:
		fputs("no limit", stdout);
		break;
	case JSON_OBJECT:
		print_members(value);
		break;
	}
}

static void print_section(const char *title, json_t *section)
{
	const char *key;
	json_t *value;

	printf("%s\n", title);
	json_object_foreach(section, key, value)
	{
		printf("  %-22s ", key);
		print_value(value);
		putchar('\n');
	}
}

/* Returns why the fabric `one` does not work on this machine, or, if it works, the detail
 * about it (tcp: its engine); NULL: neither. */
static const char *about(const json_t *one)
{
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)one, key, value)
	{
		if (strcmp(key, "name") != 0 && json_is_string(value))
			return json_string_value(value);
	}
	return NULL;
}

static void print_fabrics(const json_t *all)
{
	size_t i;
	json_t *one;

	puts("fabrics");
	json_array_foreach(all, i, one)
	{
		const char *more = about(one);
		bool here = json_is_true(json_object_get(one, "available"));

		printf("  %-22s %s%s%s\n",
			json_string_value(json_object_get(one, "name")),
			here ? "available" : "not here", more ? ": " : "",
			more ? more : "");
	}
}

static int info_run(int argc, char **argv)
{
	struct info_settings s = {0};
	struct message error;
	json_t *all, *found;

	if (options_parse(options, argc, argv, &s, &error) ||
		log_open("info", s.log_level, &error) ||
		fabric_check(&s.fabric, &error) ||
		device_check_arithmetic(0, NULL, &error))
		return command_refuse(&info_command, "%s", error.text);
	if (s.check)
		return info_check(&s.fabric, s.json);
	found = fabrics(&s);
	all = json_pack("{ss so so so so so so}", "version", tern_version(), "built_in",
		built_in(), "fabrics", found, "rdma",
		info_rdma(&s.fabric, verbs_missing(found), NULL), "cuda", info_cuda(NULL),
		"kernels", kernels(), "machine", info_machine());
	if (s.json) {
		output_json(all);
		return EXIT_OK;
	}
	printf("tern %s\n", tern_version());
	print_section("built in", json_object_get(all, "built_in"));
	print_fabrics(json_object_get(all, "fabrics"));
	info_rdma_print(json_object_get(all, "rdma"));
	info_cuda_print(json_object_get(all, "cuda"));
	print_section("kernels", json_object_get(all, "kernels"));
	print_section("machine", json_object_get(all, "machine"));
	json_decref(all);
	return EXIT_OK;
}

const struct command info_command = {
	.name = "info",
	.usage = "[options]",
	.summary = "show, or check, what works on this machine",
	.options = options,
	.run = info_run,
};
