/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network interfaces that plug-ins use: those of this host that are up, without
 * loopback, unless there is nothing else. TERN_NET_IFNAME, or NCCL_SOCKET_IFNAME without
 * it, chooses among them as NCCL does: beginnings of names with commas between them, "="
 * in front for whole names, "^" for all others.
 */
#ifndef TERN_PLUGINS_COMMON_DEVICES_H
#define TERN_PLUGINS_COMMON_DEVICES_H

#include <stddef.h>

#define DEVICES_MAX 16u

struct device {
	char name[40];    /* of the interface */
	char address[60]; /* "10.0.0.7", "[fd00::7]" */
	char pci[300];    /* path in /sys; "": none */
	int mbits;
};

/* Returns how many devices there are, and their table, which stays as it is. */
unsigned devices_find(const struct device **out);
/* Writes why there are no devices: the variable that names none, and the interfaces that are
 * up. */
void devices_why_none(char *out, size_t size);

#endif
