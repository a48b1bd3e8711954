# SPDX-License-Identifier: Apache-2.0
"""The plug-in for NCCL, loaded by NCCL itself. Without a GPU there are no communicators; but NCCL's bootstrap, in which
the ranks of a communicator find each other, can be told to use the plug-in (NCCL_OOB_NET_ENABLE=1), and is called here
as ncclCommInitRank calls it. These are functions that NCCL does not export, and fields of its struct ncclComm. So this
works with the versions whose layout is below, and any other is skipped.

The library is that of the variable TERN_NCCL_LIBRARY, PyPI's that bench/install.py installs, or the CUDA toolkit's.

usage: nccl_real.py PLUG-IN, or as a rank: nccl_real.py rank PLUG-IN LIBRARY RANK RANKS ACT
"""
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "tests" / "harness"), str(TOP / "bench")]
import install  # noqa: E402
import kills  # noqa: E402
import tap  # noqa: E402

RANKS = 3
ROUNDS = 3
PART = 1 << 20
LIMIT_S = 100
PLACES = (str(install.NCCL.site() / "nvidia/nccl/lib/libnccl.so.2"), "/usr/local/cuda/lib64/libnccl.so.2",
          "/usr/local/cuda/targets/x86_64-linux/lib/libnccl.so.2", "/usr/lib/x86_64-linux-gnu/libnccl.so.2")
# By ncclGetVersion(): the size of struct ncclComm, and where its fields are.
LAYOUTS = {22809: {"size": 1082968, "rank": 1066192, "nRanks": 1066196, "abortFlag": 1069048, "sharedRes": 136,
                   "ncclNet": 26320, "ncclNetVer": 26348, "bootstrap": 26376, "netName": 1075624, "trafficClass": 1075636}}
PRIVATE = {"net_init": "_Z11ncclNetInitP8ncclComm", "net_finalize": "_Z15ncclNetFinalizeP8ncclComm",
           "find_interface": "_Z16bootstrapNetInitv", "init": "_Z13bootstrapInitiPvP8ncclComm",
           "all_gather": "_Z18bootstrapAllGatherPvS_i", "close": "_Z14bootstrapClosePv"}
UNDEFINED = -(1 << 31)
SHARED_BYTES = 1 << 20  # more than a struct ncclSharedResources has


# ---- a rank ----

class Library:
    def __init__(self, path):
        self.exported = ctypes.CDLL(path)
        version = ctypes.c_int()
        self.exported.ncclGetVersion(ctypes.byref(version))
        self.layout = LAYOUTS[version.value]
        names = subprocess.run(["nm", path], check=True, capture_output=True, text=True).stdout
        places = dict(reversed(line.split()[0::2]) for line in names.splitlines() if len(line.split()) == 3)
        base = next(int(line.split("-")[0], 16) for line in Path("/proc/self/maps").read_text().splitlines()
                    if line.endswith(os.path.realpath(path)))
        for name, symbol in PRIVATE.items():
            address = base + int(places[symbol], 16)
            setattr(self, name, lambda *arguments, at=address: ctypes.CFUNCTYPE(ctypes.c_int)(at)(*arguments))


class Communicator:
    """The part of a struct ncclComm that the bootstrap uses."""

    def __init__(self, library, rank, ranks):
        self.layout, self.abort = library.layout, ctypes.c_uint32()
        self.shared = ctypes.create_string_buffer(SHARED_BYTES)
        self.memory = ctypes.create_string_buffer(self.layout["size"] + 4096)
        self.set("rank", ctypes.c_int(rank))
        self.set("nRanks", ctypes.c_int(ranks))
        self.set("abortFlag", ctypes.c_void_p(ctypes.addressof(self.abort)))
        self.set("sharedRes", ctypes.c_void_p(ctypes.addressof(self.shared)))
        self.set("trafficClass", ctypes.c_int(UNDEFINED))
        self.address = ctypes.c_void_p(ctypes.addressof(self.memory))

    def set(self, name, value):
        ctypes.memmove(ctypes.addressof(self.memory) + self.layout[name], ctypes.byref(value), ctypes.sizeof(value))

    def get(self, name, kind):
        return kind.from_buffer(self.memory, self.layout[name]).value

    def net(self):
        """The name of the plug-in, which is the first field of its table, and the version of the table."""
        name = ctypes.c_char_p.from_address(self.get("ncclNet", ctypes.c_void_p)).value
        return name.decode(), self.get("ncclNetVer", ctypes.c_int)


def say(*words):
    """Prints a line by one call, since threads of NCCL print, too."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def unique_id(library, rank):
    """Rank 0 makes the communicator's id, and the test passes it on to the others."""
    made = ctypes.create_string_buffer(128)
    if rank == 0:
        assert library.exported.ncclGetUniqueId(made) == 0
        say("id", made.raw.hex())
    else:
        made.raw = bytes.fromhex(sys.stdin.readline().split()[1])
    return made


def gather(library, state, rank, ranks, mark):
    """Returns NCCL's result; checks the bytes if that is 0."""
    data = ctypes.create_string_buffer(PART * ranks)
    ctypes.memset(ctypes.addressof(data) + rank * PART, 16 * mark + rank, PART)
    result = library.all_gather(state, data, PART)
    wrong = [r for r in range(ranks) if data.raw[r * PART:(r + 1) * PART] != bytes([16 * mark + r]) * PART]
    assert result or not wrong, f"parts {wrong} are wrong"
    return result


def be_rank(path, rank, ranks, act):
    signal.alarm(LIMIT_S)
    library = Library(path)
    assert library.find_interface() == 0
    for mark in range(ROUNDS):
        comm = Communicator(library, rank, ranks)
        assert library.net_init(comm.address) == 0
        say("net", *comm.net())
        assert library.init(1, unique_id(library, rank), comm.address) == 0
        state = ctypes.c_void_p(comm.get("bootstrap", ctypes.c_void_p))
        assert gather(library, state, rank, ranks, mark) == 0
        if act == "die":
            say("ready")
            while gather(library, state, rank, ranks, mark) == 0:
                pass
            say("failed")
            os._exit(0)  # as a program does whose communicator has failed
        assert library.close(state) == 0
        assert library.net_finalize(comm.address) == 0
    say("done")
    os._exit(0)


# ---- the tests ----

ENVIRONMENT = {"NCCL_NET": "Tern", "NCCL_OOB_NET_ENABLE": "1", "NCCL_RAS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo",
               "TERN_NET_IFNAME": "=lo", "TERN_LOG": "warn", "NCCL_DEBUG": "INFO"}


class Ranks:
    """The processes of a communicator, which say what they do line by line, beside what NCCL says."""

    def __init__(self, act, **environment):
        self.said = [[] for _ in range(RANKS)]
        self.running = [subprocess.Popen(
            [sys.executable, __file__, "rank", PLUGIN, LIBRARY, str(rank), str(RANKS), act], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
            env={**os.environ, **ENVIRONMENT, **environment}) for rank in range(RANKS)]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self.running:
            process.kill()
            process.communicate()

    def wait(self, rank, word):
        """Reads until a line of the rank begins with the word, and returns that line."""
        for line in self.running[rank].stdout:
            self.said[rank].append(line)
            if line.split()[:1] == [word]:
                return line
        raise AssertionError(f"rank {rank} does not say {word}:\n{self.all()}")

    def all(self):
        """The last lines of all ranks, which are ended for that."""
        for process, said in zip(self.running, self.said):
            process.kill()
            said += process.stdout.readlines()
        return "".join(f"rank {rank}: {line}" for rank, said in enumerate(self.said) for line in said[-20:])

    def pass_id(self):
        line = self.wait(0, "id")
        for process in self.running[1:]:
            process.stdin.write(line)
            process.stdin.flush()

    def end(self, rank):
        self.said[rank] += self.running[rank].stdout.readlines()
        assert self.running[rank].wait(LIMIT_S) == 0, self.all()


def ranks_gather(**environment):
    with Ranks("gather", **environment) as ranks:
        for _ in range(ROUNDS):
            nets = [ranks.wait(rank, "net").split() for rank in range(RANKS)]
            assert nets == [["net", "Tern", "11"]] * RANKS, nets
            ranks.pass_id()
        for rank in range(RANKS):
            ranks.wait(rank, "done")
            ranks.end(rank)
        said = "".join(line for lines in ranks.said for line in lines)
        assert "NET/Tern : sends to " in said and "NET/Tern : receives from " in said, said


def three_ranks_gather_in_three_rounds_of_init_and_finalize():
    ranks_gather(NCCL_NET_PLUGIN=PLUGIN, NCCL_NET_PLUGIN_REF_COUNT="1")


def over_tcp():
    ranks_gather(NCCL_NET_PLUGIN=PLUGIN, NCCL_NET_PLUGIN_REF_COUNT="1", TERN_FABRICS="tcp")


def under_the_name_that_nccl_looks_for_no_round_forgets_the_plug_in():
    with tempfile.TemporaryDirectory(prefix="tern-nccl-") as folder:
        os.symlink(PLUGIN, f"{folder}/libnccl-net.so")
        # An installed plug-in finds libtern.so from the link's folder.
        ranks_gather(LD_LIBRARY_PATH=f"{folder}:{Path(PLUGIN).parents[2]}")


def a_killed_rank_is_named_by_the_others():
    """Both others hear of it from Tern, unless the first of them has ended before: that one may be named then."""
    moments = kills.moments(2 * kills.FEW, 0.1)
    for number, moment in enumerate(moments):
        with Ranks("die", NCCL_NET_PLUGIN=PLUGIN, TERN_FABRICS=("auto", "tcp")[number % 2]) as ranks:
            ranks.pass_id()
            for rank in range(RANKS):
                ranks.wait(rank, "ready")
            time.sleep(moment)
            victim = number // 2 % RANKS
            pid = ranks.running[victim].pid
            os.kill(pid, signal.SIGKILL)
            others = [rank for rank in range(RANKS) if rank != victim]
            for rank in others:
                ranks.wait(rank, "failed")
                ranks.end(rank)
            told = f"NET/Tern : .*pid {pid} .*: (Connection reset by peer|the peer's process has ended)"
            named = [rank for rank in others if re.search(told, "".join(ranks.said[rank]))]
            assert named, ranks.all()
    kills.tell(len(moments))


def library():
    """The first library whose layout is known, and why there is none."""
    named, unknown = os.environ.get("TERN_NCCL_LIBRARY"), []
    for path in [named] if named else PLACES:
        if not os.path.exists(path):
            continue
        version = ctypes.c_int()
        ctypes.CDLL(path).ncclGetVersion(ctypes.byref(version))
        if version.value in LAYOUTS:
            return os.path.realpath(path), ""
        unknown.append(f"{path} is NCCL {version.value}")
    return None, (f"the layout of a communicator is not known here: {', '.join(unknown)}" if unknown else
                  f"no NCCL here (TERN_NCCL_LIBRARY={named or ''}): ./run test plugins installs it")


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        sys.exit(be_rank(sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6]))
    PLUGIN = os.path.realpath(sys.argv[1])
    LIBRARY, why = library()
    if why:
        print(f"skipped: {why}")
        sys.exit(77)
    tap.run([three_ranks_gather_in_three_rounds_of_init_and_finalize, over_tcp,
             under_the_name_that_nccl_looks_for_no_round_forgets_the_plug_in, a_killed_rank_is_named_by_the_others])
