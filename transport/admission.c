/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/admission.h"

#include <string.h>

#include "base/rng.h"

_Static_assert(TERN_SOURCES == UINT8_MAX + 1u, "struct tern_half_open: source");

#define half_open_of(n) tern_list_entry(n, struct tern_half_open, node)

void tern_admission_init(struct tern_admission *a, uint64_t salt)
{
	*a = (struct tern_admission){.salt = salt};
	tern_list_init(&a->all);
}

static uint8_t source_of(const struct tern_admission *a, const char *name)
{
	const char *port = strrchr(name, ':');
	uint64_t hash = a->salt;

	for (; *name && name != port; name++)
		hash = tern_mix64(hash ^ (unsigned char)*name);
	return (uint8_t)hash;
}

void tern_admission_add(struct tern_admission *a, struct tern_half_open *h,
	const char *name, uint64_t now_ns)
{
	h->since_ns = now_ns;
	h->source = source_of(a, name);
	h->has_spoken = false;
	tern_list_push(&a->all, &h->node);
	a->count++;
	a->of_source[h->source]++;
}

void tern_admission_remove(struct tern_admission *a, struct tern_half_open *h)
{
	if (!tern_list_linked(&h->node))
		return;
	tern_list_remove(&h->node);
	a->count--;
	a->of_source[h->source]--;
}

static bool is_overdue(const struct tern_half_open *h, uint64_t now_ns)
{
	return now_ns - h->since_ns >= TERN_OVERDUE_NS;
}

static unsigned greediest(const struct tern_admission *a)
{
	unsigned most = 0;

	for (unsigned i = 1; i < TERN_SOURCES; i++)
		if (a->of_source[i] > a->of_source[most])
			most = i;
	return most;
}

/* Returns the oldest overdue connection of `source`, or of all sources if source < 0.
 * NULL: none is overdue. */
static struct tern_half_open *oldest_overdue(
	const struct tern_admission *a, int source, uint64_t now_ns)
{
	tern_list_for_each (n, &a->all) {
		struct tern_half_open *h = half_open_of(n);

		if (!is_overdue(h, now_ns))
			return NULL;
		if (source < 0 || h->source == source)
			return h;
	}
	return NULL;
}

/* Returns the oldest connection that has sent nothing. There is at least one, the
 * newcomer. */
static struct tern_half_open *oldest_silent(const struct tern_admission *a)
{
	struct tern_list *n = a->all.next;

	while (half_open_of(n)->has_spoken)
		n = n->next;
	return half_open_of(n);
}

static struct tern_half_open *newest_of(const struct tern_admission *a, unsigned source)
{
	struct tern_list *n = a->all.prev;

	while (half_open_of(n)->source != source)
		n = n->prev;
	return half_open_of(n);
}

struct tern_half_open *tern_admission_excess(struct tern_admission *a,
	struct tern_half_open *newcomer, uint32_t most, uint64_t now_ns)
{
	struct tern_half_open *h;
	unsigned greedy;

	if (a->count <= most)
		return NULL;
	greedy = greediest(a);
	if (a->of_source[greedy] > a->of_source[newcomer->source] + TERN_SOURCE_MORE) {
		h = oldest_overdue(a, (int)greedy, now_ns);
		return h ? h : newest_of(a, greedy);
	}
	h = oldest_overdue(a, -1, now_ns);
	if (h)
		return h;
	return ++a->crowded % 4 == 0 ? oldest_silent(a) : newcomer;
}

bool tern_admission_expects(const struct tern_admission *a, uint64_t now_ns)
{
	for (struct tern_list *n = a->all.prev; n != &a->all; n = n->prev) {
		if (is_overdue(half_open_of(n), now_ns))
			return false;
		if (!half_open_of(n)->has_spoken)
			return true;
	}
	return false;
}
