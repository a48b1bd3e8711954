/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NIXL's interface for backends, as far as a plug-in sees it, in our own words: NIXL's
 * wheels have no headers. Names of types and functions are NIXL's, since they are part of
 * the interface; fields that only NIXL uses have names of ours, but their offsets count,
 * because NIXL's agent calls inline functions of the base class, which read them.
 *
 * NIXL's number of the interface (api_version) has been 1 since 2025-03, although the
 * virtual functions have changed several times. So version.c compares NIXL's own version
 * with those for which this file was tried. tests/plugins/nixl_abi.py compares it with
 * NIXL's headers.
 */
#ifndef TERN_PLUGINS_NIXL_ABI_HH
#define TERN_PLUGINS_NIXL_ABI_HH

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

static_assert(_GLIBCXX_USE_CXX11_ABI == 1, "NIXL is built with libstdc++'s new strings");

enum nixl_mem_t { DRAM_SEG, VRAM_SEG, BLK_SEG, OBJ_SEG, FILE_SEG };
enum nixl_xfer_op_t { NIXL_READ, NIXL_WRITE };
enum nixl_status_t {
	NIXL_IN_PROG = 1,
	NIXL_SUCCESS = 0,
	NIXL_ERR_NOT_POSTED = -1,
	NIXL_ERR_INVALID_PARAM = -2,
	NIXL_ERR_BACKEND = -3,
	NIXL_ERR_NOT_FOUND = -4,
	NIXL_ERR_MISMATCH = -5,
	NIXL_ERR_NOT_ALLOWED = -6,
	NIXL_ERR_REPOST_ACTIVE = -7,
	NIXL_ERR_UNKNOWN = -8,
	NIXL_ERR_NOT_SUPPORTED = -9,
	NIXL_ERR_REMOTE_DISCONNECT = -10,
	NIXL_ERR_CANCELED = -11,
};
enum class nixl_thread_sync_t { none, strict, rw };
enum class nixl_cost_t { analytical };

using nixl_blob_t = std::string;
using nixl_mem_list_t = std::vector<nixl_mem_t>;
using nixl_b_params_t = std::unordered_map<std::string, std::string>;
using nixl_query_resp_t = std::optional<nixl_b_params_t>;
using nixlMemViewH = void *;
/* Notifications: the sender's agent and the message. */
using notif_list_t = std::vector<std::pair<std::string, std::string>>;

struct nixlAgentOptionalArgs;
struct nixlRemoteMetaDesc;

/* ---- descriptors ---- */

struct nixlBasicDesc {
	uintptr_t addr;
	size_t len;
	uint64_t devId;
};

struct nixlBlobDesc : nixlBasicDesc {
	nixl_blob_t metaInfo;
};

/* What a backend knows of memory: of registered memory, or of a remote agent's. */
class nixlBackendMD
{
      protected:
	bool is_private;

      public:
	explicit nixlBackendMD(bool is_private_) : is_private(is_private_)
	{
	}
	virtual ~nixlBackendMD()
	{
	}
};

struct nixlMetaDesc : nixlBasicDesc {
	nixlBackendMD *metadataP;
};

/* A list. Its virtual functions are NIXL's, except in the lists that tests make. */
template <class T> class nixlDescList
{
      protected:
	nixl_mem_t type;
	std::vector<T> descs;

      public:
	explicit nixlDescList(nixl_mem_t of) : type(of)
	{
	}
	virtual ~nixlDescList()
	{
	}
	virtual void resize(const size_t &count)
	{
		descs.resize(count);
	}
	virtual void addDesc(const T &desc)
	{
		descs.push_back(desc);
	}
	virtual int getIndex(const nixlBasicDesc &) const
	{
		return NIXL_ERR_NOT_FOUND;
	}
	nixl_mem_t getType() const
	{
		return type;
	}
	size_t size() const
	{
		return descs.size();
	}
	const T &operator[](size_t i) const
	{
		return descs[i];
	}
};

using nixl_meta_dlist_t = nixlDescList<nixlMetaDesc>;
using nixl_remote_meta_dlist_t = nixlDescList<nixlRemoteMetaDesc>;
using nixl_reg_dlist_t = nixlDescList<nixlBlobDesc>;

/* ---- the backend ---- */

struct nixlBackendOptionalArgs {
	nixl_blob_t notifMsg;
	bool hasNotif = false;
	nixl_blob_t customParam;
};
using nixl_opt_b_args_t = nixlBackendOptionalArgs;

struct nixlBackendInitParams {
	std::string localAgent;
	std::string type;
	nixl_b_params_t *customParams = nullptr;
	bool enableProgTh = false;
	uint64_t pthrDelay = 0;
	nixl_thread_sync_t syncMode = nixl_thread_sync_t::none;
	bool enableTelemetry_ = false;
};

class nixlBackendReqH
{
      public:
	nixlBackendReqH()
	{
	}
	virtual ~nixlBackendReqH()
	{
	}
};

/* The order of the virtual functions is the interface. */
class nixlBackendEngine
{
	std::string type;
	nixl_b_params_t params;
	/* Events of the backend's own, which Tern has none of: the agent moves the
	 * vector out, and its elements have differed from version to version. */
	std::vector<uint64_t> telemetry;
	std::mutex telemetry_lock;

      protected:
	bool initErr = false;
	const std::string localAgent;
	const bool telemetry_is_on;

      public:
	explicit nixlBackendEngine(const nixlBackendInitParams *init)
	    : type(init->type), params(*init->customParams), localAgent(init->localAgent),
	      telemetry_is_on(init->enableTelemetry_)
	{
	}
	nixlBackendEngine(const nixlBackendEngine &) = delete;
	void operator=(const nixlBackendEngine &) = delete;
	virtual ~nixlBackendEngine() = default;

	virtual bool supportsRemote() const = 0;
	virtual bool supportsLocal() const = 0;
	virtual bool supportsNotif() const = 0;
	virtual nixl_mem_list_t getSupportedMems() const = 0;
	virtual nixl_status_t registerMem(
		const nixlBlobDesc &mem, const nixl_mem_t &kind, nixlBackendMD *&out) = 0;
	virtual nixl_status_t deregisterMem(nixlBackendMD *md) = 0;
	virtual nixl_status_t connect(const std::string &agent) = 0;
	virtual nixl_status_t disconnect(const std::string &agent) = 0;
	virtual nixl_status_t unloadMD(nixlBackendMD *md) = 0;
	virtual nixl_status_t prepXfer(const nixl_xfer_op_t &op,
		const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
		const std::string &agent, nixlBackendReqH *&handle,
		const nixl_opt_b_args_t *args = nullptr) const = 0;
	virtual nixl_status_t postXfer(const nixl_xfer_op_t &op,
		const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote,
		const std::string &agent, nixlBackendReqH *&handle,
		const nixl_opt_b_args_t *args = nullptr) const = 0;
	virtual nixl_status_t checkXfer(nixlBackendReqH *handle) const = 0;
	virtual nixl_status_t releaseReqH(nixlBackendReqH *handle) const = 0;
	virtual nixl_status_t prepMemView(const nixl_remote_meta_dlist_t &,
		nixlMemViewH &, const nixl_opt_b_args_t * = nullptr) const
	{
		return NIXL_ERR_NOT_SUPPORTED;
	}
	virtual nixl_status_t prepMemView(const nixl_meta_dlist_t &, nixlMemViewH &,
		const nixl_opt_b_args_t * = nullptr) const
	{
		return NIXL_ERR_NOT_SUPPORTED;
	}
	virtual void releaseMemView(nixlMemViewH) const
	{
	}
	virtual nixl_status_t getPublicData(const nixlBackendMD *, std::string &) const
	{
		return NIXL_ERR_BACKEND;
	}
	virtual nixl_status_t getConnInfo(std::string &) const
	{
		return NIXL_ERR_BACKEND;
	}
	virtual nixl_status_t loadRemoteConnInfo(const std::string &, const std::string &)
	{
		return NIXL_ERR_BACKEND;
	}
	virtual nixl_status_t loadRemoteMD(const nixlBlobDesc &, const nixl_mem_t &,
		const std::string &, nixlBackendMD *&)
	{
		return NIXL_ERR_BACKEND;
	}
	virtual nixl_status_t loadLocalMD(nixlBackendMD *, nixlBackendMD *&)
	{
		return NIXL_ERR_BACKEND;
	}
	virtual nixl_status_t getNotifs(notif_list_t &)
	{
		return NIXL_ERR_BACKEND;
	}
	virtual nixl_status_t genNotif(const std::string &, const std::string &) const
	{
		return NIXL_ERR_BACKEND;
	}
	virtual nixl_status_t queryMem(
		const nixl_reg_dlist_t &, std::vector<nixl_query_resp_t> &) const
	{
		return NIXL_ERR_NOT_SUPPORTED;
	}
	virtual nixl_status_t estimateXferCost(const nixl_xfer_op_t &,
		const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &,
		nixlBackendReqH *const &, std::chrono::microseconds &,
		std::chrono::microseconds &, nixl_cost_t &,
		const nixlAgentOptionalArgs * = nullptr) const
	{
		return NIXL_ERR_NOT_SUPPORTED;
	}
};

/* ---- the plug-in ---- */

#define NIXL_PLUGIN_API_VERSION 1

struct nixlBackendPlugin {
	int api_version;
	nixlBackendEngine *(*create_engine)(const nixlBackendInitParams *init);
	void (*destroy_engine)(nixlBackendEngine *engine);
	const char *(*get_plugin_name)();
	const char *(*get_plugin_version)();
	nixl_b_params_t (*get_backend_options)();
	nixl_mem_list_t (*get_backend_mems)();
};

extern "C" nixlBackendPlugin *nixl_plugin_init();
extern "C" void nixl_plugin_fini();

#endif
