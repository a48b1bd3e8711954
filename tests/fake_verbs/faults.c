/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests make go wrong. Invariant: without a call of these the provider fails only
 * for reasons that its user gave.
 */
#include "tests/fake_verbs/internal.h"

#define FUNCTIONS_MAX 64
#define FAULTS_MAX    16

struct function {
	const char *name;
	unsigned call_count;
};

struct fault {
	char name[32];
	unsigned at_call; /* 0: the entry is free */
	int err;
};

static struct {
	struct function functions[FUNCTIONS_MAX];
	struct fault faults[FAULTS_MAX];
} state;

void fake_faults_reset(void)
{
	memset(&state, 0, sizeof(state));
}

static struct function *find(const char *name)
{
	for (unsigned i = 0; i < FUNCTIONS_MAX; i++) {
		struct function *f = &state.functions[i];

		if (!f->name)
			f->name = name;
		if (strcmp(f->name, name) == 0)
			return f;
	}
	tern_never("fake verbs: more functions than FUNCTIONS_MAX");
}

/* `name` lives for ever: it is a literal of FAKE_ENTER. */
int fake_fault(const char *name)
{
	struct function *f = find(name);

	f->call_count++;
	for (unsigned i = 0; i < FAULTS_MAX; i++) {
		struct fault *fault = &state.faults[i];

		if (fault->at_call == f->call_count && strcmp(fault->name, name) == 0) {
			fault->at_call = 0;
			return fault->err;
		}
	}
	return 0;
}

unsigned fake_verbs_calls(const char *function)
{
	FAKE_ENTER_ALWAYS("");
	for (unsigned i = 0; i < FUNCTIONS_MAX && state.functions[i].name; i++) {
		if (strcmp(state.functions[i].name, function) == 0)
			return state.functions[i].call_count;
	}
	return 0;
}

bool fake_wire_is_cut(const struct fake_device *a, const struct fake_device *b)
{
	return a->removed || b->removed;
}

bool fake_completions_held(enum fake_side side)
{
	(void)side;
	return false;
}

bool fake_event_held(const struct fake_event *event)
{
	(void)event;
	return false;
}

bool fake_event_lost(struct fake_event *event)
{
	(void)event;
	return false;
}
