/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer libfabric: tagged messages on a reliable datagram endpoint. The variant is the
 * provider: "tcp" (with its layer rxm) or "shm". It polls.
 */
#include "bench/peers/tagged.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 256u

struct request {
	/* must be first: poll_queue() casts a completion's pointer to it to the request */
	struct fi_context2 context;
	bool busy;
};

static struct fid_ep *ep;
static struct fid_cq *cq;
static fi_addr_t other;
static struct request *requests;

static void must(const char *what, ssize_t status)
{
	pair_must(what, (int)status, status ? fi_strerror((int)-status) : "");
}

static struct fi_info *find(const char *provider, const char *local)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	bool shm = strcmp(provider, "shm") == 0;

	hints->caps = FI_TAGGED | (shm ? 0 : FI_MSG);
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode =
		FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
	hints->fabric_attr->prov_name = strdup(shm ? "shm" : "tcp;ofi_rxm");
	must("no such provider", fi_getinfo(FI_VERSION(1, 17), shm ? NULL : local, NULL,
					 shm ? 0 : FI_SOURCE, hints, &info));
	if (info->domain_attr->mr_mode & FI_MR_LOCAL)
		pair_die("the provider %s requires registered memory for messages",
			provider);
	fi_freeinfo(hints);
	return info;
}

/* Exchanges the endpoints' names (their addresses), each in a field of NAME_MAX_BYTES. */
static void exchange(struct pair *p, struct fid_av *av)
{
	char ours[NAME_MAX_BYTES] = {0}, theirs[NAME_MAX_BYTES];
	size_t bytes = sizeof(ours);

	must("name", fi_getname(&ep->fid, ours, &bytes));
	pair_tell(p, ours, sizeof(ours));
	pair_hear(p, theirs, sizeof(theirs));
	if (fi_av_insert(av, theirs, 1, &other, 0, NULL) != 1)
		pair_die("the other end's name is no valid address");
}

static void fabric_open(struct pair *p)
{
	struct fi_info *info = find(p->variant, p->local);
	struct fi_cq_attr cq_attr = {
		.format = FI_CQ_FORMAT_CONTEXT, .size = 4 * p->inflight + 64};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = 2};
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;

	must("fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
	must("domain", fi_domain(fabric, info, &domain, NULL));
	must("endpoint", fi_endpoint(domain, info, &ep, NULL));
	must("queue", fi_cq_open(domain, &cq_attr, &cq, NULL));
	must("addresses", fi_av_open(domain, &av_attr, &av, NULL));
	must("bind", fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV));
	must("bind", fi_ep_bind(ep, &av->fid, 0));
	must("enable", fi_enable(ep));
	requests = calloc(2 * p->inflight, sizeof(*requests));
	exchange(p, av);
}

static void poll_queue(void)
{
	struct fi_cq_entry entry;
	ssize_t got = fi_cq_read(cq, &entry, 1);

	if (got == 1)
		((struct request *)entry.op_context)->busy = false;
	else if (got != -FI_EAGAIN) {
		struct fi_cq_err_entry error = {0};

		fi_cq_readerr(cq, &error, 0);
		pair_die("a message: %s", fi_strerror(error.err));
	}
}

static void fabric_send(
	struct pair *p, unsigned slot, enum tagged_what what, void *data, size_t bytes)
{
	struct request *r = &requests[tagged_index(slot, what)];
	ssize_t status;

	(void)p;
	r->busy = true;
	while ((status = fi_tsend(ep, data, bytes, NULL, other, what, r)) == -FI_EAGAIN)
		poll_queue();
	must("send", status);
}

static void fabric_receive(
	struct pair *p, unsigned slot, enum tagged_what what, void *data, size_t bytes)
{
	struct request *r = &requests[tagged_index(slot, what)];
	ssize_t status;

	(void)p;
	r->busy = true;
	while ((status = fi_trecv(ep, data, bytes, NULL, other, what, 0, r)) ==
		-FI_EAGAIN)
		poll_queue();
	must("receive", status);
}

static void fabric_wait(struct pair *p, unsigned slot, enum tagged_what what)
{
	(void)p;
	while (requests[tagged_index(slot, what)].busy)
		poll_queue();
}

static void progress(struct pair *p)
{
	(void)p;
	poll_queue();
}

static const char *fabric_version(void)
{
	static char text[16];

	snprintf(text, sizeof(text), "%u.%u", FI_MAJOR(fi_version()),
		FI_MINOR(fi_version()));
	return text;
}

int main(int argc, char **argv)
{
	return tagged_main(argc, argv,
		&(struct pair_ops){.name = "libfabric",
			.variants = "tcp,shm",
			.waits = "poll",
			.version = fabric_version,
			.open = fabric_open},
		&(struct tagged_ops){fabric_send, fabric_receive, fabric_wait, progress});
}
