/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/common/devices.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct device table[DEVICES_MAX];
static unsigned count;

/* True if a word of the list, which has commas, is the name or its beginning. */
static bool is_named(const char *list, const char *name, bool whole)
{
	while (*list) {
		size_t n = strcspn(list, ",");

		if (n > 0 && strncmp(list, name, n) == 0 && (!whole || name[n] == '\0'))
			return true;
		list += n + (list[n] == ',');
	}
	return false;
}

static bool is_chosen(const char *wanted, const struct ifaddrs *i)
{
	bool others = wanted && *wanted == '^', whole;

	if (!wanted || !*wanted)
		return !(i->ifa_flags & IFF_LOOPBACK);
	wanted += others;
	whole = *wanted == '=';
	return is_named(wanted + whole, i->ifa_name, whole) != others;
}

/* Writes the address as it stands in front of a port. */
static bool write_address(const struct sockaddr *from, char *out, size_t size)
{
	char text[INET6_ADDRSTRLEN];

	if (from->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const void *)from;

		inet_ntop(AF_INET, &in->sin_addr, out, (socklen_t)size);
		return true;
	}
	if (from->sa_family == AF_INET6) {
		const struct sockaddr_in6 *in = (const void *)from;

		if (IN6_IS_ADDR_LINKLOCAL(&in->sin6_addr))
			return false;
		inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof(text));
		snprintf(out, size, "[%s]", text);
		return true;
	}
	return false;
}

static int read_mbits(const char *name)
{
	char path[100];
	int mbits = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/class/net/%.60s/speed", name);
	f = fopen(path, "re");
	if (f) {
		if (fscanf(f, "%d", &mbits) != 1)
			mbits = 0;
		fclose(f);
	}
	return mbits > 0 ? mbits : 10000; /* as NCCL assumes */
}

static void add(const struct ifaddrs *i)
{
	struct device *d = &table[count];
	char path[100], real[PATH_MAX];

	*d = (struct device){.mbits = read_mbits(i->ifa_name)};
	snprintf(d->name, sizeof(d->name), "%s", i->ifa_name);
	snprintf(path, sizeof(path), "/sys/class/net/%.60s/device", i->ifa_name);
	if (realpath(path, real) && strlen(real) < sizeof(d->pci))
		strcpy(d->pci, real);
	if (write_address(i->ifa_addr, d->address, sizeof(d->address)))
		count++;
}

static bool is_there(const char *name)
{
	for (unsigned k = 0; k < count; k++)
		if (strcmp(table[k].name, name) == 0)
			return true;
	return false;
}

/* True if the interface is up, and this is its address of the family. */
static bool is_up(const struct ifaddrs *i, int family)
{
	return i->ifa_addr && i->ifa_addr->sa_family == family && (i->ifa_flags & IFF_UP);
}

static void find_of(const struct ifaddrs *all, const char *wanted, int family)
{
	for (const struct ifaddrs *i = all; i && count < DEVICES_MAX; i = i->ifa_next)
		if (is_up(i, family) && is_chosen(wanted, i) && !is_there(i->ifa_name))
			add(i);
}

/* The variable that chooses. It may not be set. */
static const char *choosing(void)
{
	return getenv("TERN_NET_IFNAME") ? "TERN_NET_IFNAME" : "NCCL_SOCKET_IFNAME";
}

static void find(void)
{
	const char *wanted = getenv(choosing());
	struct ifaddrs *all;

	if (getifaddrs(&all) < 0)
		return;
	find_of(all, wanted, AF_INET);
	find_of(all, wanted, AF_INET6);
	if (count == 0 && (!wanted || !*wanted))
		find_of(all, "lo", AF_INET);
	freeifaddrs(all);
}

unsigned devices_find(const struct device **out)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, find);
	*out = table;
	return count;
}

void devices_why_none(char *out, size_t size)
{
	const char *variable = choosing(), *wanted = getenv(variable),
		   *before = "; up are ";
	struct ifaddrs *all;
	size_t used;

	if (wanted && *wanted)
		used = (size_t)snprintf(out, size,
			"%s=%.200s names no network interface that is up", variable,
			wanted);
	else
		used = (size_t)snprintf(out, size, "no network interface is up");
	if (getifaddrs(&all) < 0)
		return;
	for (const struct ifaddrs *i = all; i && used < size; i = i->ifa_next) {
		if (!is_up(i, AF_INET))
			continue;
		used += (size_t)snprintf(
			out + used, size - used, "%s%s", before, i->ifa_name);
		before = ", ";
	}
	freeifaddrs(all);
}
