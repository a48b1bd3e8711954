/* SPDX-License-Identifier: Apache-2.0 */
/* NIXL's interface (abi.hh) on the functions of core.h. */
#include "plugins/nixl/abi.hh"
#include "plugins/nixl/core.h"

static_assert(int(RESULT_IN_PROGRESS) == NIXL_IN_PROG && int(RESULT_OK) == NIXL_SUCCESS &&
	      int(RESULT_NOT_POSTED) == NIXL_ERR_NOT_POSTED &&
	      int(RESULT_INVALID) == NIXL_ERR_INVALID_PARAM &&
	      int(RESULT_BACKEND) == NIXL_ERR_BACKEND &&
	      int(RESULT_NOT_FOUND) == NIXL_ERR_NOT_FOUND &&
	      int(RESULT_MISMATCH) == NIXL_ERR_MISMATCH &&
	      int(RESULT_NOT_ALLOWED) == NIXL_ERR_NOT_ALLOWED &&
	      int(RESULT_ACTIVE) == NIXL_ERR_REPOST_ACTIVE &&
	      int(RESULT_DISCONNECTED) == NIXL_ERR_REMOTE_DISCONNECT &&
	      int(RESULT_CANCELED) == NIXL_ERR_CANCELED);

namespace
{

nixl_status_t status_of(int result)
{
	return nixl_status_t(result);
}

/* Registered memory, or another agent's. Neither: this agent's own memory as its
 * target, which NIXL unloads before or after the memory is deregistered. */
struct Metadata final : nixlBackendMD {
	struct memory *memory = nullptr;
	struct target *target = nullptr;

	explicit Metadata(bool is_local) : nixlBackendMD(is_local)
	{
	}
};

struct Handle final : nixlBackendReqH {
	struct request *request = nullptr;
};

Metadata *metadata_of(nixlBackendMD *md)
{
	return static_cast<Metadata *>(md);
}

bool is_memory(nixl_mem_t kind)
{
	return kind == DRAM_SEG || kind == VRAM_SEG;
}

request *request_of(nixlBackendReqH *handle)
{
	return static_cast<Handle *>(handle)->request;
}

void take_note(void *list, const char *agent, const void *data, size_t bytes)
{
	static_cast<notif_list_t *>(list)->emplace_back(
		agent, std::string(static_cast<const char *>(data), bytes));
}

class Engine final : public nixlBackendEngine
{
	struct engine *engine;

      public:
	Engine(const nixlBackendInitParams *init, struct engine *made)
	    : nixlBackendEngine(init), engine(made)
	{
	}

	~Engine() override
	{
		engine_free(engine);
	}

	bool supportsRemote() const override
	{
		return true;
	}

	bool supportsLocal() const override
	{
		return true;
	}

	bool supportsNotif() const override
	{
		return true;
	}

	nixl_mem_list_t getSupportedMems() const override
	{
		return {DRAM_SEG, VRAM_SEG};
	}

	nixl_status_t registerMem(const nixlBlobDesc &mem, const nixl_mem_t &kind,
		nixlBackendMD *&out) override
	{
		auto md = new Metadata(true);
		int r = is_memory(kind) ? memory_register(engine, kind == VRAM_SEG,
						  mem.addr, mem.len, &md->memory)
					: RESULT_INVALID;

		out = md;
		if (r != RESULT_OK) {
			delete md;
			out = nullptr;
		}
		return status_of(r);
	}

	nixl_status_t deregisterMem(nixlBackendMD *md) override
	{
		int r = memory_deregister(engine, metadata_of(md)->memory);

		if (r == RESULT_OK)
			delete md;
		return status_of(r);
	}

	nixl_status_t connect(const std::string &agent) override
	{
		return status_of(engine_connect(engine, agent.c_str()));
	}

	nixl_status_t disconnect(const std::string &agent) override
	{
		return status_of(engine_disconnect(engine, agent.c_str()));
	}

	nixl_status_t unloadMD(nixlBackendMD *md) override
	{
		struct target *target = metadata_of(md)->target;

		delete md;
		return status_of(target ? target_unload(engine, target) : RESULT_OK);
	}

	nixl_status_t prepXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local,
		const nixl_meta_dlist_t &remote, const std::string &agent,
		nixlBackendReqH *&handle, const nixl_opt_b_args_t *) const override
	{
		bool self = agent == localAgent;
		bool gpu = local.getType() == VRAM_SEG || remote.getType() == VRAM_SEG;

		handle = nullptr;
		if (local.size() != remote.size())
			return NIXL_ERR_INVALID_PARAM;
		std::vector<span> spans(local.size());
		for (size_t i = 0; i < spans.size(); i++) {
			auto from = metadata_of(local[i].metadataP);
			auto to = metadata_of(remote[i].metadataP);

			if (!from || !to || !from->memory || to->memory ||
				self != !to->target || local[i].len != remote[i].len)
				return NIXL_ERR_INVALID_PARAM;
			spans[i] = {from->memory, local[i].addr, to->target,
				remote[i].addr, local[i].len, gpu};
		}
		auto made = new Handle;
		int r = request_new(engine, self ? nullptr : agent.c_str(),
			op == NIXL_WRITE, spans.data(), spans.size(), &made->request);

		handle = made;
		if (r != RESULT_OK) {
			delete made;
			handle = nullptr;
		}
		return status_of(r);
	}

	/* The lists are those of prepXfer(). */
	nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &,
		const nixl_meta_dlist_t &, const std::string &, nixlBackendReqH *&handle,
		const nixl_opt_b_args_t *args) const override
	{
		bool noted = args && args->hasNotif;

		return status_of(request_post(request_of(handle),
			noted ? args->notifMsg.data() : nullptr,
			noted ? args->notifMsg.size() : 0));
	}

	nixl_status_t checkXfer(nixlBackendReqH *handle) const override
	{
		return status_of(request_check(request_of(handle)));
	}

	nixl_status_t releaseReqH(nixlBackendReqH *handle) const override
	{
		int r = request_release(request_of(handle));

		if (r == RESULT_OK)
			delete handle;
		return status_of(r);
	}

	nixl_status_t getPublicData(
		const nixlBackendMD *md, std::string &out) const override
	{
		out = memory_text(static_cast<const Metadata *>(md)->memory);
		return NIXL_SUCCESS;
	}

	nixl_status_t getConnInfo(std::string &out) const override
	{
		out = engine_info(engine);
		return NIXL_SUCCESS;
	}

	nixl_status_t loadRemoteConnInfo(
		const std::string &agent, const std::string &info) override
	{
		return status_of(engine_load(engine, agent.c_str(), info.c_str()));
	}

	nixl_status_t loadRemoteMD(const nixlBlobDesc &from, const nixl_mem_t &kind,
		const std::string &agent, nixlBackendMD *&out) override
	{
		auto md = new Metadata(false);
		int r = is_memory(kind) ? target_load(engine, agent.c_str(),
						  from.metaInfo.c_str(), &md->target)
					: RESULT_INVALID;

		out = md;
		if (r != RESULT_OK) {
			delete md;
			out = nullptr;
		}
		return status_of(r);
	}

	nixl_status_t loadLocalMD(nixlBackendMD *, nixlBackendMD *&out) override
	{
		out = new Metadata(false);
		return NIXL_SUCCESS;
	}

	nixl_status_t getNotifs(notif_list_t &list) override
	{
		return status_of(notes_take(engine, take_note, &list));
	}

	nixl_status_t genNotif(
		const std::string &agent, const std::string &message) const override
	{
		return status_of(notes_send(
			engine, agent.c_str(), message.data(), message.size()));
	}
};

nixlBackendEngine *create(const nixlBackendInitParams *init)
{
	for (const auto &parameter : *init->customParams) {
		engine_refuse(parameter.first.c_str());
		return nullptr;
	}
	struct engine *made = engine_new(init->localAgent.c_str());

	return made ? new Engine(init, made) : nullptr;
}

void destroy(nixlBackendEngine *engine)
{
	delete engine;
}

const char *name()
{
	return "TERN";
}

const char *version()
{
	return TERN_PROJECT_VERSION;
}

nixl_b_params_t options()
{
	return {};
}

nixl_mem_list_t kinds_of_memory()
{
	return {DRAM_SEG, VRAM_SEG};
}

} // namespace

extern "C" __attribute__((visibility("default"))) nixlBackendPlugin *nixl_plugin_init()
{
	static nixlBackendPlugin plugin = {NIXL_PLUGIN_API_VERSION, create, destroy, name,
		version, options, kinds_of_memory};

	return version_is_known(__builtin_return_address(0)) ? &plugin : nullptr;
}

extern "C" __attribute__((visibility("default"))) void nixl_plugin_fini()
{
}
