/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugins/nixl_driver.h"

#include <dlfcn.h>

#include "plugins/nixl/abi.hh"

struct nixl_agent {
	nixlBackendPlugin *plugin;
	nixlBackendEngine *engine;
	std::string info;
};

struct nixl_region {
	nixlBackendMD *md;
	nixlBackendMD *target; /* of own memory, as a target of its agent */
	std::string text;
};

/* NIXL keeps the lists of a request as long as the request. */
struct nixl_handle {
	nixlBackendEngine *engine;
	nixlBackendReqH *handle = nullptr;
	nixl_meta_dlist_t local{DRAM_SEG}, remote{DRAM_SEG};
	nixl_xfer_op_t op;
	std::string name;
};

const char *nixl_open(const char *path, void **plugin)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return dlerror();
	auto init = reinterpret_cast<decltype(&nixl_plugin_init)>(
		dlsym(library, "nixl_plugin_init"));
	if (!init || !dlsym(library, "nixl_plugin_fini"))
		return "the plug-in lacks a function";
	auto found = init();
	*plugin = found;
	if (found &&
		(found->api_version != NIXL_PLUGIN_API_VERSION ||
			std::string(found->get_plugin_name()) != "TERN" ||
			!*found->get_plugin_version() ||
			!found->get_backend_options().empty() ||
			found->get_backend_mems() != nixl_mem_list_t{DRAM_SEG, VRAM_SEG}))
		return "the plug-in describes itself wrongly";
	return nullptr;
}

nixl_agent *nixl_agent_new(void *plugin, const char *name, const char *parameter)
{
	nixl_b_params_t params;
	nixlBackendInitParams init;

	if (parameter)
		params[parameter] = "1";
	init.localAgent = name;
	init.type = "TERN";
	init.customParams = &params;
	init.enableTelemetry_ = true;
	auto a = new nixl_agent{static_cast<nixlBackendPlugin *>(plugin), nullptr, ""};
	a->engine = a->plugin->create_engine(&init);
	if (a->engine && a->engine->supportsRemote() && a->engine->supportsNotif() &&
		a->engine->supportsLocal() && a->engine->getConnInfo(a->info) == 0 &&
		a->engine->connect(name) == 0)
		return a;
	nixl_agent_free(a);
	return nullptr;
}

void nixl_agent_free(nixl_agent *a)
{
	if (a->engine)
		a->plugin->destroy_engine(a->engine);
	delete a;
}

const char *nixl_info(nixl_agent *a)
{
	return a->info.c_str();
}

const char *nixl_text(const nixl_region *r)
{
	return r->text.c_str();
}

int nixl_register(nixl_agent *a, void *base, size_t bytes, bool gpu, nixl_region **out)
{
	nixlBlobDesc desc = {{reinterpret_cast<uintptr_t>(base), bytes, 0}, ""};
	nixlBackendMD *md = nullptr;
	int r = a->engine->registerMem(desc, gpu ? VRAM_SEG : DRAM_SEG, md);

	*out = nullptr;
	if (r)
		return r;
	*out = new nixl_region{md, nullptr, ""};
	r = a->engine->loadLocalMD(md, (*out)->target);
	return r ? r : a->engine->getPublicData(md, (*out)->text);
}

int nixl_deregister(nixl_agent *a, nixl_region *region)
{
	int r = a->engine->deregisterMem(region->md);

	/* An agent that ends does it in this order. */
	if (r == 0)
		r = a->engine->unloadMD(region->target);
	delete region;
	return r;
}

int nixl_load_info(nixl_agent *a, const char *name, const char *info)
{
	return a->engine->loadRemoteConnInfo(name, info);
}

int nixl_load(nixl_agent *a, const char *name, const char *text, uintptr_t base,
	size_t bytes, nixl_region **out)
{
	nixlBlobDesc desc = {{base, bytes, 0}, text};
	nixlBackendMD *md = nullptr;
	int r = a->engine->loadRemoteMD(desc, DRAM_SEG, name, md);

	*out = r ? nullptr : new nixl_region{md, nullptr, text};
	return r;
}

int nixl_unload(nixl_agent *a, nixl_region *region)
{
	int r = a->engine->unloadMD(region->md);

	delete region;
	return r;
}

int nixl_connect(nixl_agent *a, const char *name)
{
	return a->engine->connect(name);
}

int nixl_disconnect(nixl_agent *a, const char *name)
{
	return a->engine->disconnect(name);
}

int nixl_prepare(nixl_agent *a, const char *name, bool write, const nixl_range *ranges,
	size_t count, nixl_handle **out)
{
	auto h = new nixl_handle{
		.engine = a->engine, .op = write ? NIXL_WRITE : NIXL_READ, .name = name};

	for (size_t i = 0; i < count; i++) {
		h->local.addDesc(
			{{reinterpret_cast<uintptr_t>(ranges[i].at), ranges[i].bytes, 0},
				ranges[i].local->md});
		auto to = ranges[i].remote;
		h->remote.addDesc({{ranges[i].remote_at, ranges[i].bytes, 0},
			to->target ? to->target : to->md});
	}
	nixl_opt_b_args_t args;
	int r = a->engine->prepXfer(h->op, h->local, h->remote, name, h->handle, &args);
	*out = h;
	if (r) {
		delete h;
		*out = nullptr;
	}
	return r;
}

int nixl_post(nixl_handle *h, const void *note, size_t bytes)
{
	nixl_opt_b_args_t args;

	args.hasNotif = note;
	if (note)
		args.notifMsg.assign(static_cast<const char *>(note), bytes);
	return h->engine->postXfer(h->op, h->local, h->remote, h->name, h->handle, &args);
}

int nixl_check(nixl_handle *h)
{
	return h->engine->checkXfer(h->handle);
}

int nixl_release(nixl_handle *h)
{
	int r = h->engine->releaseReqH(h->handle);

	if (r == 0)
		delete h;
	return r;
}

int nixl_notify(nixl_agent *a, const char *name, const void *data, size_t bytes)
{
	return a->engine->genNotif(
		name, std::string(static_cast<const char *>(data), bytes));
}

int nixl_take(nixl_agent *a,
	void (*take)(void *arg, const char *name, const void *data, size_t bytes),
	void *arg)
{
	notif_list_t list;
	int r = a->engine->getNotifs(list);

	for (const auto &note : list)
		take(arg, note.first.c_str(), note.second.data(), note.second.size());
	return r;
}
