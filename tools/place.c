/* SPDX-License-Identifier: Apache-2.0 */
/* See place.h. */
#include "tools/place.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/util.h"
#include "tools/signals.h"
#include "transport/addr.h"

/* Intervals of looks at the files: while ranks wait, and afterwards, when rank 0 only has
 * to hear of their ends. */
#define LOOK_NS      (100 * TERN_NS_PER_MS)
#define LOOK_LATE_NS TERN_NS_PER_S
/* A rank says that it waits if it does so for longer than launchers need to start. */
#define TELL_NS TERN_NS_PER_S
/* Interval at which a rank looks whether its launcher lives. A parent-death signal
 * (prctl(2)) also comes when only the launcher's thread that has forked ends. */
#define ORPHAN_MS 1000

/* ---- the options ---- */

static int check_alone(
	const struct place *p, const struct place_settings *s, struct message *error)
{
	const char *given = s->rendezvous ? "--rendezvous"
			    : s->port     ? "--port"
			    : s->wait_s   ? "--wait"
					  : NULL;

	/* A launcher that has started a single process is no reason to refuse. */
	if (!given || s->alone || p->ranks.launcher)
		return 0;
	return options_refuse(error,
		"%s is for several of this process, which srun, mpirun or torchrun "
		"starts: "
		"the environment has none of SLURM_PROCID (in a step), "
		"OMPI_COMM_WORLD_RANK, PMI_RANK and RANK",
		given);
}

static int check_workers(
	const struct place *p, const struct place_opts *o, struct message *error)
{
	const struct ranks *k = &p->ranks;

	if (!o->workers || o->workers == k->size)
		return 0;
	return options_refuse(error,
		"--workers %llu: %s=%llu of this process were started (%s), and each "
		"starts one worker: leave --workers out; or give --alone to start all "
		"workers here",
		(unsigned long long)o->workers, k->size_name, (unsigned long long)k->size,
		k->launcher);
}

/* Returns the host at whose ports (--port) the servers are. */
static const char *host_of_port(const struct place *p)
{
	const char *host = getenv("MASTER_ADDR");

	if (p->ranks.one_host)
		return "127.0.0.1";
	return host && *host ? host : NULL;
}

static int check_port(
	const struct place *p, const struct place_opts *o, struct message *error)
{
	uint64_t port = o->settings->port;
	const char *fabric = fabric_name(o->fabric);

	if (o->settings->rendezvous || o->listen)
		return options_refuse(error, "--port and %s exclude each other",
			o->listen ? "--listen" : "--rendezvous");
	if (o->fabric->choice != FABRIC_AUTO && strcmp(fabric, "tcp") != 0)
		return options_refuse(
			error, "--port: needs --fabric tcp or auto, not %s", fabric);
	if (port + o->servers - 1 > 65535)
		return options_refuse(error,
			"--port %llu: %llu servers need as many ports, and the highest "
			"is 65535",
			(unsigned long long)port, (unsigned long long)o->servers);
	if (!host_of_port(p))
		return options_refuse(error,
			"--port: the host of rank 0 is not known: set MASTER_ADDR on all "
			"hosts, or give --rendezvous instead");
	return 0;
}

static int check_meeting(
	const struct place *p, const struct place_opts *o, struct message *error)
{
	if (o->settings->port)
		return check_port(p, o, error);
	if (!o->settings->rendezvous && !p->ranks.one_host)
		return options_refuse(error,
			"the ranks of %s may be on several hosts: give --rendezvous DIR, "
			"a directory that all of them share, or --port",
			p->ranks.launcher);
	if (!o->settings->rendezvous && !p->ranks.named)
		return options_refuse(error,
			"the variables of %s do not tell this job from others on this "
			"host: set TERN_JOB to a name of the job for all ranks, or give "
			"--rendezvous DIR, a directory for this job alone",
			p->ranks.launcher);
	if (fabric_stays_here(o->fabric) && !p->ranks.one_host)
		return options_refuse(error,
			"--fabric %s: is for one host, and the ranks of %s may be on "
			"several",
			fabric_name(o->fabric), p->ranks.launcher);
	return 0;
}

/* On one host the directory that is only this user's hands the secret on. */
static int check_secret(const struct place *p, const struct place_opts *o,
	const struct secret *secret, struct message *error)
{
	if (*secret->text || o->secret->insecure ||
		(p->ranks.one_host && !o->settings->port))
		return 0;
	return options_refuse(error,
		"%s: give all ranks the same --secret-file (docs/operations.md, \"Who "
		"may come in\"), or --insecure if any process may join",
		o->settings->port ? "--port hands no secret on to the other ranks"
				  : "the ranks may be on several hosts and need a secret "
				    "in common");
}

/* Finds an address of this host that others can use, as "10.0.0.7:0": that of the host's
 * name, else the first one that is not loopback. */
static int find_address(char *out, size_t bytes)
{
	char name[256] = "";
	struct tern_addrs found;
	struct tern_addr addr = {0};
	struct ifaddrs *all, *a;

	gethostname(name, sizeof(name) - 3);
	strcat(name, ":0");
	if (tern_addr_resolve(name, false, &found) == 0)
		for (unsigned i = 0; i < found.count; i++) {
			tern_addr_print(&found.addr[i], out, bytes);
			if (!tern_addr_is_loopback(out))
				return 0;
		}
	if (getifaddrs(&all) < 0)
		return -errno;
	for (a = all; a && !addr.len; a = a->ifa_next)
		if (a->ifa_addr && a->ifa_addr->sa_family == AF_INET &&
			(a->ifa_flags & (IFF_UP | IFF_LOOPBACK)) == IFF_UP) {
			addr.len = sizeof(struct sockaddr_in);
			memcpy(&addr.sa, a->ifa_addr, addr.len);
		}
	freeifaddrs(all);
	if (addr.len)
		tern_addr_print(&addr, out, bytes);
	return addr.len ? 0 : -ENOENT;
}

/* Chooses where the servers listen and, for --port, where they are reached. */
static int choose_addresses(
	struct place *p, const struct place_opts *o, struct message *error)
{
	const char *host;
	size_t n = 0;

	if (!o->settings->port) {
		if (p->ranks.rank || p->ranks.one_host || fabric_stays_here(o->fabric))
			return 0;
		return find_address(p->listen, sizeof(p->listen)) == 0 || o->listen
			       ? 0
			       : options_refuse(error,
					 "this host has no address that others can "
					 "use: give --listen HOST:0");
	}
	host = host_of_port(p);
	snprintf(p->listen, sizeof(p->listen), "%s:%llu", p->ranks.one_host ? host : "",
		(unsigned long long)o->settings->port);
	for (uint64_t i = 0; i < o->servers; i++)
		n += (size_t)snprintf(p->join + n, sizeof(p->join) - n,
			strchr(host, ':') ? "%s[%.60s]:%llu" : "%s%.60s:%llu",
			i ? "," : "", host, (unsigned long long)(o->settings->port + i));
	return 0;
}

int place_find(struct place *p, const struct place_opts *o, struct secret *secret,
	struct message *error)
{
	int r = 0;

	*p = (struct place){.ranks = {.size = 1}, .settings = o->settings};
	if (!o->settings->alone)
		r = ranks_find(&p->ranks, error);
	if (r == 0 && !place_is_ranked(p)) {
		r = check_alone(p, o->settings, error);
		return r || !o->secret->file ? r : secret_read(o->secret, secret, error);
	}
	if (r == 0)
		r = check_workers(p, o, error);
	if (r == 0)
		r = check_meeting(p, o, error);
	if (r == 0)
		r = secret_read(o->secret, secret, error);
	p->has_secret = *secret->text != '\0';
	if (r == 0)
		r = check_secret(p, o, secret, error);
	return r ? r : choose_addresses(p, o, error);
}

const char *place_listen(const struct place *p, const struct place_opts *o)
{
	if (o->listen || !*p->listen)
		return o->listen;
	/* verbs finds its device's address better */
	return o->settings->port || o->fabric->choice == FABRIC_AUTO ||
			       strcmp(fabric_name(o->fabric), "tcp") == 0
		       ? p->listen
		       : NULL;
}

/* ---- meeting the others ---- */

int place_open(struct place *p, struct message *error)
{
	uint64_t now_ns = tern_clock_ns(), wait_s = p->settings->wait_s;
	int r = 0;

	if (!place_is_ranked(p))
		return 0;
	p->until_ns = now_ns + (wait_s ? wait_s : PLACE_WAIT_S) * TERN_NS_PER_S;
	p->tell_ns = now_ns + TELL_NS;
	p->found = place_has_servers(p);
	p->ended = calloc(p->ranks.size, sizeof(*p->ended));
	if (!p->ended)
		return options_refuse(error, "%s", strerror(ENOMEM));
	if (p->settings->port)
		return 0;
	r = meet_open(&p->meet, &p->ranks, p->settings->rendezvous, error);
	p->meets = r == 0;
	return r || place_has_servers(p) ? r : meet_call(&p->meet, error);
}

void place_close(struct place *p)
{
	if (p->meets)
		meet_close(&p->meet);
	p->meets = false;
	free(TERN_TAKE(p->ended));
}

/* Writes the address of a server, which may listen at all addresses of its host, with the
 * one that was found for others to use. */
static void write_address(
	const struct place *p, const char *address, char *out, size_t bytes)
{
	static const char *const all[] = {"://0.0.0.0:", "://[::]:"};
	const char *at = NULL, *port = strrchr(address, ':');
	const char *host_end = strrchr(p->listen, ':');

	for (size_t i = 0; i < TERN_ARRAY_SIZE(all) && !at; i++)
		at = strstr(address, all[i]);
	if (at && host_end)
		snprintf(out, bytes, "%.*s://%.*s%s", (int)(at - address), address,
			(int)(host_end - p->listen), p->listen, port);
	else
		snprintf(out, bytes, "%s", address);
}

int place_publish(struct place *p, char *join, size_t bytes, const char *secret,
	struct message *error)
{
	char *all = strdup(join), *rest = all, address[200];
	const char *one;
	size_t n = 0;

	if (!place_is_ranked(p) || !all) {
		free(all);
		return 0;
	}
	while ((one = strsep(&rest, ",")) && !p->settings->port) {
		write_address(p, one, address, sizeof(address));
		n += (size_t)snprintf(join + n, bytes - n, "%s%s", n ? "," : "", address);
	}
	free(all);
	if (p->settings->port)
		snprintf(join, bytes, "%s", p->join);
	if (!p->meets)
		return 0;
	return meet_publish(&p->meet, join, p->has_secret ? NULL : secret, error);
}

static void other_ended(void *arg, unsigned rank, const char *text)
{
	struct place *p = arg;

	if (p->ended[rank])
		return;
	p->ended[rank] = true;
	p->ended_count++;
	if (!*p->first_end)
		snprintf(p->first_end, sizeof(p->first_end), "%s", text);
}

static void give_up(struct place *p, struct message *error)
{
	unsigned long long s = p->settings->wait_s ? p->settings->wait_s : PLACE_WAIT_S;

	if (p->meets)
		options_refuse(error,
			"rank 0 has not said within %llu s (--wait) where its servers "
			"are, in %.200s/%.100s.servers: all ranks need the same "
			"--rendezvous, a directory that they share",
			s, p->meet.dir, p->meet.base);
	else
		options_refuse(error,
			"no server listened within %llu s (--wait) at %.300s: rank 0 "
			"starts them there",
			s, p->join);
}

/* Looks for the servers. Returns 1 when they are known. */
static int look(struct place *p, char *join, size_t bytes, struct secret *secret,
	struct message *error)
{
	int r;

	if (p->meets) {
		r = meet_find(&p->meet, join, bytes, secret, error);
	} else {
		r = meet_is_listening(p->join);
		if (r)
			snprintf(join, bytes, "%s", p->join);
	}
	p->found = r == 1;
	if (r == 0 && tern_clock_ns() >= p->until_ns) {
		give_up(p, error);
		return -EIO;
	}
	return r;
}

/* Rank 0 looks at the files. */
static int serve(struct place *p, struct message *error)
{
	int r = meet_serve(&p->meet, other_ended, p, error);

	if (r == 0 || !meet_all_here(&p->meet))
		return r;
	snprintf(p->deaf, sizeof(p->deaf), "%s", error->text);
	return 0;
}

static bool has_turns(const struct place *p)
{
	return place_is_ranked(p) && (!p->found || (place_has_servers(p) && p->meets));
}

int place_turn(struct place *p, char *join, size_t bytes, struct secret *secret,
	struct message *error)
{
	if (!has_turns(p) || tern_clock_ns() < p->look_ns)
		return 0;
	p->look_ns = tern_clock_ns() + (place_has_servers(p) && meet_all_here(&p->meet)
						       ? LOOK_LATE_NS
						       : LOOK_NS);
	if (!place_has_servers(p))
		return look(p, join, bytes, secret, error);
	return serve(p, error);
}

int place_turn_ms(const struct place *p)
{
	uint64_t now_ns = tern_clock_ns();

	if (!has_turns(p))
		return p->launcher ? ORPHAN_MS : -1;
	return now_ns >= p->look_ns ? 0
				    : (int)((p->look_ns - now_ns) / TERN_NS_PER_MS) + 1;
}

/* Returns true the first time. */
static bool is_deaf(struct place *p, char *text, size_t bytes)
{
	if (!*p->deaf || p->deaf_told)
		return false;
	p->deaf_told = true;
	snprintf(text, bytes,
		"%.600s: the job goes on, but rank 0 cannot see which ranks have ended",
		p->deaf);
	return true;
}

static bool is_waiting(struct place *p, char *text, size_t bytes)
{
	if (!place_is_ranked(p) || p->found || !p->tell_ns ||
		tern_clock_ns() < p->tell_ns)
		return false;
	p->tell_ns = 0;
	if (p->meets)
		snprintf(text, bytes,
			"rank %llu of %llu waits for rank 0 to say in %.200s where its "
			"servers are",
			(unsigned long long)p->ranks.rank,
			(unsigned long long)p->ranks.size, p->meet.dir);
	else
		snprintf(text, bytes,
			"rank %llu of %llu waits for the servers of rank 0 at %.300s",
			(unsigned long long)p->ranks.rank,
			(unsigned long long)p->ranks.size, p->join);
	return true;
}

bool place_has_note(struct place *p, char *text, size_t bytes)
{
	return is_waiting(p, text, bytes) || is_deaf(p, text, bytes);
}

void place_watch_launcher(struct place *p)
{
	p->launcher = p->ranks.by_hand ? 0 : getppid();
}

bool place_is_orphaned(const struct place *p)
{
	return p->launcher && getppid() != p->launcher;
}

void place_say_end(struct place *p, int signal, const char *text)
{
	char by_signal[80];

	if (!p->meets || place_has_servers(p))
		return;
	snprintf(by_signal, sizeof(by_signal), "rank %llu was ended by %s",
		(unsigned long long)p->ranks.rank, signal ? signals_name(signal) : "");
	meet_say_end(&p->meet, signal ? by_signal : text);
}
