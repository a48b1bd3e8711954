# SPDX-License-Identifier: Apache-2.0
"""Compares plugins/nixl/abi.hh with NIXL's headers, of each version that plugins/nixl/version.c names and
that a clone of NIXL has: the place of each virtual function, with its exact type; sizes; offsets of fields,
also of private ones; numbers of enums; and all vtables as g++ dumps them.

NIXL's sources are not part of this repository: without the folder of a clone in TERN_NIXL_SOURCES, the test
is skipped.

usage: nixl_abi.py [FOLDER OF A CLONE OF NIXL]
"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "harness"))
import tap  # noqa: E402

SOURCES = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TERN_NIXL_SOURCES", "")

# Compiled with either header. Where names differ, ours come first.
PROBE = r"""
#include <cstdio>
#include <cstring>
#ifdef THEIRS
#include <backend/backend_plugin.h>
#define NAME(ours, theirs) theirs
#else
#include "plugins/nixl/abi.hh"
#define NAME(ours, theirs) ours
#endif

/* A pointer to a virtual function holds 1 + its offset in the vtable (Itanium C++ ABI). */
template <class F> long slot(F f)
{
	long words[2];

	static_assert(sizeof(words) == sizeof(f));
	memcpy(words, &f, sizeof(f));
	return (words[0] - 1) / 8;
}

#define SIZE(type) printf("sizeof " #type " %zu align %zu\n", sizeof(type), alignof(type));
#define FIELD(type, ours, theirs)                                                        \
	printf("offset " #type "." #ours " %zu size %zu\n", offsetof(type, NAME(ours, theirs)),  \
	       sizeof(type::NAME(ours, theirs)));
#define VALUE(name) printf("value " #name " %d\n", int(name));
#define PLACE(class, result, name, args, end)                                            \
	printf("slot " #class "::" #name #args " %ld\n",                                     \
	       slot(static_cast<result(class ::*) args end>(&class ::name)));
#define E(result, name, args) PLACE(nixlBackendEngine, result, name, args, )
#define EC(result, name, args) PLACE(nixlBackendEngine, result, name, args, const)

using S = nixl_status_t;
using Str = std::string;
using M = nixl_meta_dlist_t;
using A = nixl_opt_b_args_t;
using Us = std::chrono::microseconds;

template <class T> void list(const char *name)
{
	using L = nixlDescList<T>;
	printf("%s: sizeof %zu element %zu type %zu descs %zu\n", name, sizeof(L), sizeof(T), offsetof(L, type),
	       offsetof(L, descs));
	printf("%s: resize %ld addDesc %ld getIndex %ld\n", name,
	       slot(static_cast<void (L::*)(const size_t &)>(&L::resize)),
	       slot(static_cast<void (L::*)(const T &)>(&L::addDesc)),
	       slot(static_cast<int (L::*)(const nixlBasicDesc &) const>(&L::getIndex)));
}

int main()
{
	SIZE(nixlBackendEngine)
	FIELD(nixlBackendEngine, type, backendType)
	FIELD(nixlBackendEngine, params, customParams)
	FIELD(nixlBackendEngine, telemetry, telemetryEvents_)
	FIELD(nixlBackendEngine, telemetry_lock, telemetryEventsMutex_)
	FIELD(nixlBackendEngine, initErr, initErr)
	FIELD(nixlBackendEngine, localAgent, localAgent)
	FIELD(nixlBackendEngine, telemetry_is_on, enableTelemetry_)
	EC(bool, supportsRemote, ())
	EC(bool, supportsLocal, ())
	EC(bool, supportsNotif, ())
	EC(nixl_mem_list_t, getSupportedMems, ())
	E(S, registerMem, (const nixlBlobDesc &, const nixl_mem_t &, nixlBackendMD *&))
	E(S, deregisterMem, (nixlBackendMD *))
	E(S, connect, (const Str &))
	E(S, disconnect, (const Str &))
	E(S, unloadMD, (nixlBackendMD *))
	EC(S, prepXfer,
		(const nixl_xfer_op_t &, const M &, const M &, const Str &, nixlBackendReqH *&, const A *))
	EC(S, postXfer,
		(const nixl_xfer_op_t &, const M &, const M &, const Str &, nixlBackendReqH *&, const A *))
	EC(S, checkXfer, (nixlBackendReqH *))
	EC(S, releaseReqH, (nixlBackendReqH *))
	EC(S, prepMemView, (const nixl_remote_meta_dlist_t &, nixlMemViewH &, const A *))
	EC(S, prepMemView, (const M &, nixlMemViewH &, const A *))
	EC(void, releaseMemView, (nixlMemViewH))
	EC(S, getPublicData, (const nixlBackendMD *, Str &))
	EC(S, getConnInfo, (Str &))
	E(S, loadRemoteConnInfo, (const Str &, const Str &))
	E(S, loadRemoteMD, (const nixlBlobDesc &, const nixl_mem_t &, const Str &, nixlBackendMD *&))
	E(S, loadLocalMD, (nixlBackendMD *, nixlBackendMD *&))
	E(S, getNotifs, (notif_list_t &))
	EC(S, genNotif, (const Str &, const Str &))
	EC(S, queryMem, (const nixl_reg_dlist_t &, std::vector<nixl_query_resp_t> &))
	EC(S, estimateXferCost,
		(const nixl_xfer_op_t &, const M &, const M &, const Str &, nixlBackendReqH *const &, Us &, Us &,
			nixl_cost_t &, const nixlAgentOptionalArgs *))
	SIZE(nixlBasicDesc)
	FIELD(nixlBasicDesc, addr, addr)
	FIELD(nixlBasicDesc, len, len)
	FIELD(nixlBasicDesc, devId, devId)
	SIZE(nixlBlobDesc)
	FIELD(nixlBlobDesc, metaInfo, metaInfo)
	SIZE(nixlMetaDesc)
	FIELD(nixlMetaDesc, metadataP, metadataP)
	list<nixlMetaDesc>("nixl_meta_dlist_t");
	list<nixlBlobDesc>("nixl_reg_dlist_t");
	SIZE(nixlBackendMD)
	FIELD(nixlBackendMD, is_private, isPrivateMD)
	SIZE(nixlBackendReqH)
	SIZE(nixlBackendOptionalArgs)
	FIELD(nixlBackendOptionalArgs, notifMsg, notifMsg)
	FIELD(nixlBackendOptionalArgs, hasNotif, hasNotif)
	FIELD(nixlBackendOptionalArgs, customParam, customParam)
	SIZE(nixlBackendInitParams)
	FIELD(nixlBackendInitParams, localAgent, localAgent)
	FIELD(nixlBackendInitParams, type, type)
	FIELD(nixlBackendInitParams, customParams, customParams)
	FIELD(nixlBackendInitParams, enableProgTh, enableProgTh)
	FIELD(nixlBackendInitParams, pthrDelay, pthrDelay)
	FIELD(nixlBackendInitParams, syncMode, syncMode)
	FIELD(nixlBackendInitParams, enableTelemetry_, enableTelemetry_)
	SIZE(nixlBackendPlugin)
	FIELD(nixlBackendPlugin, api_version, api_version)
	FIELD(nixlBackendPlugin, create_engine, create_engine)
	FIELD(nixlBackendPlugin, destroy_engine, destroy_engine)
	FIELD(nixlBackendPlugin, get_plugin_name, get_plugin_name)
	FIELD(nixlBackendPlugin, get_plugin_version, get_plugin_version)
	FIELD(nixlBackendPlugin, get_backend_options, get_backend_options)
	FIELD(nixlBackendPlugin, get_backend_mems, get_backend_mems)
	SIZE(nixl_cost_t)
	SIZE(nixl_status_t)
	SIZE(nixl_mem_t)
	SIZE(nixl_xfer_op_t)
	VALUE(NIXL_PLUGIN_API_VERSION)
	VALUE(DRAM_SEG) VALUE(VRAM_SEG) VALUE(BLK_SEG) VALUE(OBJ_SEG) VALUE(FILE_SEG)
	VALUE(NIXL_READ) VALUE(NIXL_WRITE)
	VALUE(NIXL_IN_PROG) VALUE(NIXL_SUCCESS) VALUE(NIXL_ERR_NOT_POSTED) VALUE(NIXL_ERR_INVALID_PARAM)
	VALUE(NIXL_ERR_BACKEND) VALUE(NIXL_ERR_NOT_FOUND) VALUE(NIXL_ERR_MISMATCH) VALUE(NIXL_ERR_NOT_ALLOWED)
	VALUE(NIXL_ERR_REPOST_ACTIVE) VALUE(NIXL_ERR_UNKNOWN) VALUE(NIXL_ERR_NOT_SUPPORTED)
	VALUE(NIXL_ERR_REMOTE_DISCONNECT) VALUE(NIXL_ERR_CANCELED)
	VALUE(nixl_thread_sync_t::NAME(none, NIXL_THREAD_SYNC_NONE))
}
"""
# What the headers include of other projects. They use it in inline functions only.
LOG = """#pragma once
#include <iostream>
#define NIXL_ERROR std::cerr
#define NIXL_ASSERT(x) ((void)(x))
"""
# The classes whose vtables are compared.
VTABLES = ["nixlBackendEngine", "nixlBackendMD", "nixlBackendReqH", "nixlDescList<nixlMetaDesc>",
           "nixlDescList<nixlBlobDesc>"]


def known_versions():
    text = (TOP / "plugins/nixl/version.c").read_text()
    return re.findall(r'"(\d+\.\d+\.\d+)"', text[text.index("known[] = {"):].split("}")[0])


def vtables(dump):
    """The vtables of a dump of g++ -fdump-lang-class: by class, the entries without their addresses. Whether a
    function is pure or has a body is not part of the interface."""
    found = {}
    for name, body in re.findall(r"^Vtable for (\S.*)\n(?:.*\n)?.*entries\n((?:\d+ .*\n)+)", dump, re.M):
        entries = [line.split(None, 1)[1].replace("(int (*)(...))", "") for line in body.splitlines()]
        found[name] = len(entries)
    return {name: count for name, count in found.items() if name in VTABLES}


def measure(folder, *options):
    """Compiles and runs the probe in the folder. Returns what it prints, with the vtables."""
    (folder / "probe.cc").write_text(PROBE)
    command = ["g++", "-std=c++20", "-fno-access-control", "-Wno-invalid-offsetof", "-fdump-lang-class=classes.txt",
               "-c", *options, "probe.cc"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, " ".join(command) + "\n" + done.stderr[:3000]
    # The functions of NIXL's lists are in its library: only their places are asked for, so nothing is called.
    done = subprocess.run(["g++", "-no-pie", "-Wl,--unresolved-symbols=ignore-all", "-o", "probe", "probe.o"],
                          cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
    text = subprocess.run(["./probe"], cwd=folder, capture_output=True, text=True, check=True).stdout
    tables = vtables((folder / "classes.txt").read_text())
    assert set(tables) == set(VTABLES), f"g++ dumps {tables}"
    return text.splitlines() + [f"vtable {name}: {tables[name]} entries" for name in sorted(tables)]


def unpack(tag, folder):
    archive = subprocess.run(["git", "-C", SOURCES, "archive", tag, "src"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "x", "-C", folder], input=archive, check=True)
    (folder / "stubs/common").mkdir(parents=True)
    (folder / "stubs/common/nixl_log.h").write_text(LOG)


def compare(tag, ours):
    with tempfile.TemporaryDirectory(prefix="tern-nixl-") as name:
        folder = Path(name)
        unpack(tag, folder)
        include = [f"-I{folder / p}" for p in ("stubs", "src/api/cpp", "src/api/cpp/backend", "src/utils", "src/core",
                                               "src/core/telemetry", "src/infra")]
        theirs = measure(folder, "-DTHEIRS", *include)
    differ = [f"{tag}: {a!r} in abi.hh, {b!r} in NIXL" for a, b in zip(ours, theirs) if a != b]
    assert not differ and len(ours) == len(theirs), "\n".join(differ)


def the_declarations_are_those_of_nixl():
    if not SOURCES:
        raise tap.Skip("no clone of NIXL in TERN_NIXL_SOURCES")
    with tempfile.TemporaryDirectory(prefix="tern-nixl-") as name:
        ours = measure(Path(name), f"-I{TOP}")
    tags = subprocess.run(["git", "-C", SOURCES, "tag"], capture_output=True, text=True, check=True).stdout.split()
    compared = []
    for version in known_versions():
        tag = next((t for t in (f"v{version}", version) if t in tags), None)
        if tag:
            compare(tag, ours)
            compared.append(version)
    assert compared, f"{SOURCES} has no tag of {known_versions()}"
    missing = sorted(set(known_versions()) - set(compared))
    print(f"# {len(ours)} facts are equal in {', '.join(compared)}; not in this clone: {', '.join(missing) or 'none'}")


tap.run([the_declarations_are_those_of_nixl])
