# SPDX-License-Identifier: Apache-2.0
"""An all-reduce of NCCL between two processes, over Tern's plug-in and beside it over NCCL's own sockets: right sums, and
how long they take. The processes share a GPU if there is only one, and say that they are on different hosts, since NCCL
would not use a network between them otherwise. All names and arguments are those of nccl.h and cuda.h.

TERN_NCCL_PLUGIN names the plug-in, TERN_NCCL_LIBRARY the library; without it, that of Python's packages or of the toolkit.

usage: nccl_ranks.py, or as a rank: nccl_ranks.py LIBRARY ID RANK
"""
import array
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
import tap  # noqa: E402

RANKS = 2
COUNTS = (1, 1 << 10, 1 << 16, 1 << 20)  # floats
ROUNDS = 10
LIMIT_S = 60
SKIPPED = 77
NCCL_FLOAT32, NCCL_SUM, ID_BYTES = 7, 0, 128
ENVIRONMENT = {"NCCL_MNNVL_ENABLE": "0", "NCCL_CUMEM_ENABLE": "0", "NCCL_CUMEM_HOST_ENABLE": "0", "NCCL_RAS_ENABLE": "0",
               "NCCL_MAX_NCHANNELS": "1", "NCCL_SOCKET_IFNAME": "lo", "TERN_NET_IFNAME": "=lo"}


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


def all_reduce(nccl, comm, gpu, rank, count):
    """Returns how many microseconds each round took."""
    given, sums, took = gpu.take(count), gpu.take(count), []
    gpu.write(given, values_of(rank, count))
    for _ in range(ROUNDS):
        start = time.monotonic()
        call(nccl, "ncclAllReduce", ctypes.c_void_p(given.value), ctypes.c_void_p(sums.value), ctypes.c_size_t(count),
             NCCL_FLOAT32, NCCL_SUM, comm, gpu.stream)
        gpu.wait()
        took.append((time.monotonic() - start) * 1e6)
    expected = array.array("f", map(sum, zip(*(values_of(r, count) for r in range(RANKS)))))
    assert gpu.read(sums, count) == expected, f"{count} floats: wrong sums"
    return statistics.median(took)


def be_rank(path, unique_id, rank):
    nccl, comm = ctypes.CDLL(path), ctypes.c_void_p()
    gpu = Gpu(rank % devices())
    made = Id()
    ctypes.memmove(ctypes.byref(made), bytes.fromhex(unique_id), ID_BYTES)
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int]
    call(nccl, "ncclCommInitRank", ctypes.byref(comm), RANKS, made, rank)
    took = {count: all_reduce(nccl, comm, gpu, rank, count) for count in COUNTS}
    call(nccl, "ncclCommDestroy", comm)
    print(json.dumps(took))


# ---- the cases ----

def devices():
    """How many devices there are; 0 without a driver."""
    count = ctypes.c_int()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    return count.value if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def reduce_over(net, path, folder, **environment):
    """Runs the ranks over this network of NCCL. Returns rank 0's times by number of floats."""
    unique_id = Id()
    call(ctypes.CDLL(path), "ncclGetUniqueId", ctypes.byref(unique_id))  # this process serves it until it ends
    hex_id = ctypes.string_at(ctypes.byref(unique_id), ID_BYTES).hex()
    logs = [folder / f"{net}-{rank}" for rank in range(RANKS)]
    running = [subprocess.Popen(
        [sys.executable, __file__, path, hex_id, str(rank)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, **environment, "NCCL_NET": net, "NCCL_HOSTID": f"rank{rank}", "NCCL_DEBUG": "INFO",
             "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(logs[rank])})
        for rank in range(RANKS)]
    try:
        ended = [process.communicate(timeout=LIMIT_S) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    said = "".join(log.read_text(errors="replace")[-3000:] for log in logs if log.exists())
    assert not any(process.returncode for process in running), "".join(err[-1000:] for _, err in ended) + said
    for log in logs:
        assert f"via NET/{net}/" in log.read_text(errors="replace"), said
    return {int(count): us for count, us in json.loads(ended[0][0].splitlines()[-1]).items()}


def cases(path, plugin, folder):
    took = {}

    def ranks_sum_over_tern():
        took["Tern"] = reduce_over("Tern", path, folder, NCCL_NET_PLUGIN=plugin)

    def ranks_sum_over_nccls_sockets():
        took["Socket"] = reduce_over("Socket", path, folder, NCCL_NET_PLUGIN="none")
        for count in COUNTS:
            print(f"# all-reduce of {4 * count} bytes: " + ", ".join(f"{net} {took[net][count]:.0f} us" for net in took))
    return [ranks_sum_over_tern, ranks_sum_over_nccls_sockets]


def find_library():
    named = os.environ.get("TERN_NCCL_LIBRARY")
    packages = [path for site in sys.path if site.endswith("-packages")
                for path in Path(site).glob("nvidia/nccl/lib/libnccl.so.2")]
    places = [Path(named)] if named else [*packages, Path("/usr/local/cuda/lib64/libnccl.so.2"),
                                          Path("/usr/lib/x86_64-linux-gnu/libnccl.so.2")]
    return next((str(path) for path in places if path.exists()), None)


def main():
    if len(sys.argv) > 1:
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
        tap.run(cases(path, plugin, Path(folder)))


main()
