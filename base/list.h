/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive doubly linked list. A node that is in no list points to itself, so
 * removing it twice is harmless, and tern_list_linked() tells whether it is in a list. */
#ifndef TERN_BASE_LIST_H
#define TERN_BASE_LIST_H

#include "base/util.h"

struct tern_list {
	struct tern_list *next, *prev;
};

static inline void tern_list_init(struct tern_list *l)
{
	l->next = l->prev = l;
}

static inline bool tern_list_empty(const struct tern_list *l)
{
	return l->next == l;
}

static inline bool tern_list_linked(const struct tern_list *n)
{
	return n->next != n;
}

static inline void tern_list_insert_(
	struct tern_list *n, struct tern_list *prev, struct tern_list *next)
{
	n->prev = prev;
	n->next = next;
	prev->next = n;
	next->prev = n;
}

/* Adds `n` at the end of `l`. */
static inline void tern_list_push(struct tern_list *l, struct tern_list *n)
{
	tern_list_insert_(n, l->prev, l);
}

/* Adds `n` at the front of `l`. */
static inline void tern_list_push_front(struct tern_list *l, struct tern_list *n)
{
	tern_list_insert_(n, l, l->next);
}

static inline void tern_list_remove(struct tern_list *n)
{
	n->prev->next = n->next;
	n->next->prev = n->prev;
	tern_list_init(n);
}

/* Removes and returns the first node; NULL if the list is empty. */
static inline struct tern_list *tern_list_pop(struct tern_list *l)
{
	struct tern_list *n = l->next;

	if (n == l)
		return NULL;
	tern_list_remove(n);
	return n;
}

/* Moves all of `from` to the end of `to`; `from` is empty afterwards. */
static inline void tern_list_splice(struct tern_list *to, struct tern_list *from)
{
	if (tern_list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	tern_list_init(from);
}

#define tern_list_entry(node, type, member) tern_container_of(node, type, member)

/* The first entry; NULL if the list is empty. */
#define tern_list_first(l, type, member)                                                 \
	(tern_list_empty(l) ? NULL : tern_list_entry((l)->next, type, member))

#define tern_list_for_each(pos, l)                                                       \
	for (struct tern_list *pos = (l)->next; pos != (l); pos = pos->next)

/* The body may remove `pos`, but no other node. */
#define tern_list_for_each_safe(pos, l)                                                  \
	for (struct tern_list *pos = (l)->next, *pos##_next_ = pos->next; pos != (l);    \
		pos = pos##_next_, pos##_next_ = pos->next)

#endif
