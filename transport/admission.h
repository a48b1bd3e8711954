/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admission of half-open connections: those accepted whose other end has not proved
 * itself yet. Their number is bounded, since each holds a descriptor and memory of this
 * process, and anybody can open one. If one more comes than the bound allows, one
 * connection is cut:
 *
 *   1. If a source has far more of them than the newcomer's source, that source loses
 *      one: its oldest if that is overdue, else its newest. So no host keeps another
 *      host out.
 *   2. Otherwise the oldest is cut if it is overdue: it has not proved itself within
 *      TERN_OVERDUE_NS.
 *   3. Otherwise every fourth newcomer takes the place of the oldest that has sent
 *      nothing. So silent connections keep other connections of their own host out for
 *      four attempts at most, even if each of them is opened again as soon as it is cut:
 *      a newcomer that is admitted has time to send something.
 *   4. Otherwise the newcomer is cut, and dials again. Handshakes under way go on. If
 *      each newcomer cut one of them, then of many diallers that come at once, and
 *      return when they are cut, none would ever complete its handshake.
 *
 * While the bound is not reached, this module does not cut overdue connections.
 */
#ifndef TERN_TRANSPORT_ADMISSION_H
#define TERN_TRANSPORT_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/list.h"

#define TERN_OVERDUE_NS TERN_NS_PER_S
/* If there are more sources than this, some share a count; a secret hash chooses
 * which. */
#define TERN_SOURCES 256u
/* One source has "far more" than another from this difference on. */
#define TERN_SOURCE_MORE 16u

struct tern_half_open {
	struct tern_list node;
	uint64_t since_ns; /* when the connection was accepted */
	uint8_t source;    /* hash of the address that the connection comes from */
	bool has_spoken;   /* something was received on the connection */
};

struct tern_admission {
	struct tern_list all; /* struct tern_half_open, oldest first */
	uint32_t count;
	uint32_t of_source[TERN_SOURCES];
	uint64_t salt;    /* makes the hash of the sources secret */
	uint32_t crowded; /* newcomers that rules 3 and 4 were applied to */
};

void tern_admission_init(struct tern_admission *a, uint64_t salt);

/* Adds a connection that was just accepted. `name`: its name; the part before the last
 * colon is its source. */
void tern_admission_add(struct tern_admission *a, struct tern_half_open *h,
	const char *name, uint64_t now_ns);

/* Does nothing for a connection that was not added, if its node is initialised. */
void tern_admission_remove(struct tern_admission *a, struct tern_half_open *h);

/* Returns the connection to be cut after `newcomer` was added. NULL: none, since there
 * are at most `most`. */
struct tern_half_open *tern_admission_excess(struct tern_admission *a,
	struct tern_half_open *newcomer, uint32_t most, uint64_t now_ns);

/* True: a connection was accepted within the last TERN_OVERDUE_NS that has sent
 * nothing yet. */
bool tern_admission_expects(const struct tern_admission *a, uint64_t now_ns);

#endif
