/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of RDMA devices, and the choice of one of them: for a whole context, or for
 * one address ("HOST:PORT@DEVICE"). librdmacm finds a device only by an IP address. So
 * choosing a device means using its IP address: conns are bound to this address, and a
 * listener for every address of the machine listens at this address only.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include <tern/context.h>

#include "transport/verbs/verbs.h"

/* ---- the list ---- */

/* Speed of a port in bits/s, decoded from InfiniBand's speed and width codes, which
 * Ethernet ports use too. */
static uint64_t bits_per_s(const struct ibv_port_attr *attr)
{
	static const struct {
		unsigned code;
		uint64_t mbits; /* speed of one lane, in Mbit/s */
	} speeds[] = {{1, 2500}, {2, 5000}, {4, 10000}, {8, 10000}, {16, 14000},
		{32, 25000}, {64, 50000}, {128, 100000}};
	static const unsigned lanes[17] = {[1] = 1, [2] = 4, [4] = 8, [8] = 12, [16] = 2};

	for (size_t i = 0; i < TERN_ARRAY_SIZE(speeds); i++)
		if (speeds[i].code == attr->active_speed &&
			attr->active_width < TERN_ARRAY_SIZE(lanes))
			return speeds[i].mbits * 1000000 * lanes[attr->active_width];
	return 0;
}

static enum tern_gpu_direct gpu_direct(const struct verbs_device *device)
{
	if (device->gpu_refused)
		return TERN_GPU_DIRECT_REFUSED;
	return device->gpu_taken ? TERN_GPU_DIRECT_WORKS : TERN_GPU_DIRECT_UNTRIED;
}

static void describe(struct verbs_fabric *fabric, struct verbs_device *device,
	uint8_t port, struct tern_rdma_device *out)
{
	struct ibv_port_attr attr = {0};
	struct tern_addr own;
	char *colon;

	*out = (struct tern_rdma_device){
		.guid = be64toh(device->attr.node_guid),
		.port = port,
		.numa_node = fabric->api->device_node(device->context),
		.gpu_direct = gpu_direct(device),
		.gpu_ways = verbs_gpu_ways(fabric, device),
	};
	memcpy(out->gpu_refusal, device->gpu_refusal, sizeof(out->gpu_refusal));
	snprintf(out->name, sizeof(out->name), "%s",
		fabric->api->device_name(device->context));
	fabric->api->device_pci(device->context, out->pci, sizeof(out->pci));
	if (fabric->api->query_port(device->context, port, &attr) == 0) {
		out->active = attr.state == IBV_PORT_ACTIVE;
		out->bits_per_s = bits_per_s(&attr);
	}
	if (verbs_address_of(fabric, device, &own))
		return;
	tern_addr_print(&own, out->address, sizeof(out->address));
	colon = strrchr(out->address, ':'); /* remove the port number, which is 0 */
	*colon = '\0';
}

int verbs_devices(struct tern_fabric *base, struct tern_rdma_device *out, unsigned max)
{
	struct verbs_fabric *fabric = verbs_fabric_of(base);
	unsigned count = 0;

	pthread_mutex_lock(&fabric->lock);
	for (unsigned i = 0; i < fabric->device_count; i++) {
		struct verbs_device *device = &fabric->devices[i];

		if (atomic_load(&device->dead))
			continue;
		for (uint8_t port = 1; port <= device->attr.phys_port_cnt; port++)
			if (count++ < max)
				describe(fabric, device, port, &out[count - 1]);
	}
	pthread_mutex_unlock(&fabric->lock);
	return (int)count;
}

/* ---- the choice ---- */

static int find_address(
	struct verbs_fabric *fabric, const char *name, struct tern_addr *out)
{
	int r = -ENODEV;

	pthread_mutex_lock(&fabric->lock);
	for (unsigned i = 0; i < fabric->device_count && r == -ENODEV; i++) {
		const struct verbs_device *device = &fabric->devices[i];

		if (!atomic_load(&device->dead) &&
			strcmp(fabric->api->device_name(device->context), name) == 0)
			r = verbs_address_of(fabric, device, out);
	}
	pthread_mutex_unlock(&fabric->lock);
	return r;
}

int verbs_choose(struct verbs_port *port, const char *text, struct verbs_choice *out)
{
	const char *at = strrchr(text, '@');
	const char *name = at ? at + 1 : port->device;
	size_t bytes = at ? (size_t)(at - text) : strlen(text);
	int r;

	*out = (struct verbs_choice){.own.len = 0};
	if (bytes >= sizeof(out->address) || strlen(name) >= sizeof(out->device) ||
		(at && !*name))
		return -EINVAL;
	memcpy(out->address, text, bytes);
	strcpy(out->device, name);
	if (!*name)
		return 0;
	r = find_address(verbs_port_fabric(port), name, &out->own);
	if (r)
		tern_log(port->base.env, TERN_LOG_ERROR, "verbs: device %s: %s", name,
			r == -ENODEV ? "no device in use has this name"
				     : "it has no IP address");
	return r;
}

bool verbs_is_choice(const struct verbs_port *port, const struct verbs_choice *choice,
	struct ibv_context *context)
{
	return !*choice->device ||
	       (context && strcmp(verbs_api_of(port)->device_name(context),
				   choice->device) == 0);
}
