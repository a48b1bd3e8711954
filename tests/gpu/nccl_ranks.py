# SPDX-License-Identifier: Apache-2.0
"""An all-reduce of NCCL between two processes, over Tern's plug-in and beside it over NCCL's own sockets: right sums, and
with --rates how long they take. The processes share a GPU if there is only one, and say that they are on different hosts,
since NCCL would not use a network between them otherwise. All names and arguments are those of nccl.h and cuda.h.

TERN_NCCL_PLUGIN names the plug-in, TERN_NCCL_LIBRARY the library; without it, that of Python's packages or of the toolkit.

usage: nccl_ranks.py [--rates], or as a rank: nccl_ranks.py LIBRARY ID RANK
"""
import array
import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
import mps  # noqa: E402
import tap  # noqa: E402

RANKS = 2
COUNTS = (1, 1 << 10, 1 << 16, 1 << 20)  # floats, of the cases
RATED = (2, 1 << 10, 1 << 16, 1 << 20, 1 << 24)  # and of the rates
SIZES = {2: "8 bytes", 1 << 10: "4 KiB", 1 << 16: "256 KiB", 1 << 20: "4 MiB", 1 << 24: "64 MiB"}
ROUNDS, ROUNDS_BEFORE, CALLS = 12, 2, 20
LIMIT_S = 60
SKIPPED = 77
NCCL_FLOAT32, NCCL_SUM, ID_BYTES = 7, 0, 128
ENVIRONMENT = {"NCCL_MNNVL_ENABLE": "0", "NCCL_CUMEM_ENABLE": "0", "NCCL_CUMEM_HOST_ENABLE": "0", "NCCL_RAS_ENABLE": "0",
               "NCCL_SOCKET_IFNAME": "lo", "TERN_NET_IFNAME": "=lo"}
# NCCL's documentation says that more threads and sockets than one may be faster.
MANY = {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}


class Id(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""
    _fields_ = [("internal", ctypes.c_char * ID_BYTES)]


def call(library, name, *arguments):
    """Calls a function of NCCL or of the CUDA driver, which return 0 if they succeed."""
    result = getattr(library, name)(*arguments)
    assert result == 0, f"{name} returns {result}"


# ---- a rank ----

class Gpu:
    """A device's primary context, which NCCL uses, too, and a stream."""

    def __init__(self, number):
        self.cuda, device, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
        self.stream = ctypes.c_void_p()
        call(self.cuda, "cuInit", 0)
        call(self.cuda, "cuDeviceGet", ctypes.byref(device), number)
        call(self.cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call(self.cuda, "cuCtxSetCurrent", context)
        call(self.cuda, "cuStreamCreate", ctypes.byref(self.stream), 0)

    def take(self, count):
        address = ctypes.c_uint64()
        call(self.cuda, "cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4 * count))
        return address

    def write(self, address, values):
        call(self.cuda, "cuMemcpyHtoD_v2", address, ctypes.c_void_p(values.buffer_info()[0]),
             ctypes.c_size_t(4 * len(values)))

    def read(self, address, count):
        values = array.array("f", bytes(4 * count))
        call(self.cuda, "cuMemcpyDtoH_v2", ctypes.c_void_p(values.buffer_info()[0]), address, ctypes.c_size_t(4 * count))
        return values

    def wait(self):
        call(self.cuda, "cuStreamSynchronize", self.stream)


def values_of(rank, count):
    """Small whole numbers, whose sums have no rounding."""
    return (array.array("f", [(i * 7 + rank * 31) % 1000 for i in range(1000)]) * (count // 1000 + 1))[:count]


class Reducer:
    """All-reduces of so many floats, each into the same memory."""

    def __init__(self, nccl, comm, gpu, count):
        self.call_s = lambda: self.once(nccl, comm, gpu)
        self.count, self.given, self.sums = count, gpu.take(count), gpu.take(count)

    def once(self, nccl, comm, gpu):
        start = time.monotonic()
        call(nccl, "ncclAllReduce", ctypes.c_void_p(self.given.value), ctypes.c_void_p(self.sums.value),
             ctypes.c_size_t(self.count), NCCL_FLOAT32, NCCL_SUM, comm, gpu.stream)
        gpu.wait()
        return time.monotonic() - start

    def check(self, gpu, rank):
        gpu.write(self.given, values_of(rank, self.count))
        self.call_s()
        expected = array.array("f", map(sum, zip(*(values_of(r, self.count) for r in range(RANKS)))))
        assert gpu.read(self.sums, self.count) == expected, f"{self.count} floats: wrong sums"


def be_rank(path, unique_id, rank):
    """Reads numbers of floats, and answers each with the microseconds of a call: the median of some, with right sums."""
    nccl, comm = ctypes.CDLL(path), ctypes.c_void_p()
    gpu = Gpu(rank % devices())
    made = Id()
    ctypes.memmove(ctypes.byref(made), bytes.fromhex(unique_id), ID_BYTES)
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int]
    call(nccl, "ncclCommInitRank", ctypes.byref(comm), RANKS, made, rank)
    reducers = {}
    for line in sys.stdin:
        count = int(line)
        if count not in reducers:
            reducers[count] = Reducer(nccl, comm, gpu, count)
            reducers[count].check(gpu, rank)
        took = sorted(reducers[count].call_s() for _ in range(CALLS))
        print(json.dumps(took[CALLS // 2] * 1e6), flush=True)
    call(nccl, "ncclCommDestroy", comm)


# ---- the cases ----

def devices():
    """How many devices there are; 0 without a driver."""
    count = ctypes.c_int()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    return count.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


class Ranks:
    """The ranks, over this network of NCCL."""

    def __init__(self, net, path, folder, **environment):
        unique_id = Id()
        call(ctypes.CDLL(path), "ncclGetUniqueId", ctypes.byref(unique_id))  # this process serves it until it ends
        hex_id = ctypes.string_at(ctypes.byref(unique_id), ID_BYTES).hex()
        self.net, folder = net, Path(tempfile.mkdtemp(dir=folder))
        self.logs = [folder / str(rank) for rank in range(RANKS)]
        self.running = [subprocess.Popen(
            [sys.executable, __file__, path, hex_id, str(rank)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=(folder / f"{rank}.err").open("w"),
            env={**os.environ, **environment, "NCCL_NET": net, "NCCL_HOSTID": f"rank{rank}", "NCCL_DEBUG": "INFO",
                 "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(self.logs[rank])})
            for rank in range(RANKS)]
        self.errors = [folder / f"{rank}.err" for rank in range(RANKS)]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.running:
            process.kill()
            process.wait()

    def said(self):
        return "".join(path.read_text(errors="replace")[-3000:] for path in (*self.errors, *self.logs) if path.exists())

    def reduce(self, count):
        """Returns how many microseconds a call took on rank 0."""
        for process in self.running:
            with contextlib.suppress(BrokenPipeError):  # it says why below
                process.stdin.write(f"{count}\n")
                process.stdin.flush()
        answers = [process.stdout.readline() for process in self.running]
        assert all(answers), self.said()
        return json.loads(answers[0])

    def end(self):
        """Returns when they have ended, after a look whether they have used this network."""
        for process in self.running:
            process.stdin.close()
        for process in self.running:
            assert process.wait(timeout=LIMIT_S) == 0, self.said()
        for log in self.logs:
            assert f"via NET/{self.net}/" in log.read_text(errors="replace"), self.said()


def cases(path, plugin, folder):
    def sums(net, **environment):
        with Ranks(net, path, folder, NCCL_MAX_NCHANNELS="1", **environment) as ranks:
            for count in COUNTS:
                ranks.reduce(count)
            ranks.end()

    def ranks_sum_over_tern():
        sums("Tern", NCCL_NET_PLUGIN=plugin)

    def ranks_sum_over_nccls_sockets():
        sums("Socket", NCCL_NET_PLUGIN="none")
    return [ranks_sum_over_tern, ranks_sum_over_nccls_sockets]


def measure(path, plugin, folder):
    """Prints rows: Tern beside NCCL's sockets, in turns."""
    with mps.running(folder) as (places, how), contextlib.ExitStack() as stack:
        def ranks(net, **environment):
            return stack.enter_context(Ranks(net, path, folder, **places, **environment))

        ours = {fabric: ranks("Tern", NCCL_NET_PLUGIN=plugin, TERN_FABRICS=asked)
                for fabric, asked in (("tcp", "tcp"), ("shm", "auto"))}
        peers = {"NCCL's sockets": ranks("Socket", NCCL_NET_PLUGIN="none"),
                 "NCCL's sockets, 4 threads of 4": ranks("Socket", NCCL_NET_PLUGIN="none", **MANY)}
        everybody = [*ours.values(), *peers.values()]
        for count in RATED:
            took = {each: [] for each in everybody}
            for number in range(ROUNDS_BEFORE + ROUNDS):
                for each in (*everybody, *reversed(everybody)):
                    us = each.reduce(count)
                    if number >= ROUNDS_BEFORE:
                        took[each].append(us)
            for fabric, of_tern in ours.items():
                for name, of_peer in peers.items():
                    print(json.dumps({"name": f"all-reduce of {SIZES[count]} by NCCL, 2 ranks, over Tern ({fabric})",
                                      "peer": name, "ours_us": took[of_tern], "peer_us": took[of_peer], "bytes": 4 * count,
                                      "goal": 1 if count in (2, 1 << 20) else 0, "note": how}), flush=True)
        for each in everybody:
            each.end()


def find_library():
    named = os.environ.get("TERN_NCCL_LIBRARY")
    packages = [path for site in sys.path if site.endswith("-packages")
                for path in Path(site).glob("nvidia/nccl/lib/libnccl.so.2")]
    places = [Path(named)] if named else [*packages, Path("/usr/local/cuda/lib64/libnccl.so.2"),
                                          Path("/usr/lib/x86_64-linux-gnu/libnccl.so.2")]
    return next((str(path) for path in places if path.exists()), None)


def main():
    rates = sys.argv[1:] == ["--rates"]
    if len(sys.argv) > 1 and not rates:
        be_rank(sys.argv[1], sys.argv[2], int(sys.argv[3]))
        return
    path, plugin = find_library(), os.environ.get("TERN_NCCL_PLUGIN", "")
    why = None
    if not path:
        why = f"no NCCL here (TERN_NCCL_LIBRARY={os.environ.get('TERN_NCCL_LIBRARY', '')}): pip install nvidia-nccl-cu13"
    elif not devices():
        why = "no GPU here"
    elif not os.path.exists(plugin):
        why = f"TERN_NCCL_PLUGIN={plugin}: there is no such file; the part build makes it"
    if why:
        print(f"skipped: {why}")
        sys.exit(SKIPPED)
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="tern-nccl-") as folder:
        if rates:
            measure(path, plugin, folder)
        else:
            tap.run(cases(path, plugin, Path(folder)))


main()
