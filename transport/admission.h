/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admission of half-open connections: accepted connections whose peer has not completed
 * the handshake yet. Their number is limited, since each of them holds a descriptor and
 * memory of this process, and anybody can open one. If a newcomer exceeds the limit, one
 * connection is cut:
 *
 *   1. If a source (an address without its port; over shm a process) has far more
 *      half-open connections than the newcomer's source, the greedier source loses one:
 *      its oldest if that is overdue, else its newest. So no single host keeps another
 *      host out (unless the two share a counter: TERN_SOURCES).
 *   2. Otherwise the oldest is cut if it is overdue: it has not completed the handshake
 *      within TERN_OVERDUE_NS.
 *   3. Otherwise every fourth newcomer takes the place of the oldest that has sent
 *      nothing, if there is one. So about one attempt in four gets past silent
 *      connections of the same host, even if each of them is opened again as soon as it
 *      is cut: a newcomer that is admitted has time to send something.
 *   4. Otherwise the newcomer is cut, and dials again. Handshakes under way go on. If
 *      each newcomer cut one of them, then of many diallers that arrive at the same
 *      time, and return when they are cut, none would ever complete its handshake.
 *
 * While the limit is not reached, this module does not cut overdue connections.
 */
#ifndef TERN_TRANSPORT_ADMISSION_H
#define TERN_TRANSPORT_ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/list.h"

/* A half-open connection older than this is overdue: it may be cut to make room. */
#define TERN_OVERDUE_NS TERN_NS_PER_S
/* Number of counters for sources. If there are more sources, some of them share a
 * counter; a secret hash chooses which. */
#define TERN_SOURCES 256u
/* A source has "far more" connections than another if the difference is larger than
 * this. */
#define TERN_SOURCE_MORE 16u

struct tern_half_open {
	struct tern_list node;
	uint64_t since_ns; /* when the connection was accepted */
	uint8_t source;    /* hash of the address that the connection comes from */
	bool has_spoken;   /* something was received on the connection */
};

struct tern_admission {
	struct tern_list all; /* list of struct tern_half_open, oldest first */
	uint32_t count;
	uint32_t of_source[TERN_SOURCES];
	uint64_t salt; /* secret start value of the hash of sources */
	/* Number of newcomers handled by rules 3 and 4 (see the head of this file). */
	uint32_t crowded;
};

void tern_admission_init(struct tern_admission *a, uint64_t salt);

/* Adds a connection that was just accepted. `name` identifies the peer (tern_conn.name);
 * its source is the part before the last colon, or the whole name if it has no colon. */
void tern_admission_add(struct tern_admission *a, struct tern_half_open *h,
	const char *name, uint64_t now_ns);

/* Removes a connection from the half-open ones. No effect if it was never added; its node
 * must have been initialised. */
void tern_admission_remove(struct tern_admission *a, struct tern_half_open *h);

/* Returns the connection that must be cut after `newcomer` was added. NULL: none, since
 * there are at most `most` half-open connections. */
struct tern_half_open *tern_admission_excess(struct tern_admission *a,
	struct tern_half_open *newcomer, uint32_t most, uint64_t now_ns);

/* True if a connection that was accepted within the last TERN_OVERDUE_NS has not sent
 * anything yet. */
bool tern_admission_expects(const struct tern_admission *a, uint64_t now_ns);

#endif
