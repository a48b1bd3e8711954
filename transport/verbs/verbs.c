/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs fabric: its devices and the memory registered with them.
 *
 * Devices are brought into use with the first port, that is, when a context first listens
 * or connects over verbs. Only then is all existing memory registered with them; memory
 * that is made later is registered immediately. So a program that uses only shared memory
 * pins nothing, and the time limit of a connection is not spent on pinning.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "transport/verbs/verbs.h"

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

/* ---- registrations ---- */

static void explain_refusal(struct verbs_fabric *fabric, struct verbs_device *device,
	const struct tern_mem *mem, int status, struct tern_env *env)
{
	const char *name = fabric->api->device_name(device->context);
	struct rlimit limit = {0};

	if (device->refused_status == status && device->refused_bytes == mem->bytes)
		return;
	device->refused_status = status;
	device->refused_bytes = mem->bytes;
	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (status == -ENOMEM && limit.rlim_cur != RLIM_INFINITY)
		tern_log(env, TERN_LOG_ERROR,
			"verbs: %s cannot register %llu MiB: at most %llu MiB may be "
			"locked (RLIMIT_MEMLOCK); raise the limit with ulimit -l, or "
			"LimitMEMLOCK=infinity in the service",
			name, (unsigned long long)(mem->bytes >> 20),
			(unsigned long long)(limit.rlim_cur >> 20));
	else
		tern_log(env, TERN_LOG_WARN,
			"verbs: %s cannot register %llu bytes at %p: %s; so tensors in "
			"this memory are copied, which is slower (see tern_mem_wrap in "
			"tern/memory.h)",
			name, (unsigned long long)mem->bytes, (void *)mem->base,
			tern_status_text(status));
}

int verbs_access(const struct verbs_fabric *fabric, const struct tern_mem *mem)
{
	int access = mem->read_only ? IBV_ACCESS_REMOTE_READ : ACCESS;

	/* With guard=on peers write by messages only, so remote access is not granted. */
	return fabric->opts.guard ? access & IBV_ACCESS_LOCAL_WRITE : access;
}

void verbs_reg_set(struct verbs_reg *reg, unsigned index, struct ibv_mr *mr)
{
	reg->mr[index] = mr;
	/* Release order pairs with verbs_lkey(): a port on another thread may use a key
	 * as soon as it is set. */
	atomic_store_explicit(&reg->rkeys[index], mr->rkey, memory_order_release);
	atomic_store_explicit(&reg->lkeys[index], mr->lkey, memory_order_release);
}

/* Registers one memory with a device, unless it is brief. The caller holds the lock.
 * -ENOMEM: mostly, the limit of locked memory is too low. Returns 0 also if the device
 * refuses this memory. The bytes of host memory without a registration are copied to
 * slots, GPU memory is staged in host memory. */
static int register_with(struct verbs_fabric *fabric, struct verbs_device *device,
	struct verbs_reg *reg, struct tern_env *env)
{
	struct ibv_mr *mr;
	int r;

	if (reg->mem->kind != TERN_MEM_HOST) {
		verbs_gpu_register(fabric, device, reg, env);
		return 0;
	}
	if (reg->mem->brief)
		return 0;
	r = fabric->api->reg_mr(device->pd, reg->mem->base, reg->mem->bytes,
		verbs_access(fabric, reg->mem), &mr);
	if (r == 0) {
		verbs_reg_set(reg, device->index, mr);
		reg->ways[device->index] = "registered";
		return 0;
	}
	explain_refusal(fabric, device, reg->mem, r, env);
	/* -ENOMEM: mostly, the limit of locked memory is too low. Then further
	 * registrations would fail too, and for all of them another fabric would be
	 * faster than copying. */
	return r == -ENOMEM ? r : 0;
}

/* Determines whether all devices in use can access the memory. Called for new memory, and
 * for all memory when a device is added or removed. The caller holds the lock. */
static void judge(const struct verbs_fabric *fabric, struct verbs_reg *reg)
{
	unsigned bit = 1u << fabric->base.index;
	const char *way = NULL;
	bool all = true;

	for (unsigned i = 0; i < fabric->device_count; i++) {
		const struct verbs_device *device = &fabric->devices[i];

		if (!device->pd || atomic_load(&device->dead))
			continue;
		all = all && reg->mr[i];
		way = reg->ways[i];
	}
	atomic_store(&reg->way, all ? way : NULL);
	if (reg->mem->kind != TERN_MEM_HOST)
		return;
	if (all)
		atomic_fetch_and(&reg->mem->copied, ~bit);
	else
		atomic_fetch_or(&reg->mem->copied, bit);
}

static void judge_all(struct verbs_fabric *fabric)
{
	tern_list_for_each (node, &fabric->regs)
		judge(fabric, tern_list_entry(node, struct verbs_reg, node));
}

static void unregister(struct verbs_fabric *fabric, struct verbs_reg *reg, unsigned index)
{
	atomic_store(&reg->rkeys[index], 0);
	atomic_store(&reg->lkeys[index], 0);
	if (reg->mr[index])
		fabric->api->dereg_mr(reg->mr[index]);
	reg->mr[index] = NULL;
}

static int mem_register(struct tern_fabric *base, struct tern_mem *mem, void **out)
{
	struct verbs_fabric *fabric = verbs_fabric_of(base);
	struct verbs_reg *reg;
	int r = 0;

	*out = NULL;
	/* With guard=on the CPU copies all bytes, and it cannot access GPU memory. */
	if (mem->kind != TERN_MEM_HOST && fabric->opts.guard)
		return 0;
	reg = calloc(1, sizeof(*reg));
	if (!reg)
		return -ENOMEM;
	reg->mem = mem;
	tern_list_init(&reg->node);
	pthread_mutex_lock(&fabric->lock);
	for (unsigned i = 0; i < fabric->device_count && r == 0; i++) {
		struct verbs_device *device = &fabric->devices[i];

		if (!device->pd || atomic_load(&device->dead))
			continue;
		r = register_with(fabric, device, reg, tern_env_system());
	}
	if (r) {
		for (unsigned i = 0; i < fabric->device_count; i++)
			unregister(fabric, reg, i);
		free(reg);
	} else {
		tern_list_push(&fabric->regs, &reg->node);
		judge(fabric, reg);
		*out = reg;
	}
	pthread_mutex_unlock(&fabric->lock);
	return r;
}

static void mem_unregister(struct tern_fabric *base, struct tern_mem *mem, void *arg)
{
	struct verbs_fabric *fabric = verbs_fabric_of(base);
	struct verbs_reg *reg = arg;

	(void)mem;
	if (!reg)
		return;
	pthread_mutex_lock(&fabric->lock);
	for (unsigned i = 0; i < fabric->device_count; i++)
		unregister(fabric, reg, i);
	tern_list_remove(&reg->node);
	pthread_mutex_unlock(&fabric->lock);
	free(reg);
}

/* ---- devices ---- */

static bool wanted(const struct verbs_fabric *fabric, struct ibv_context *context)
{
	const struct verbs_opts *opts = &fabric->opts;

	for (unsigned i = 0; i < opts->device_count; i++)
		if (strcmp(opts->devices[i], fabric->api->device_name(context)) == 0)
			return true;
	return opts->device_count == 0;
}

/* True for a device that is dead and was released. A device plugged in later may get the
 * same ibv_context pointer, so find() must not return such an entry. */
static bool is_over(const struct verbs_device *device)
{
	return atomic_load(&device->dead) && !device->pd;
}

static struct verbs_device *find(struct verbs_fabric *fabric, struct ibv_context *context)
{
	for (unsigned i = 0; i < fabric->device_count; i++)
		if (fabric->devices[i].context == context &&
			!is_over(&fabric->devices[i]))
			return &fabric->devices[i];
	return NULL;
}

/* Adds a device. It may reuse the entry of a device that was removed and released. */
static struct verbs_device *add_device(
	struct verbs_fabric *fabric, struct ibv_context *context)
{
	struct verbs_device *device = NULL;

	for (unsigned i = 0; i < fabric->device_count && !device; i++)
		if (is_over(&fabric->devices[i]))
			device = &fabric->devices[i];
	if (!device && fabric->device_count < VERBS_DEVICES_MAX)
		device = &fabric->devices[atomic_fetch_add(&fabric->device_count, 1)];
	if (!device) {
		tern_log(tern_env_system(), TERN_LOG_WARN,
			"verbs: device %s is not used, because there are already %u "
			"others; the option device= chooses the devices",
			fabric->api->device_name(context), VERBS_DEVICES_MAX);
		return NULL;
	}
	device->context = context;
	device->index = (unsigned)(device - fabric->devices);
	atomic_store(&device->dead, false);
	atomic_store(&device->told, false);
	device->dma_buf = VERBS_DMA_BUF_UNKNOWN;
	device->gpu_refusal[0] = '\0';
	if (fabric->api->query_device(context, &device->attr)) {
		atomic_store(&device->dead, true);
		return NULL;
	}
	return device;
}

static int start_device(
	struct verbs_fabric *fabric, struct verbs_device *device, struct tern_env *env)
{
	int r = fabric->api->alloc_pd(device->context, &device->pd);

	if (r) {
		device->pd = NULL;
		return r;
	}
	tern_list_for_each (node, &fabric->regs) {
		struct verbs_reg *reg = tern_list_entry(node, struct verbs_reg, node);

		r = register_with(fabric, device, reg, env);
		if (r)
			break;
		if (reg->mr[device->index])
			atomic_fetch_add(&fabric->base.domain->registration_count, 1);
	}
	if (r) {
		tern_list_for_each (node, &fabric->regs)
			unregister(fabric, tern_list_entry(node, struct verbs_reg, node),
				device->index);
		fabric->api->dealloc_pd(device->pd);
		device->pd = NULL;
	}
	judge_all(fabric);
	return r;
}

/* Starts all devices. All are needed because a region has the keys of all devices, for
 * rails (parallel conns) and for sessions that reconnect over another device. The caller
 * holds the lock. A negative errno: none could be started. */
static int start_all(struct verbs_fabric *fabric, struct tern_env *env)
{
	unsigned started = 0;
	int status = -ENODEV;

	for (unsigned i = 0; i < fabric->device_count; i++) {
		struct verbs_device *device = &fabric->devices[i];
		int r = 0;

		if (atomic_load(&device->dead))
			continue;
		if (!device->pd)
			r = start_device(fabric, device, env);
		if (r == 0)
			started++;
		else
			status = r;
	}
	return started ? 0 : status;
}

int verbs_start(struct verbs_fabric *fabric, struct tern_env *env)
{
	int r;

	pthread_mutex_lock(&fabric->lock);
	r = start_all(fabric, env);
	pthread_mutex_unlock(&fabric->lock);
	return r;
}

int verbs_device_use(struct verbs_fabric *fabric, struct ibv_context *context,
	struct tern_env *env, struct verbs_device **out)
{
	struct verbs_device *device;
	int r = 0;

	pthread_mutex_lock(&fabric->lock);
	device = find(fabric, context);
	if (!device && wanted(fabric, context))
		/* The device was plugged in after the fabric was opened. */
		device = add_device(fabric, context);
	if (!device || atomic_load(&device->dead))
		r = -ENODEV;
	else if (!device->pd)
		r = start_device(fabric, device, env);
	if (r == 0)
		device->user_count++;
	pthread_mutex_unlock(&fabric->lock);
	*out = device;
	return r;
}

/* Releases the resources of a dead device that no port uses any more. The caller holds
 * the lock. */
static void drop_if_unused(struct verbs_fabric *fabric, struct verbs_device *device)
{
	if (device->user_count > 0 || !device->pd || !atomic_load(&device->dead))
		return;
	tern_list_for_each (node, &fabric->regs)
		unregister(fabric, tern_list_entry(node, struct verbs_reg, node),
			device->index);
	fabric->api->dealloc_pd(device->pd);
	device->pd = NULL;
}

void verbs_device_died(struct verbs_fabric *fabric, struct ibv_context *context)
{
	struct verbs_device *device;

	pthread_mutex_lock(&fabric->lock);
	device = find(fabric, context);
	if (device) {
		atomic_store(&device->dead, true);
		drop_if_unused(fabric, device);
		judge_all(fabric);
	}
	pthread_mutex_unlock(&fabric->lock);
}

void verbs_device_put(struct verbs_fabric *fabric, struct verbs_device *device)
{
	pthread_mutex_lock(&fabric->lock);
	device->user_count--;
	drop_if_unused(fabric, device);
	pthread_mutex_unlock(&fabric->lock);
}

/* ---- open and close ---- */

/* True if the GIDs of this port may contain IP addresses: those of RoCE do. A GID of
 * InfiniBand (a subnet prefix and a GUID) or of iWARP (a MAC address) may only look like an
 * IPv6 address. */
static bool has_addresses(
	struct verbs_fabric *fabric, const struct verbs_device *device, uint8_t port)
{
	struct ibv_port_attr attr;

	return device->context->device->transport_type != IBV_TRANSPORT_IWARP &&
	       fabric->api->query_port(device->context, port, &attr) == 0 &&
	       attr.link_layer == IBV_LINK_LAYER_ETHERNET;
}

/* Extracts the IP address from a GID: RoCE devices derive a GID from each of their IP
 * addresses. -EADDRNOTAVAIL: the GID contains none. */
static int address_of_gid(struct verbs_fabric *fabric, const struct verbs_device *device,
	uint8_t port, int index, struct tern_addr *out)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)&out->sa;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)&out->sa;
	union ibv_gid gid;
	struct in6_addr address;
	int r;

	if (!has_addresses(fabric, device, port))
		return -EADDRNOTAVAIL;
	r = fabric->api->query_gid(device->context, port, index, &gid);
	if (r)
		return r;
	memcpy(&address, gid.raw, sizeof(address));
	if (IN6_IS_ADDR_UNSPECIFIED(&address) || IN6_IS_ADDR_LINKLOCAL(&address))
		return -EADDRNOTAVAIL;
	if (IN6_IS_ADDR_V4MAPPED(&address)) {
		*v4 = (struct sockaddr_in){.sin_family = AF_INET};
		memcpy(&v4->sin_addr, gid.raw + 12, sizeof(v4->sin_addr));
		out->len = sizeof(*v4);
	} else {
		*v6 = (struct sockaddr_in6){
			.sin6_family = AF_INET6, .sin6_addr = address};
		out->len = sizeof(*v6);
	}
	return 0;
}

/* Finds the first IP address in the GIDs of the device's active ports. */
static bool address_by_gids(struct verbs_fabric *fabric,
	const struct verbs_device *device, struct tern_addr *out)
{
	for (uint8_t port = 1; port <= device->attr.phys_port_cnt; port++) {
		struct ibv_port_attr attr;

		if (fabric->api->query_port(device->context, port, &attr) ||
			attr.state != IBV_PORT_ACTIVE)
			continue;
		for (int index = 0; index < attr.gid_tbl_len && index < 16; index++)
			if (address_of_gid(fabric, device, port, index, out) == 0)
				return true;
	}
	return false;
}

/* Chooses the IP address of a device on the NUMA node of the current CPU, since the
 * memory of this process is probably on this node; otherwise of any device. (For a
 * process that runs on all nodes, the current node is as good as any.) */
static bool own_from_gids(struct verbs_fabric *fabric)
{
	unsigned node;
	bool known = getcpu(NULL, &node) == 0;

	for (unsigned near = known ? 2 : 1; near-- > 0;) {
		for (unsigned i = 0; i < fabric->device_count; i++) {
			const struct verbs_device *device = &fabric->devices[i];
			int theirs = fabric->api->device_node(device->context);

			if ((!near || theirs == (int)node) &&
				address_by_gids(fabric, device, &fabric->own))
				return true;
		}
	}
	return false;
}

/* Returns the device of this fabric to which librdmacm binds this address; NULL: none. */
static struct verbs_device *device_at(struct verbs_fabric *fabric,
	struct rdma_event_channel *channel, struct sockaddr *address)
{
	struct verbs_device *device = NULL;
	struct rdma_cm_id *id;

	if (fabric->api->create_id(channel, &id, NULL))
		return NULL;
	if (fabric->api->bind_addr(id, address) == 0 && id->verbs)
		device = find(fabric, id->verbs);
	fabric->api->destroy_id(id);
	return device;
}

/* Finds the first IPv4 address of this machine that belongs to the device `only`, or to
 * any RDMA device if `only` is NULL. This finds addresses of IPoIB interfaces. */
static void address_by_interfaces(struct verbs_fabric *fabric,
	const struct verbs_device *only, struct tern_addr *out)
{
	struct rdma_event_channel *channel;
	struct ifaddrs *all;

	if (fabric->api->create_event_channel(&channel))
		return;
	if (getifaddrs(&all) < 0)
		all = NULL;
	for (struct ifaddrs *i = all; i && !out->len; i = i->ifa_next) {
		const struct verbs_device *device;
		struct sockaddr_in address;

		if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET ||
			(i->ifa_flags & IFF_LOOPBACK))
			continue;
		memcpy(&address, i->ifa_addr, sizeof(address));
		address.sin_port = 0;
		device = device_at(fabric, channel, (struct sockaddr *)&address);
		if (!device || (only && device != only))
			continue;
		memcpy(&out->sa, &address, sizeof(address));
		out->len = sizeof(address);
	}
	if (all)
		freeifaddrs(all);
	fabric->api->destroy_event_channel(channel);
}

int verbs_address_of(struct verbs_fabric *fabric, const struct verbs_device *device,
	struct tern_addr *out)
{
	out->len = 0;
	if (!address_by_gids(fabric, device, out))
		address_by_interfaces(fabric, device, out);
	return out->len ? 0 : -EADDRNOTAVAIL;
}

static int find_devices(struct verbs_fabric *fabric, const char **why)
{
	struct ibv_context **contexts;
	int count, r = fabric->api->get_devices(&contexts, &count);

	if (r) {
		*why = r == -ENODEV ? "no RDMA device, or the kernel module rdma_ucm is "
				      "not loaded"
				    : "librdmacm cannot list the devices";
		return -ENODEV;
	}
	for (int i = 0; i < count; i++)
		if (wanted(fabric, contexts[i]))
			add_device(fabric, contexts[i]);
	fabric->api->free_devices(contexts);
	if (fabric->device_count == 0) {
		*why = "no RDMA device has a name that the option device= gives";
		return -ENODEV;
	}
	if (fabric->opts.gid_index >= 0 &&
		address_of_gid(fabric, &fabric->devices[0], 1, fabric->opts.gid_index,
			&fabric->opts.from)) {
		*why = "gid= names an entry of the first device's GID table that has no "
		       "IP address";
		return -ENODEV;
	}
	/* Find the address that peers are told if a listener listens at all addresses of
	 * the machine. */
	if (!own_from_gids(fabric))
		address_by_interfaces(fabric, NULL, &fabric->own);
	return 0;
}

static void prepare_fork(const struct tern_verbs_api *api)
{
	int r = api->prepare_fork();

	if (r)
		tern_log(tern_env_system(), TERN_LOG_WARN,
			"verbs: a fork() of this process may corrupt memory that is "
			"registered with RDMA devices: %s (Linux 5.12 and later have no "
			"such problem; older: create the domain before another library "
			"uses RDMA)",
			tern_status_text(r));
}

static int fabric_open(struct tern_domain *domain, const struct tern_domain_opts *opts,
	struct tern_fabric **out, const char **why)
{
	struct verbs_fabric *fabric = calloc(1, sizeof(*fabric));
	struct rdma_event_channel *channel;
	char error[200];
	int r;

	if (!fabric)
		return -ENOMEM;
	tern_list_init(&fabric->regs);
	tern_list_init(&fabric->node);
	pthread_mutex_init(&fabric->lock, NULL);
	r = verbs_opts_parse(opts->verbs, &fabric->opts, error, sizeof(error));
	if (r) {
		tern_log(tern_env_system(), TERN_LOG_ERROR, "verbs options: %s", error);
		*why = "its options are wrong";
	}
	fabric->api = domain->hooks.verbs_api;
	if (!r && !fabric->api)
		r = tern_verbs_load(&fabric->api, why);
	if (!r) {
		prepare_fork(fabric->api);
		r = fabric->api->create_event_channel(&channel);
		if (r) {
			*why = "/dev/infiniband/rdma_cm cannot be opened: no RDMA "
			       "device, or "
			       "the kernel module rdma_ucm is not loaded";
			r = -ENODEV;
		} else {
			fabric->api->destroy_event_channel(channel);
		}
	}
	if (!r)
		r = find_devices(fabric, why);
	if (r) {
		pthread_mutex_destroy(&fabric->lock);
		free(fabric);
		return r;
	}
	verbs_async_add_fabric(fabric);
	*out = &fabric->base;
	return 0;
}

static void fabric_close(struct tern_fabric *base)
{
	struct verbs_fabric *fabric = verbs_fabric_of(base);

	tern_assert(tern_list_empty(&fabric->regs));
	verbs_async_forget(&fabric->node);
	for (unsigned i = 0; i < fabric->device_count; i++)
		if (fabric->devices[i].pd)
			fabric->api->dealloc_pd(fabric->devices[i].pd);
	pthread_mutex_destroy(&fabric->lock);
	free(fabric);
}

/* ---- regions ---- */

void verbs_region_encode(const struct verbs_region *region, struct tern_region *out)
{
	out->word[0] = htole64(region->start);
	out->word[1] = htole64(region->bytes | (uint64_t)region->access << 48 |
			       (uint64_t)region->guarded << 56);
	for (unsigned i = 0; i < VERBS_DEVICES_MAX / 2; i++)
		out->word[2 + i] = htole64(
			region->keys[2 * i] | (uint64_t)region->keys[2 * i + 1] << 32);
}

void verbs_region_decode(const struct tern_region *wire, struct verbs_region *out)
{
	uint64_t about = le64toh(wire->word[1]);

	out->start = le64toh(wire->word[0]);
	out->bytes = about & VERBS_BYTES_MAX;
	out->access = (uint8_t)(about >> 48);
	out->guarded = (uint8_t)(about >> 56);
	for (unsigned i = 0; i < VERBS_DEVICES_MAX / 2; i++) {
		uint64_t pair = le64toh(wire->word[2 + i]);

		out->keys[2 * i] = (uint32_t)pair;
		out->keys[2 * i + 1] = (uint32_t)(pair >> 32);
	}
}

/* Exposes memory as a guarded region: peers write into it by messages only. */
static int expose_guarded(struct tern_conn *base, struct tern_mem *mem, uint64_t offset,
	struct verbs_region *region, struct tern_region *out)
{
	struct tern_exposures *exposures = &verbs_port_of(base->port)->exposures;
	struct tern_region exposure;
	int r = exposures->table ? 0 : tern_exposures_init(exposures);

	if (r == 0)
		r = tern_exposure_add(exposures, base->owner, tern_mem_at(mem, offset),
			region->bytes, (enum tern_access)region->access, &exposure);
	if (r)
		return r;
	region->guarded = 1;
	region->start = exposure.word[0];
	verbs_region_encode(region, out);
	return 0;
}

static int expose(struct tern_conn *base, struct tern_mem *mem, uint64_t offset,
	uint64_t bytes, enum tern_access access, struct tern_region *out)
{
	struct verbs_port *port = verbs_port_of(base->port);
	struct verbs_fabric *fabric = verbs_port_fabric(port);
	struct verbs_region region = {.bytes = bytes, .access = (uint8_t)access};
	struct verbs_reg *reg = tern_mem_reg(mem, fabric->base.index);

	tern_assert(tern_mem_holds(mem, offset, bytes) && bytes <= VERBS_BYTES_MAX);
	if (mem->kind != TERN_MEM_HOST &&
		(!reg || !verbs_lkey(
				 mem, verbs_conn_of(base)->queue->device, &fabric->base)))
		return -ENOTSUP;
	if (fabric->opts.guard || tern_mem_is_copied(mem, fabric->base.index))
		return expose_guarded(base, mem, offset, &region, out);
	region.start = verbs_address(mem, offset);
	for (unsigned i = 0; i < VERBS_DEVICES_MAX; i++)
		region.keys[i] =
			atomic_load_explicit(&reg->rkeys[i], memory_order_acquire);
	verbs_region_encode(&region, out);
	return 0;
}

static int withdraw(
	struct tern_port *base, struct tern_op *op, const struct tern_region *region)
{
	struct verbs_port *port = verbs_port_of(base);
	struct verbs_region ours;

	/* Never -EINPROGRESS: what peers write by messages is complete within one poll(),
	 * and peers are trusted not to write by RDMA after they have agreed to stop. */
	(void)op;
	verbs_region_decode(region, &ours);
	if (ours.guarded)
		tern_exposure_withdraw(&port->exposures,
			&(struct tern_region){.word = {ours.start, ours.bytes}});
	return 0;
}

/* ---- "auto://HOST:PORT": HOST:PORT unchanged, unless HOST is a loopback address ---- */

static int auto_dial(const char *host_port, tern_auto_add *add, void *arg)
{
	return tern_addr_is_loopback(host_port) ? 0 : add(arg, host_port);
}

static int auto_listen(const char *host_port, char *out, size_t size)
{
	int n = snprintf(out, size, "%s", host_port);

	if (tern_addr_is_loopback(host_port))
		return -ENOTSUP;
	return n < 0 || (size_t)n >= size ? -EINVAL : 0;
}

const struct tern_fabric_ops tern_verbs_fabric_ops = {
	.name = "verbs",
	.wire_version = VERBS_VERSION,
	.pins_memory = true,
	.auto_dial = auto_dial,
	.auto_listen = auto_listen,
	.open = fabric_open,
	.close = fabric_close,
	.mem_register = mem_register,
	.mem_unregister = mem_unregister,
	.port_new = verbs_port_new,
	.port_free = verbs_port_free,
	.listen = verbs_listen,
	.lsn_address = verbs_lsn_address,
	.lsn_close = verbs_lsn_close,
	.connect = verbs_connect,
	.conn_close = verbs_conn_close,
	.unanswered_ns = verbs_unanswered_ns,
	.send = verbs_send,
	.put = verbs_put,
	.get = verbs_get,
	.expose = expose,
	.withdraw = withdraw,
	.reaches = verbs_gpu_reaches,
	.devices = verbs_devices,
	.poll = verbs_poll,
	.arm = verbs_arm,
	.fd = verbs_fd,
};
