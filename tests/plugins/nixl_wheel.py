# SPDX-License-Identifier: Apache-2.0
"""The plug-in for NIXL, loaded by NIXL: by its wheel, beside UCX, in two processes; and under PyTorch's
torch.distributed._transport.

It needs a Python that has NIXL: this one, or one that bench/install.py has made, which is that of PyPI's PyTorch
with TERN_TEST_TORCH=torch in the environment. The plug-in is linked into NIXL's folder there, as a user does.

usage: nixl_wheel.py PLUG-IN
"""
import importlib.util
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "harness"))
import kills  # noqa: E402
import tap  # noqa: E402

PLUGIN = Path(sys.argv[1]).resolve()
POSTS = 100_000
SIZE = 1 << 20
LIMIT_S = 60


def use_a_python_with_nixl():
    newest = os.environ.get("TERN_TEST_TORCH") == "torch"
    if importlib.util.find_spec("nixl_cu12") and not newest:
        return
    python = TOP / "build-bench" / ("torch" if newest else "nixl") / "bin/python"
    if os.path.abspath(python) == os.path.abspath(sys.executable):
        return
    has_nixl = [python, "-c", "import nixl_cu12"]
    if os.access(python, os.X_OK) and subprocess.run(has_nixl, capture_output=True).returncode == 0:
        os.execv(python, [python, *sys.argv])
    print(f"skipped: no Python has NIXL: ./run test{' plugins' if newest else ''} installs it")
    sys.exit(77)


use_a_python_with_nixl()
import numpy as np  # noqa: E402

os.environ.setdefault("TERN_NET_IFNAME", "=lo")
SITE = Path(importlib.util.find_spec("nixl_cu12").origin).parents[1]
FOLDERS = sorted(SITE.glob(".nixl_cu1?.mesonpy.libs/plugins"))
for folder in FOLDERS:  # tests of the other fabric may do so at the same moment
    link = folder / f"{PLUGIN.name}.{os.getpid()}"
    link.symlink_to(PLUGIN)
    link.replace(folder / PLUGIN.name)


def agent(name, backends):
    from nixl_cu12 import nixl_agent, nixl_agent_config

    a = nixl_agent(name, nixl_agent_config(backends=[], capture_telemetry=True))
    for backend in backends:
        a.create_backend(backend, {})
    return a


def registered(a, array, backend):
    return a.register_memory([(array.ctypes.data, array.nbytes, 0, "")], "DRAM", backends=[backend])


def end_of(a, handle, state):
    limit = time.monotonic() + LIMIT_S
    while state == "PROC":
        assert time.monotonic() < limit
        os.sched_yield()
        state = a.check_xfer_state(handle)
    return state


class Target:
    """A child process with an agent, whose memory is full of `mark`. Tells the notifications that it gets."""

    def __init__(self, name, backends, mark):
        self.pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        self.process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(theirs, name, backends, mark), daemon=True)
        self.process.start()
        self.metadata, self.address = self.pipe.recv()

    def ask(self, question):
        self.pipe.send(question)
        assert self.pipe.poll(LIMIT_S), f"no answer to {question}"
        return self.pipe.recv()

    def end(self, by=None):
        if by:
            os.kill(self.process.pid, by)
        else:
            self.pipe.send("end")
        self.process.join(LIMIT_S)
        assert not self.process.is_alive()


def serve(pipe, name, backends, mark):
    a = agent(name, backends)
    data = np.full(SIZE, mark, dtype=np.uint8)
    for backend in backends:
        registered(a, data, backend)
    pipe.send((a.get_agent_metadata(), data.ctypes.data))
    notes = []
    while True:
        for sender, messages in a.get_new_notifs().items():
            notes += [(sender, message) for message in messages]
        if pipe.poll(0.001):
            question = pipe.recv()
            if question == "end":
                return
            if question == "notes":
                pipe.send(notes)
            else:
                pipe.send(int(data.sum(dtype=np.uint64)))


def prepare(a, target, data, op, backend, size=SIZE):
    local = a.get_xfer_descs([(data.ctypes.data, size, 0)], "DRAM")
    remote = a.get_xfer_descs([(target.address, size, 0)], "DRAM")
    return a.initialize_xfer(op, local, remote, "T", b"", backends=[backend])


def both_backends_transfer_in_one_agent():
    target = Target("T", ["TERN", "UCX"], 3)
    a = agent("I", ["TERN", "UCX"])
    data = np.zeros(SIZE, dtype=np.uint8)
    for backend in ("TERN", "UCX"):
        registered(a, data, backend)
    a.add_remote_agent(target.metadata)
    sent = []
    for i, backend in enumerate(("TERN", "UCX")):
        data[:] = 0
        read = prepare(a, target, data, "READ", backend)
        assert end_of(a, read, a.transfer(read)) == "DONE"
        assert (data == 3 + 2 * i).all(), data
        data[:] = 5
        write = prepare(a, target, data, "WRITE", backend)
        assert end_of(a, write, a.transfer(write, b"note " + backend.encode())) == "DONE"
        sent.append(("I", b"note " + backend.encode()))
        assert target.ask("sum") == 5 * SIZE
        assert a.get_xfer_telemetry(write).totalBytes == SIZE
        a.release_xfer_handle(read)
        a.release_xfer_handle(write)
    limit = time.monotonic() + LIMIT_S
    while len(target.ask("notes")) < 2:
        assert time.monotonic() < limit
    assert sorted(target.ask("notes")) == sorted(sent)
    target.end()


def a_request_is_posted_100000_times():
    target = Target("T", ["TERN"], 0)
    a = agent("I", ["TERN"])
    data = np.arange(64, dtype=np.uint8)
    registered(a, data, "TERN")
    a.add_remote_agent(target.metadata)
    write, told = [prepare(a, target, data, "WRITE", "TERN", 64) for _ in range(2)]
    for i in range(POSTS):
        # A request of NIXL repeats the notification that it once had.
        if i % 1000:
            assert end_of(a, write, a.transfer(write)) == "DONE", i
        else:
            assert end_of(a, told, a.transfer(told, b"%d" % i)) == "DONE", i
    assert target.ask("sum") == data.sum()
    limit = time.monotonic() + LIMIT_S
    while len(target.ask("notes")) < POSTS // 1000:
        assert time.monotonic() < limit
    assert target.ask("notes") == [("I", b"%d" % i) for i in range(0, POSTS, 1000)]
    a.release_xfer_handle(write)
    a.release_xfer_handle(told)
    target.end()


def error_of(call):
    """What NIXL says. The class of its exceptions is in another module for each CUDA."""
    try:
        result = call()
    except Exception as error:
        return repr(error).upper()
    raise AssertionError(f"no error, but {result}")


def repeat(a, handle):
    """Transfers until that fails."""
    state = "DONE"
    while state == "DONE":
        state = end_of(a, handle, a.transfer(handle))
    return state


def forget(a, name):
    """Some versions of NIXL forget a disconnected agent by themselves, and some leave it to the program."""
    try:
        a.remove_remote_agent(name)
    except Exception as error:
        assert "NOT_FOUND" in repr(error).upper(), repr(error)


def error_while(a, handle, target, number, after_s):
    """Sends the signal to the target while the handle transfers again and again. Returns what NIXL says then."""
    later = threading.Timer(after_s, os.kill, (target.process.pid, number))
    later.start()
    said = error_of(lambda: repeat(a, handle))
    later.join()
    return said


def a_target_that_is_killed_is_gone_and_may_start_again():
    a = agent("I", ["TERN"])
    data = np.zeros(SIZE, dtype=np.uint8)
    registered(a, data, "TERN")
    target = Target("T", ["TERN"], 1)
    moments = kills.moments(kills.FEW, 0.1)
    for number, moment in enumerate(moments, 1):
        a.add_remote_agent(target.metadata)
        read = prepare(a, target, data, "READ", "TERN")
        assert end_of(a, read, a.transfer(read)) == "DONE"
        assert "DISCONNECT" in error_while(a, read, target, signal.SIGKILL, moment)
        target.end(signal.SIGKILL)
        forget(a, "T")
        target = Target("T", ["TERN"], number + 1)
        a.add_remote_agent(target.metadata)
        assert "NOT_FOUND" in error_of(lambda: a.transfer(read))
        a.release_xfer_handle(read)
        again = prepare(a, target, data, "READ", "TERN")
        assert end_of(a, again, a.transfer(again)) == "DONE"
        assert (data == number + 1).all()
        a.release_xfer_handle(again)
        a.remove_remote_agent("T")
    kills.tell(len(moments))
    target.end()


def a_target_that_is_stopped_is_gone_after_the_timeout():
    os.environ["TERN_DEAD_TIMEOUT"] = "1"
    a = agent("I", ["TERN"])
    del os.environ["TERN_DEAD_TIMEOUT"]
    data = np.zeros(SIZE, dtype=np.uint8)
    registered(a, data, "TERN")
    target = Target("T", ["TERN"], 1)
    a.add_remote_agent(target.metadata)
    read = prepare(a, target, data, "READ", "TERN")
    assert "DISCONNECT" in error_while(a, read, target, signal.SIGSTOP, 0.02)
    a.release_xfer_handle(read)
    target.end(signal.SIGKILL)


def the_vtable_of_the_wheel_is_in_the_order_of_our_declarations():
    text = (TOP / "plugins/nixl/abi.hh").read_text()
    text = text[text.index("class nixlBackendEngine"):]
    ours = re.findall(r"\bvirtual [^(~]*?(\w+)\(", text[:text.index("\n};")])
    library = FOLDERS[0] / "libplugin_UCX.so"
    table = subprocess.run(["readelf", "-sW", "--dyn-syms", library], capture_output=True, text=True, check=True).stdout
    start, size = re.search(r": (\w+) +(\d+) .* _ZTV13nixlUcxEngine$", table, re.M).groups()
    start, size = int(start, 16), int(size)
    relocations = subprocess.run(["readelf", "-rW", library], capture_output=True, text=True, check=True).stdout
    entries = {}
    for line in relocations.splitlines():
        words = line.split()
        if len(words) >= 5 and re.fullmatch(r"[0-9a-f]{12,16}", words[0]):
            at = int(words[0], 16) - start
            if 16 <= at < size:
                entries[at // 8 - 2] = words[4]
    names = [re.match(r"_ZNK?(?:13nixlUcxEngine|17nixlBackendEngine)(\d+)(\w+)", entries.get(2 + i, ""))
             for i in range(len(ours))]
    theirs = [m and m.group(2)[:int(m.group(1))] for m in names]
    assert theirs == ours, f"{theirs}\n{ours}"


# In a process of its own: package nixl may load the wheel for another CUDA than this process has loaded.
TORCH = """
import torch
from torch.distributed import _transport
a = _transport.new_transport("nixl", "cpu", plugin="TERN", capture_telemetry=True)
b = _transport.new_transport("nixl", "cpu", plugin="TERN")
to_a, to_b = a.bind(), b.bind()
a.connect(to_b)
b.connect(to_a)
for count in (1, 8, 100_000):
    source, target = torch.rand(count), torch.zeros(count)
    here = a.register_memory(source)
    there = b.register_memory(target).to_remote_buffer()
    there = type(there).deserialize(there.serialize())
    a.write(here.to_view(), there)
    assert torch.equal(source, target)
    target.add_(1)
    a.read(here.to_mutable_view(), there)
    assert torch.equal(source, target)
a.close()
b.close()
"""


def pytorch_transfers():
    if subprocess.run([sys.executable, "-c", "import nixl; from torch.distributed import _transport"],
                      capture_output=True).returncode:
        raise tap.Skip("this Python lacks nixl, or a PyTorch with torch.distributed._transport (2.15)")
    done = subprocess.run([sys.executable, "-c", TORCH], env=dict(os.environ, TERN_LOG="info"), text=True,
                          capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert "transfers with agent" in done.stderr, done.stderr


if __name__ == "__main__":
    tap.run([the_vtable_of_the_wheel_is_in_the_order_of_our_declarations, both_backends_transfer_in_one_agent,
             a_request_is_posted_100000_times, a_target_that_is_killed_is_gone_and_may_start_again,
             a_target_that_is_stopped_is_gone_after_the_timeout, pytorch_transfers])
