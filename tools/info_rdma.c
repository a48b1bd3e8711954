/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See info_rdma.h. Devices are queried through the table of functions that the verbs
 * fabric uses; sysfs adds what verbs do not report: the driver and the network
 * interfaces.
 *
 * The IP addresses of a device are found as the verbs fabric will find them: librdmacm is
 * asked to bind to each address of this machine that other hosts may reach, and returns
 * the device. GIDs alone are not enough, since an InfiniBand port has the address of its
 * IPoIB interface.
 */
#include "tools/info_rdma.h"

#include <stdio.h>
#include <string.h>

#include "tern-config.h"
#include "tools/info_json.h"

#if TERN_HAVE_VERBS
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/util.h"
#include "transport/verbs/verbs.h"

/* Largest slab (a piece of memory that a pool registers as a whole), in bytes. */
#define SLAB_MAX_BYTES (64ull << 30)
/* If a device allows fewer connections than this, its "differences" say so. */
#define CONNECTIONS_FEW 64

struct found {
	struct ibv_context *context;
	struct ibv_device_attr attr;
	json_t *json;
};

struct scan {
	const struct tern_verbs_api *api;
	struct verbs_opts opts;
	struct found *found;
	unsigned count, used_count;
};

/* ---- reading sysfs ---- */

static bool first_line(const char *path, char *line, size_t bytes)
{
	FILE *f = fopen(path, "re");
	bool ok = f && fgets(line, (int)bytes, f);

	if (f)
		fclose(f);
	if (!ok)
		return false;
	line[strcspn(line, "\n")] = '\0';
	return *line != '\0';
}

/* Reads a line of a file in the device's sysfs folder. False: there is no such file; a
 * simulated device has no folder. */
static bool device_line(
	const struct ibv_context *context, const char *name, char *line, size_t bytes)
{
	char path[sizeof(context->device->ibdev_path) + 64];

	if (!*context->device->ibdev_path)
		return false;
	snprintf(path, sizeof(path), "%s/%s", context->device->ibdev_path, name);
	return first_line(path, line, bytes);
}

static bool has_hardware(const struct ibv_context *context)
{
	char path[sizeof(context->device->ibdev_path) + 64];

	snprintf(path, sizeof(path), "%s/device", context->device->ibdev_path);
	return access(path, F_OK) == 0;
}

static void set_driver(const struct ibv_context *context, json_t *device)
{
	char path[sizeof(context->device->ibdev_path) + 64], target[256];
	ssize_t n;
	char *slash;

	snprintf(path, sizeof(path), "%s/device/driver", context->device->ibdev_path);
	n = readlink(path, target, sizeof(target) - 1);
	if (n < 0)
		return;
	target[n] = '\0';
	slash = strrchr(target, '/');
	json_object_set_new(device, "driver", json_string(slash ? slash + 1 : target));
}

/* Reads the name of the network interface of a GID. */
static bool gid_netdev(const struct ibv_context *context, unsigned port, int index,
	char *name, size_t bytes)
{
	char file[64];

	snprintf(file, sizeof(file), "ports/%u/gid_attrs/ndevs/%d", port, index);
	return device_line(context, file, name, bytes);
}

static json_int_t ip_mtu(const char *netdev)
{
	char path[64 + IF_NAMESIZE], line[32];

	snprintf(path, sizeof(path), "/sys/class/net/%.*s/mtu", IF_NAMESIZE, netdev);
	return first_line(path, line, sizeof(line)) ? atoll(line) : 0;
}

/* ---- GIDs ---- */

/* Writes the IP address of a GID of an Ethernet port. False if the address is link-local:
 * such an address exists on every link. */
static bool gid_address(const union ibv_gid *gid, char *out, size_t bytes)
{
	struct in6_addr a;

	memcpy(&a, gid->raw, sizeof(a));
	if (IN6_IS_ADDR_V4MAPPED(&a))
		return inet_ntop(AF_INET, gid->raw + 12, out, (socklen_t)bytes) != NULL;
	return !IN6_IS_ADDR_LINKLOCAL(&a) &&
	       inet_ntop(AF_INET6, &a, out, (socklen_t)bytes) != NULL;
}

/* Formats a GID as sysfs does. */
static json_t *gid_text(const union ibv_gid *gid)
{
	char text[64] = "";

	for (int i = 0; i < 16; i += 2)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%02x%02x",
			i ? ":" : "", gid->raw[i], gid->raw[i + 1]);
	return json_string(text);
}

static json_t *list_gids(const struct scan *s, struct ibv_context *context, uint8_t port,
	const struct ibv_port_attr *attr)
{
	static const union ibv_gid none;
	json_t *gids = json_array();

	for (int i = 0; i < attr->gid_tbl_len; i++) {
		char type[32] = "", address[INET6_ADDRSTRLEN], netdev[IF_NAMESIZE + 1];
		union ibv_gid gid;
		json_t *one;

		if (s->api->query_gid(context, port, i, &gid) ||
			memcmp(&gid, &none, sizeof(gid)) == 0)
			continue;
		s->api->query_gid_type(context, port, i, type, sizeof(type));
		one = json_pack(
			"{si so ss}", "index", i, "gid", gid_text(&gid), "type", type);
		/* A GID of iWARP contains a MAC address, which may look like IPv6. */
		if (attr->link_layer == IBV_LINK_LAYER_ETHERNET &&
			context->device->transport_type != IBV_TRANSPORT_IWARP &&
			gid_address(&gid, address, sizeof(address)))
			json_object_set_new(one, "address", json_string(address));
		if (gid_netdev(context, port, i, netdev, sizeof(netdev)))
			json_object_set_new(one, "netdev", json_string(netdev));
		json_array_append_new(gids, one);
	}
	return gids;
}

/* ---- ports ---- */

static const char *state_name(enum ibv_port_state state)
{
	static const char *const names[] = {[IBV_PORT_NOP] = "not there",
		[IBV_PORT_DOWN] = "down",
		[IBV_PORT_INIT] = "waits for a subnet manager",
		[IBV_PORT_ARMED] = "armed",
		[IBV_PORT_ACTIVE] = "active",
		[IBV_PORT_ACTIVE_DEFER] = "active, but its link is down"};

	return (unsigned)state < TERN_ARRAY_SIZE(names) ? names[state] : "unknown";
}

static const char *layer_name(uint8_t layer)
{
	return layer == IBV_LINK_LAYER_ETHERNET     ? "Ethernet"
	       : layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand"
						    : "unspecified";
}

static int mtu_bytes(enum ibv_mtu mtu)
{
	return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128 << mtu : 0;
}

/* Returns the rate of a port: the kernel's text, since the kernel knows the newest
 * speeds; without it, a text from the port's width and speed codes. */
static json_t *rate_text(const struct ibv_context *context, unsigned port,
	const struct ibv_port_attr *attr)
{
	static const struct {
		unsigned code, lanes;
	} widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
	static const struct {
		unsigned code;
		const char *name;
		double gbits; /* nominal speed of a lane in Gbit/s */
	} speeds[] = {{1, "SDR", 2.5}, {2, "DDR", 5}, {4, "QDR", 10}, {8, "FDR10", 10},
		{16, "FDR", 14}, {32, "EDR", 25}, {64, "HDR", 50}, {128, "NDR", 100}};
	char file[64], line[64];

	snprintf(file, sizeof(file), "ports/%u/rate", port);
	if (device_line(context, file, line, sizeof(line)))
		return json_string(line);
	for (size_t w = 0; w < TERN_ARRAY_SIZE(widths); w++) {
		for (size_t i = 0; i < TERN_ARRAY_SIZE(speeds); i++) {
			if (widths[w].code == attr->active_width &&
				speeds[i].code == attr->active_speed)
				return json_sprintf("%g Gb/sec (%uX %s)",
					widths[w].lanes * speeds[i].gbits,
					widths[w].lanes, speeds[i].name);
		}
	}
	return json_string("unknown");
}

static void set_netdev(json_t *port)
{
	json_t *gid, *netdev = NULL;
	size_t i;

	json_array_foreach(json_object_get(port, "gids"), i, gid)
	{
		netdev = netdev ? netdev : json_object_get(gid, "netdev");
	}
	if (!netdev)
		return;
	json_object_set(port, "netdev", netdev);
	json_object_set_new(
		port, "ip_mtu", json_integer(ip_mtu(json_string_value(netdev))));
}

static json_t *describe_port(
	const struct scan *s, struct ibv_context *context, uint8_t number)
{
	struct ibv_port_attr attr = {0};
	json_t *port = json_pack("{si}", "port", number);

	if (s->api->query_port(context, number, &attr)) {
		json_object_set_new(port, "state", json_string("does not answer"));
		return port;
	}
	json_object_set_new(port, "state", json_string(state_name(attr.state)));
	json_object_set_new(port, "link_layer", json_string(layer_name(attr.link_layer)));
	json_object_set_new(port, "mtu", json_integer(mtu_bytes(attr.active_mtu)));
	json_object_set_new(port, "mtu_max", json_integer(mtu_bytes(attr.max_mtu)));
	json_object_set_new(port, "rate", rate_text(context, number, &attr));
	json_object_set_new(port, "message_max", json_integer(attr.max_msg_sz));
	if (attr.link_layer == IBV_LINK_LAYER_INFINIBAND)
		json_object_set_new(port, "lid", json_integer(attr.lid));
	json_object_set_new(port, "gids", list_gids(s, context, number, &attr));
	set_netdev(port);
	return port;
}

/* ---- describing a device as a JSON object ---- */

static const char *transport_name(const struct ibv_context *context, const json_t *ports)
{
	const char *layer = json_string_value(
		json_object_get(json_array_get(ports, 0), "link_layer"));

	switch (context->device->transport_type) {
	case IBV_TRANSPORT_IB:
		return layer && strcmp(layer, "Ethernet") == 0 ? "RoCE" : "InfiniBand";
	case IBV_TRANSPORT_IWARP:
		return "iWARP";
	case IBV_TRANSPORT_USNIC:
	case IBV_TRANSPORT_USNIC_UDP:
		return "usNIC";
	case IBV_TRANSPORT_UNSPECIFIED:
	case IBV_TRANSPORT_UNKNOWN:
		break;
	}
	return "unknown";
}

/*
 * True for a software device such as rxe (Soft-RoCE) or siw: it has no hardware device in
 * sysfs. Older kernels link it to the network card's device, but then its vendor is 0 or
 * a pseudo vendor.
 */
static bool is_software(
	const struct ibv_context *context, const struct ibv_device_attr *attr)
{
	if (!*context->device->ibdev_path)
		return false; /* unknown for a simulated device */
	return !has_hardware(context) || attr->vendor_id == 0 ||
	       attr->vendor_id == 0xffffff || attr->vendor_id == 0x626d74;
}

/* Converts a limit to a number of JSON. A limit above INT64_MAX, which is none in
 * practice, becomes -1. */
static json_int_t limit_of(uint64_t value)
{
	return value > INT64_MAX ? -1 : (json_int_t)value;
}

static json_t *describe_limits(const struct ibv_device_attr *attr)
{
	bool windows = attr->device_cap_flags &
		       (IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A |
			       IBV_DEVICE_MEM_WINDOW_TYPE_2B);

	return json_pack("{si si si si si si si sI sb}", "max_qp", attr->max_qp,
		"max_qp_wr", attr->max_qp_wr, "max_srq", attr->max_srq, "max_srq_wr",
		attr->max_srq_wr, "max_cqe", attr->max_cqe, "max_qp_rd_atom",
		attr->max_qp_rd_atom, "max_qp_init_rd_atom", attr->max_qp_init_rd_atom,
		"max_mr_size", limit_of(attr->max_mr_size), "memory_windows", windows);
}

static bool is_wanted(const struct verbs_opts *opts, const char *name)
{
	for (unsigned i = 0; i < opts->device_count; i++) {
		if (strcmp(opts->devices[i], name) == 0)
			return true;
	}
	return opts->device_count == 0;
}

static json_t *describe_device(
	struct scan *s, struct ibv_context *context, const struct ibv_device_attr *attr)
{
	const char *name = s->api->device_name(context);
	bool used = is_wanted(&s->opts, name) && s->used_count < VERBS_DEVICES_MAX;
	json_t *ports = json_array(), *device = json_pack("{ss}", "name", name);
	char line[128];

	for (uint8_t i = 1; i && i <= attr->phys_port_cnt; i++)
		json_array_append_new(ports, describe_port(s, context, i));
	json_object_set_new(
		device, "transport", json_string(transport_name(context, ports)));
	json_object_set_new(device, "software", json_boolean(is_software(context, attr)));
	set_driver(context, device);
	if (device_line(context, "node_desc", line, sizeof(line)))
		json_object_set_new(device, "description", json_string(line));
	json_object_set_new(device, "vendor_id", json_sprintf("0x%06x", attr->vendor_id));
	json_object_set_new(device, "vendor_part_id", json_integer(attr->vendor_part_id));
	json_object_set_new(device, "firmware", json_string(attr->fw_ver));
	if (s->api->device_node(context) >= 0)
		json_object_set_new(
			device, "numa_node", json_integer(s->api->device_node(context)));
	json_object_set_new(device, "used", json_boolean(used));
	s->used_count += used;
	json_object_set_new(device, "ports", ports);
	json_object_set_new(device, "addresses", json_array());
	json_object_set_new(device, "limits", describe_limits(attr));
	return device;
}

/* ---- IP addresses of the devices ---- */

static const void *address_bytes(const struct sockaddr *sa)
{
	if (sa->sa_family == AF_INET)
		return &((const struct sockaddr_in *)(const void *)sa)->sin_addr;
	return &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;
}

/* True for an address that other hosts may be able to connect to. place_address() finds
 * out whether it belongs to an RDMA device. */
static bool may_be_a_devices(const struct ifaddrs *i)
{
	if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || i->ifa_flags & IFF_LOOPBACK)
		return false;
	if (i->ifa_addr->sa_family == AF_INET6)
		return !IN6_IS_ADDR_LINKLOCAL(
			(const struct in6_addr *)address_bytes(i->ifa_addr));
	return i->ifa_addr->sa_family == AF_INET;
}

static bool has_address(const json_t *addresses, const char *text)
{
	json_t *one;
	size_t i;

	json_array_foreach(addresses, i, one)
	{
		if (strcmp(json_string_value(json_object_get(one, "address")), text) == 0)
			return true;
	}
	return false;
}

/* Adds the IP address `text` to the device that librdmacm finds for it, if any. */
static void place_address(struct scan *s, struct rdma_event_channel *channel,
	const char *text, const char *netdev)
{
	struct tern_addrs addrs;
	char address[INET6_ADDRSTRLEN + 4];
	struct rdma_cm_id *id;

	snprintf(address, sizeof(address), strchr(text, ':') ? "[%s]:0" : "%s:0", text);
	if (tern_addr_resolve(address, true, &addrs) ||
		s->api->create_id(channel, &id, NULL))
		return;
	if (s->api->bind_addr(id, (struct sockaddr *)&addrs.addr[0].sa) == 0) {
		for (unsigned i = 0; i < s->count; i++) {
			json_t *list = json_object_get(s->found[i].json, "addresses");

			if (s->found[i].context != id->verbs || has_address(list, text))
				continue;
			json_array_append_new(
				list, json_pack("{ss si ss*}", "address", text, "port",
					      id->port_num, "netdev", netdev));
		}
	}
	s->api->destroy_id(id);
}

/* Adds the addresses of GIDs too: in a container the GIDs may be visible while the
 * network interfaces are not. */
static void place_gid_addresses(struct scan *s, struct rdma_event_channel *channel)
{
	for (unsigned i = 0; i < s->count; i++) {
		json_t *ports = json_object_get(s->found[i].json, "ports"), *port, *gid;
		size_t p, g;

		json_array_foreach(ports, p, port)
		{
			json_array_foreach(json_object_get(port, "gids"), g, gid)
			{
				const char *text = json_string_value(
					json_object_get(gid, "address"));

				if (text)
					place_address(s, channel, text,
						json_string_value(
							json_object_get(gid, "netdev")));
			}
		}
	}
}

static void find_addresses(struct scan *s)
{
	struct rdma_event_channel *channel;
	struct ifaddrs *all = NULL;

	if (s->api->create_event_channel(&channel))
		return;
	if (getifaddrs(&all) < 0)
		all = NULL;
	for (struct ifaddrs *i = all; i; i = i->ifa_next) {
		char text[INET6_ADDRSTRLEN];

		if (may_be_a_devices(i) &&
			inet_ntop(i->ifa_addr->sa_family, address_bytes(i->ifa_addr),
				text, sizeof(text)))
			place_address(s, channel, text, i->ifa_name);
	}
	freeifaddrs(all);
	place_gid_addresses(s, channel);
	s->api->destroy_event_channel(channel);
}

/* ---- peculiarities of a device ("differences") ---- */

static void differ_by_kind(const struct found *f, json_t *out)
{
	if (json_is_true(json_object_get(f->json, "software")))
		info_say(out, "software device: its speed does not show that of a "
			      "network card");
	if (f->context->device->transport_type == IBV_TRANSPORT_IWARP)
		info_say(out,
			"iWARP: runs over TCP, without immediate data (which Tern does "
			"not need)");
}

static void differ_by_limits(const struct scan *s, const struct found *f, json_t *out)
{
	const struct ibv_device_attr *attr = &f->attr;
	int per_conn = (int)(s->opts.depth + VERBS_WINDOW + VERBS_CONTROL);

	if (attr->max_srq < 1 || attr->max_srq_wr < 64)
		info_say(out, "no shared receive queue: each connection posts its own "
			      "receives");
	if ((unsigned)attr->max_qp_wr < s->opts.depth)
		info_say(out,
			"a send queue holds only %d requests, and not the %u of the "
			"option depth=, so Tern uses %d",
			attr->max_qp_wr, s->opts.depth, attr->max_qp_wr);
	if (attr->max_qp_init_rd_atom < 1)
		info_say(out, "no reads: senders write large tensors (RDMA write), "
			      "receivers never read them");
	else if ((unsigned)attr->max_qp_init_rd_atom < s->opts.read_max)
		info_say(out, "%d reads under way on a connection, not the %u of reads=",
			attr->max_qp_init_rd_atom, s->opts.read_max);
	if (attr->max_mr_size < SLAB_MAX_BYTES)
		info_say(out, "at most %llu MiB of memory can be registered in one piece",
			(unsigned long long)(attr->max_mr_size >> 20));
	if (attr->max_cqe / per_conn < CONNECTIONS_FEW)
		info_say(out,
			"completion queues of %d entries at most: enough for about %d "
			"connections",
			attr->max_cqe, attr->max_cqe / per_conn);
}

static bool has_type(const json_t *gids, const char *type)
{
	json_t *gid;
	size_t i;

	json_array_foreach(gids, i, gid)
	{
		if (strcmp(json_string_value(json_object_get(gid, "type")), type) == 0)
			return true;
	}
	return false;
}

static void differ_by_mtu(const json_t *port, int number, bool ethernet, json_t *out)
{
	int mtu = (int)json_integer_value(json_object_get(port, "mtu"));
	int max = (int)json_integer_value(json_object_get(port, "mtu_max"));
	int ip = (int)json_integer_value(json_object_get(port, "ip_mtu"));

	if (mtu >= max)
		return;
	if (!ethernet)
		info_say(out,
			"port %d: packets of %d bytes where %d are possible, as the "
			"subnet manager set it",
			number, mtu, max);
	else if (ip)
		info_say(out,
			"port %d: packets of %d bytes where %d are possible: the "
			"interface's MTU of %d bounds them",
			number, mtu, max, ip);
	else
		info_say(out, "port %d: packets of %d bytes where %d are possible",
			number, mtu, max);
}

static bool is_active(const json_t *port)
{
	const char *state = json_string_value(json_object_get(port, "state"));

	return state && strcmp(state, "active") == 0;
}

static void differ_by_port(const json_t *port, json_t *out)
{
	const char *layer = json_string_value(json_object_get(port, "link_layer"));
	int number = (int)json_integer_value(json_object_get(port, "port"));
	bool ethernet = layer && strcmp(layer, "Ethernet") == 0;

	if (!is_active(port)) {
		info_say(out, "port %d is not active", number);
		return;
	}
	differ_by_mtu(port, number, ethernet, out);
	if (ethernet && has_type(json_object_get(port, "gids"), "RoCE v1") &&
		!has_type(json_object_get(port, "gids"), "RoCE v2"))
		info_say(out, "port %d: RoCE v1 only: its packets do not cross routers",
			number);
}

static json_t *differences(const struct scan *s, const struct found *f)
{
	json_t *out = json_array(), *port;
	size_t i;

	differ_by_kind(f, out);
	differ_by_limits(s, f, out);
	json_array_foreach(json_object_get(f->json, "ports"), i, port)
	{
		differ_by_port(port, out);
	}
	if (json_array_size(json_object_get(f->json, "addresses")) == 0)
		info_say(out, "no IP address: the device cannot be used for connections");
	if (json_is_false(json_object_get(f->json, "used")))
		info_say(out, "not used: %s",
			s->opts.device_count
				? "the option device= does not name it"
				: "there are more than 8; device= chooses them");
	return out;
}

/* ---- the JSON object ---- */

/* True if the process may lock memory without limit: it has CAP_IPC_LOCK, bit 14. */
static bool may_lock_all(void)
{
	unsigned long long caps = 0;
	char line[128];
	FILE *f = fopen("/proc/self/status", "re");

	while (f && fgets(line, sizeof(line), f) &&
		sscanf(line, "CapEff: %llx", &caps) != 1)
		;
	if (f)
		fclose(f);
	return caps >> 14 & 1;
}

static json_t *notes(void)
{
	struct rlimit limit = {0};
	json_t *out = json_array();

	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (limit.rlim_cur != RLIM_INFINITY && !may_lock_all())
		info_say(out,
			"only %llu KiB of memory may be locked, and so registered; to "
			"raise the limit: ulimit -l unlimited",
			(unsigned long long)(limit.rlim_cur >> 10));
	return out;
}

static json_t *describe_all(struct scan *s, struct ibv_context **contexts, int count)
{
	json_t *devices = json_array();

	for (int i = 0; i < count; i++) {
		struct found *f = &s->found[s->count];

		*f = (struct found){.context = contexts[i]};
		if (s->api->query_device(f->context, &f->attr))
			continue; /* the device was removed meanwhile */
		f->json = describe_device(s, f->context, &f->attr);
		json_array_append_new(devices, f->json);
		s->count++;
	}
	find_addresses(s);
	for (unsigned i = 0; i < s->count; i++)
		json_object_set_new(
			s->found[i].json, "differences", differences(s, &s->found[i]));
	return json_pack("{so so}", "devices", devices, "notes", notes());
}

json_t *info_rdma(const struct fabric_settings *settings, const char *why,
	const struct tern_verbs_api *api)
{
	struct ibv_context **contexts;
	struct scan s = {.api = api};
	char error[256];
	json_t *rdma;
	int count;

	if (verbs_opts_parse(settings->verbs, &s.opts, error, sizeof(error)))
		return json_pack("{ss}", "why", error);
	if (!s.api && tern_verbs_load(&s.api, &why))
		return json_pack("{ss}", "why", why);
	if (s.api->get_devices(&contexts, &count))
		return json_pack("{ss}", "why", why ? why : "no RDMA device");
	s.found = calloc((size_t)count, sizeof(*s.found));
	rdma = s.found ? describe_all(&s, contexts, count)
		       : json_pack("{ss}", "why", "no memory");
	s.api->free_devices(contexts);
	free(s.found);
	return rdma;
}

#else

json_t *info_rdma(const struct fabric_settings *settings, const char *why,
	const struct tern_verbs_api *api)
{
	(void)settings;
	(void)api;
	return json_pack("{ss}", "why", why);
}

#endif

/* ---- output as text ---- */

static long long number_of(const json_t *object, const char *name)
{
	return json_integer_value(json_object_get(object, name));
}

static void print_port(const json_t *port)
{
	char name[32];
	json_t *gid;
	size_t i;

	snprintf(name, sizeof(name), "port %lld", number_of(port, "port"));
	printf("    %-20s %s", name, info_text(port, "state"));
	if (json_object_get(port, "link_layer"))
		printf(", %s, %s, MTU %lld of %lld", info_text(port, "link_layer"),
			info_text(port, "rate"), number_of(port, "mtu"),
			number_of(port, "mtu_max"));
	if (json_object_get(port, "netdev"))
		printf(", %s (MTU %lld)", info_text(port, "netdev"),
			number_of(port, "ip_mtu"));
	putchar('\n');
	json_array_foreach(json_object_get(port, "gids"), i, gid)
	{
		snprintf(name, sizeof(name), "gid %lld", number_of(gid, "index"));
		printf("    %-20s %s %s%s%s\n", name, info_text(gid, "gid"),
			info_text(gid, "type"), *info_text(gid, "address") ? " " : "",
			info_text(gid, "address"));
	}
}

static void print_limits(json_t *limits)
{
	const char *key;
	json_t *value;
	int n = 0;

	json_object_foreach(limits, key, value)
	{
		if (n++ % 3 == 0)
			printf("%s    %-20s", n > 1 ? "\n" : "", n > 1 ? "" : "limits");
		printf(" %s=", key);
		if (json_is_boolean(value))
			fputs(json_is_true(value) ? "yes" : "no", stdout);
		else if (json_integer_value(value) < 0)
			fputs("none", stdout);
		else
			printf("%lld", (long long)json_integer_value(value));
	}
	putchar('\n');
}

static void print_device(const json_t *device)
{
	json_t *one;
	size_t i;

	printf("  %-22s %s", info_text(device, "name"), info_text(device, "transport"));
	if (*info_text(device, "driver"))
		printf(", driver %s", info_text(device, "driver"));
	if (*info_text(device, "description"))
		printf(", \"%s\"", info_text(device, "description"));
	printf(", vendor %s part %lld", info_text(device, "vendor_id"),
		number_of(device, "vendor_part_id"));
	if (*info_text(device, "firmware"))
		printf(", firmware %s", info_text(device, "firmware"));
	if (json_object_get(device, "numa_node"))
		printf(", NUMA node %lld", number_of(device, "numa_node"));
	putchar('\n');
	json_array_foreach(json_object_get(device, "addresses"), i, one)
	{
		printf("    %-20s %s, port %lld%s%s\n", "address",
			info_text(one, "address"), number_of(one, "port"),
			*info_text(one, "netdev") ? ", " : "", info_text(one, "netdev"));
	}
	json_array_foreach(json_object_get(device, "ports"), i, one)
	{
		print_port(one);
	}
	print_limits(json_object_get(device, "limits"));
	json_array_foreach(json_object_get(device, "differences"), i, one)
	{
		printf("    %-20s %s\n", i ? "" : "differs", json_string_value(one));
	}
}

void info_rdma_print(const json_t *rdma)
{
	json_t *one;
	size_t i;

	if (json_object_get(rdma, "why"))
		return; /* print_fabrics() in info.c has printed the reason */
	puts("rdma");
	json_array_foreach(json_object_get(rdma, "devices"), i, one)
	{
		print_device(one);
	}
	json_array_foreach(json_object_get(rdma, "notes"), i, one)
	{
		printf("  %-22s %s\n", i ? "" : "note", json_string_value(one));
	}
}
