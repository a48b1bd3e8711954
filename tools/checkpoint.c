/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tern checkpoint`: looks at the snapshots of a job (ps/snapshot.h), and takes the
 * parameters out of them. It only reads them, so it may run while the job does. This file
 * has the command line; each action has a file of its own.
 */
#include "tools/checkpoint.h"

#include <string.h>

#include "tools/log.h"

struct checkpoint_settings {
	const char *to, *blob;
	bool overwrite, json;
	enum tern_log_level log_level;
};

static const struct option options[] = {
	OPTION(TEXT, "to", "FILE", "export: the file to write",
		struct checkpoint_settings, to),
	OPTION(TEXT, "blob", "FILE", "export: the file to write the job's blob to",
		struct checkpoint_settings, blob),
	OPTION(FLAG, "overwrite", NULL, "export: replace a file that is there already",
		struct checkpoint_settings, overwrite),
	OPTION(FLAG, "json", NULL, "print one JSON object", struct checkpoint_settings,
		json),
	LOG_LEVEL_OPTION(struct checkpoint_settings, log_level),
	OPTION_END,
};

#define PATH "PATH, a directory of snapshots or a manifest (step-....json)"

static const struct action {
	const char *name;
	int path_count;
	const char *needs; /* what the paths are */
	int (*run)(struct checkpoint_call *call);
	bool writes; /* has --to, --blob and --overwrite */
} actions[] = {
	{"list", 1, "DIR, a directory of snapshots", checkpoint_list, false},
	{"show", 1, PATH, checkpoint_show, false},
	{"verify", 1, PATH, checkpoint_verify, false},
	{"export", 1, PATH, checkpoint_export, true},
	{"diff", 2,
		"A and B, each a directory of snapshots or a manifest (step-....json)",
		checkpoint_diff, false},
};
#define ACTIONS "list, show, verify, export or diff"

static const struct action *find_action(const char *name)
{
	for (size_t i = 0; i < TERN_ARRAY_SIZE(actions); i++)
		if (strcmp(actions[i].name, name) == 0)
			return &actions[i];
	return NULL;
}

/* Number of words before the first option. */
static int count_words(int argc, char **argv)
{
	int n = 0;

	while (n < argc && strncmp(argv[n], "--", 2) != 0)
		n++;
	return n;
}

static int check_words(
	const struct action *action, int count, char **words, struct message *error)
{
	for (int i = 1; i < count; i++)
		if (!*words[i])
			return options_refuse(error, "%s: an empty path: expected %s",
				action->name, action->needs);
	if (count - 1 < action->path_count)
		return options_refuse(
			error, "%s: expected %s", action->name, action->needs);
	if (count - 1 > action->path_count)
		return options_refuse(error, "%.300s: one word too many: %s takes %s",
			words[action->path_count + 1], action->name, action->needs);
	return 0;
}

static int check_options(const struct action *action, const struct checkpoint_settings *s,
	struct message *error)
{
	if (!action->writes && s->to)
		return options_refuse(
			error, "--to %.300s: only export has this option", s->to);
	if (!action->writes && s->blob)
		return options_refuse(
			error, "--blob %.300s: only export has this option", s->blob);
	if (!action->writes && s->overwrite)
		return options_refuse(error, "--overwrite: only export has this option");
	return 0;
}

static int checkpoint_run(int argc, char **argv)
{
	const struct command *self = &checkpoint_command;
	int words = count_words(argc, argv);
	const struct action *action = words ? find_action(argv[0]) : NULL;
	struct checkpoint_settings s = {0};
	struct checkpoint_call call;
	struct message error;

	if (words && !action)
		return command_refuse(self, "%s: the action must be " ACTIONS, argv[0]);
	if (options_parse(options, argc - words, argv + words, &s, &error))
		return command_refuse(self, "%s", error.text);
	if (!action)
		return command_refuse(self, "the action must be " ACTIONS);
	if (check_words(action, words, argv, &error) ||
		check_options(action, &s, &error) ||
		log_open("checkpoint", s.log_level, &error))
		return command_refuse(self, "%s", error.text);
	call = (struct checkpoint_call){.paths = (const char *const *)argv + 1,
		.to = s.to,
		.blob = s.blob,
		.overwrite = s.overwrite};
	output_init(&call.out, s.json);
	return action->run(&call);
}

const struct command checkpoint_command = {
	.name = "checkpoint",
	.usage = "list DIR | show PATH | verify PATH | export PATH [--to FILE] "
		 "[--blob FILE] | "
		 "diff A B, and [options]",
	.summary = "list, check and compare the snapshots of a job, and export their "
		   "parameters and the blob of the program",
	.options = options,
	.run = checkpoint_run,
};
