/* SPDX-License-Identifier: Apache-2.0 */
/* A push of a gradient (train.h, tern_slot_push()) in three steps, so that a caller can
 * take the second one, which goes through the gradient, without the lock of the context. */
#ifndef TERN_CLIENT_SESSION_H
#define TERN_CLIENT_SESSION_H

#include <tern/train.h>

/* Reserves tensor `id` for the caller, and returns the errors of tern_slot_push(). */
int session_reserve(struct tern_slot *slot, uint32_t id);
/* Copies the gradient of a reserved tensor from `from`, unless that is NULL, or rounds it if
 * it travels as bf16, and verifies it, if session_verifies(). */
void session_take(struct tern_slot *slot, uint32_t id, const float *from);
/* True if session_take() has something to do. */
bool session_goes_through(const struct tern_slot *slot, uint32_t id, const float *from);
bool session_verifies(const struct tern_slot *slot);
/* The gradient is complete: sends it, if the slot is not verified. */
void session_pushed(struct tern_slot *slot, uint32_t id);
/* True while a tensor is reserved. The slot must not be ended then. */
bool session_is_pushing(const struct tern_slot *slot);

struct tern_session *session_of_slot(const struct tern_slot *slot);

/* The session's worker; NULL: it has not started. For tests. */
struct tern_worker;
struct tern_worker *session_worker(const struct tern_session *s);
/* The servers of the job, where they are as far as the session knows; NULL: it does not go back.
 * For tests. */
struct tern_view;
const struct tern_view *session_view(const struct tern_session *s);

#endif
