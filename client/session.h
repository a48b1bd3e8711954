/* SPDX-License-Identifier: Apache-2.0 */
/* A push of a gradient (train.h, tern_slot_push()) in two steps, so that a caller can
 * copy the gradient between them without the lock of the context. */
#ifndef TERN_CLIENT_SESSION_H
#define TERN_CLIENT_SESSION_H

#include <tern/train.h>

/* Reserves tensor `id` for the caller, and returns the errors of tern_slot_push(). Then
 * the caller fills tern_slot_gradient(), *count elements, and calls session_pushed(). */
int session_reserve(struct tern_slot *slot, uint32_t id, uint64_t *count);
void session_pushed(struct tern_slot *slot, uint32_t id);
/* True while a tensor is reserved. The slot must not be ended then. */
bool session_is_pushing(const struct tern_slot *slot);

struct tern_session *session_of_slot(const struct tern_slot *slot);

/* The session's worker; NULL: it has not started. For tests. */
struct tern_worker;
struct tern_worker *session_worker(const struct tern_session *s);

#endif
