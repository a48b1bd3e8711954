# SPDX-License-Identifier: Apache-2.0
"""Tern as a tensor transport of Ray, between actors of one host: pytern.ray.

It needs a Python that has Ray and NumPy: this one, or that of build-bench/ray. PyTorch and JAX are used where that Python
has them.
"""
import dataclasses
import importlib.util
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests" / "harness"))
import kills  # noqa: E402
import tap  # noqa: E402

LIMIT_S = 120
RAY_LIMIT_S = 6  # Ray's own time limit of a transfer
BIG = 64 << 20
OBJECTS = 1000
MODULES = ("ray", "torch", "numpy")


def use_a_python_with_ray():
    if all(importlib.util.find_spec(module) for module in MODULES):
        return
    python = TOP / "build-bench/ray/bin/python"
    if os.path.abspath(python) != os.path.abspath(sys.executable) and os.access(python, os.X_OK):
        if subprocess.run([python, "-c", f"import {', '.join(MODULES)}"], capture_output=True).returncode == 0:
            os.execv(python, [python, *sys.argv])
    print("skipped: no Python has Ray and PyTorch: python3 -m venv --system-site-packages build-bench/ray, and then "
          "build-bench/ray/bin/pip install ray==2.60.0")
    sys.exit(77)


use_a_python_with_ray()
os.environ.update(RAY_rdt_fetch_fail_timeout_milliseconds=str(RAY_LIMIT_S * 1000), TERN_NET_IFNAME="=lo", TERN_LOG="info",
                  RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
import numpy  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
import pytern.ray  # noqa: E402
from pytern.transport import Context, PeerDown  # noqa: E402
from ray.experimental.rdt import rdt_store  # noqa: E402

KINDS = {"tern": torch.Tensor, "tern_numpy": numpy.ndarray}
if importlib.util.find_spec("jax"):
    import jax
    KINDS["tern_jax"] = jax.Array


for name, kind in KINDS.items():
    pytern.ray.register(name, kind)

# ---- the actors ----

class Process:
    """What both kinds of actors can tell."""

    def __init__(self, kinds, environment):
        os.environ.update(environment)
        for name, kind in kinds.items():  # Ray does it, but not in an actor that is started again
            pytern.ray.register(name, kind)

    def pid(self):
        return os.getpid()

    def windows(self):
        """How many objects are registered here, and how many requests and descriptors there are."""
        transport = pytern.ray.util.get_tensor_transport_manager("TERN")
        here = pytern.ray.endpoint()
        return len(transport._objects), here.context._native.posted(), len(os.listdir("/proc/self/fd"))

    def resident(self):
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def links(self):
        return len(pytern.ray.endpoint()._links)

    def fabrics(self):
        return sorted({link.peer.fabric for link in pytern.ray.endpoint()._links.values()})


@ray.remote(num_cpus=0, max_restarts=-1)
class Producer(Process):
    @ray.method(tensor_transport="tern")
    def make(self, size, value=0):
        return torch.full((size,), value, dtype=torch.uint8)

    @ray.method(tensor_transport="tern")
    def call(self, function):
        return function()



@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Consumer(Process):
    def take(self, value, check):
        return check(value)

    def get(self, refs, check, timeout=None):
        return check(ray.get(refs[0], timeout=timeout))

    def error_of(self, number):
        """Why the receive of an object has failed."""
        try:
            ray._private.worker.global_worker.rdt_manager.rdt_store.wait_and_pop_object(number, LIMIT_S)
        except ray.exceptions.RayDirectTransportError as error:
            return str(error)

    def get_until_it_fails(self, refs, size, value):
        """Gets an object again and again. Returns how often it came, and the error."""
        for count in range(1 << 30):
            try:
                got = ray.get(refs[0])
            except Exception as error:
                return count, f"{type(error).__name__}: {error}"
            assert len(got) == size and bool((got == value).all()), "other bytes"
            if count == 0:
                ray.get(refs[1].tell.remote())


@ray.remote(num_cpus=0)
class Bell:
    """Rings when the transfers have begun."""

    def __init__(self):
        self.count = 0

    def tell(self):
        self.count += 1

    def told(self):
        return self.count


FABRICS = ("auto", "tcp")


def start(kind, fabrics="auto", **environment):
    return kind.remote(KINDS, {"TERN_FABRICS": fabrics, **environment})


def answer(reference):
    return ray.get(reference, timeout=LIMIT_S)


def refused(reference):
    """What an actor's call fails with."""
    try:
        got = answer(reference)
    except Exception as error:
        return str(error)
    raise AssertionError(f"nothing was raised, but {got} came")


def lent(reference):
    """A reference for an actor that gets the object by itself. Ray passes on only references to objects that were made."""
    assert MANAGER.wait_for_tensor_transport_metadata(reference.hex(), LIMIT_S)
    return [reference]


def until(look, what):
    end = time.monotonic() + LIMIT_S
    while not look():
        assert time.monotonic() < end, what
        time.sleep(0.01)


# ---- the tests ----

def tensors():
    """All kinds of tensors, in a structure."""
    generator = torch.Generator().manual_seed(7)
    numbers = {f"{dtype}".removeprefix("torch."): (torch.rand(37, 5, generator=generator) * 100).to(dtype)
               for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64,
                             torch.bool, torch.complex64)}
    return {**numbers, "scalar": torch.tensor(3.5), "none": torch.empty(0, 4), "view": torch.arange(60).reshape(3, 20)[1],
            "gradient": torch.ones(3, requires_grad=True), "parameter": torch.nn.Parameter(torch.ones(5)),
            "text": "not a tensor", "large": torch.arange(5 << 20)}


def same(got):
    expected = tensors()
    assert list(got) == list(expected), list(got)
    for name, tensor in expected.items():
        if isinstance(tensor, str):
            assert got[name] == tensor
        else:
            assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape, name
            assert type(got[name]) is type(tensor) and torch.equal(got[name], tensor.detach()), name
    return "same"


def values_are_equal_whatever_way_they_come():
    for fabrics in FABRICS:
        producer, consumer = start(Producer, fabrics), start(Consumer, fabrics)
        made = producer.call.remote(tensors)
        assert answer(consumer.take.remote(made, same)) == "same"
        assert answer(consumer.get.remote(lent(made), same)) == "same"
        assert same(answer(made)) == "same"
        assert answer(consumer.fabrics.remote()) == ["shm" if fabrics == "auto" else "tcp"]
        several = [producer.make.remote(1000, value) for value in range(20)]
        assert [int(got.sum()) for got in answer(several)] == list(range(0, 20_000, 1000))
        # An object of the driver's.
        put = ray.put(tensors(), _tensor_transport="tern")
        assert answer(consumer.take.remote(put, same)) == "same"
        into = torch.zeros(1000, dtype=torch.uint8)
        ones = producer.make.remote(1000, 1)
        ray.experimental.set_target_for_ref(ones, [into])
        assert answer(ones).data_ptr() == into.data_ptr() and bool((into == 1).all())
        ray.kill(producer)
        ray.kill(consumer)


def arrays():
    return [numpy.arange(1 << 20, dtype="f4").reshape(1024, 1024), numpy.array(5), numpy.zeros((0, 3)), b"bytes",
            numpy.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")])]


def same_arrays(got):
    for one, other in zip(got, arrays(), strict=True):
        assert one == other if isinstance(other, bytes) else one.dtype == other.dtype and numpy.array_equal(one, other)
    return "same"


def arrays_of_numpy_are_moved():
    producer, consumer = start(Producer), start(Consumer)
    made = producer.call.options(tensor_transport="tern_numpy").remote(arrays)
    assert answer(consumer.take.remote(made, same_arrays)) == "same"
    assert same_arrays(answer(made)) == "same"
    assert answer(consumer.fabrics.remote()) == ["shm"]
    text = refused(producer.call.options(tensor_transport="tern_numpy").remote(lambda: numpy.array([print])))
    assert "tensor 0 of 1: it has Python objects, not numbers" in text, text
    ray.kill(producer)
    ray.kill(consumer)


def jax_arrays():
    import jax.numpy as jnp
    return {"f": jnp.arange(1 << 16, dtype="float32").reshape(256, 256), "b": jnp.ones((3, 5), dtype="bfloat16"),
            "n": jnp.zeros((0, 3)), "s": jnp.float32(2)}


def same_jax(got):
    import jax
    for name, array in jax_arrays().items():
        assert isinstance(got[name], jax.Array) and got[name].dtype == array.dtype and (got[name] == array).all(), name
    return "same"


def arrays_of_jax_are_moved():
    if "tern_jax" not in KINDS:
        raise tap.Skip("this Python has no JAX")
    producer, consumer = start(Producer), start(Consumer)
    made = producer.call.options(tensor_transport="tern_jax").remote(jax_arrays)
    assert answer(consumer.take.remote(made, same_jax)) == "same"
    assert answer(consumer.fabrics.remote()) == ["shm"]
    ray.kill(producer)
    ray.kill(consumer)


def memory_stays_until_the_object_is_freed():
    for fabrics in FABRICS:
        producer, consumer = start(Producer, fabrics), start(Consumer, fabrics)

        def rounds(count):
            for number in range(count):
                made = producer.make.remote(100_000, number % 251)
                assert answer(consumer.get.remote(lent(made), lambda got: int(got.sum()))) == number % 251 * 100_000
            kept = producer.make.remote(100_000, 7)
            del made
            until(lambda: answer(producer.windows.remote())[0] == 1, "objects are not freed")
            assert answer(consumer.get.remote(lent(kept), lambda got: int(got.sum()))) == 700_000  # it still is there
            del kept
            until(lambda: answer(producer.windows.remote())[:2] == (0, 0), "windows are not closed")
            until(lambda: answer(consumer.windows.remote())[1] == 0, "requests are kept")
            return [(answer(actor.windows.remote())[2], answer(actor.resident.remote())) for actor in (producer, consumer)]

        before = rounds(OBJECTS)  # until then the memory of Ray and of the allocator grows
        after = rounds(OBJECTS)
        for (descriptors, resident), (later, grown) in zip(before, after):
            # 1,000 objects have 100 MB.
            assert later <= descriptors + 5 and grown < resident + (30 << 20), (before, after)
        ray.kill(producer)
        ray.kill(consumer)


def transfers_until_the_end(producer, consumer, bell, end, after_s=0.1, value=0):
    """The consumer gets an object again and again. `after_s` after the first time end(pid) ends the process that has
    it, the producer's. Returns the object and the error."""
    pid, before = answer([producer.pid.remote(), bell.told.remote()])
    made = producer.make.remote(BIG, value)
    ending = consumer.get_until_it_fails.remote([*lent(made), bell], BIG, value)
    until(lambda: answer(bell.told.remote()) > before, "the transfers do not begin")
    time.sleep(after_s)
    end(pid)
    count, error = answer(ending)
    assert count > 0 and f"tern: object {made.hex()} of actor " in error and f"(pid {pid} on " in error, error
    return made, error


def sum_of(consumer, reference):
    return answer(consumer.get.remote(lent(reference), lambda got: int(got.sum())))


def new_pid(producer, pid):
    """Waits until Ray has started the actor again."""
    def look():
        try:
            return answer(producer.pid.remote()) != pid
        except ray.exceptions.RayActorError:
            return False
    until(look, "the actor does not come again")


def halves(values):
    return values[:len(values) // 2], values[len(values) // 2:]


def a_killed_sender_is_named_and_the_receiver_goes_on():
    for fabrics, moments in zip(FABRICS, halves(kills.moments(kills.COUNT, 0.2))):
        producer, other, consumer = start(Producer, fabrics), start(Producer, fabrics), start(Consumer, fabrics)
        bell = Bell.remote()
        for number, moment in enumerate(moments):
            pid = answer(producer.pid.remote())
            made, error = transfers_until_the_end(producer, consumer, bell, lambda pid: os.kill(pid, signal.SIGKILL),
                                                  moment, number % 251)
            assert " is down: " in error, error
            assert sum_of(consumer, other.make.remote(1000, 3)) == 3000
            # Ray starts the actor again. It has other objects.
            new_pid(producer, pid)
            assert sum_of(consumer, producer.make.remote(1000, 4)) == 4000
            if number == 0:
                error = refused(consumer.get.remote([made], len))
                assert f"(pid {pid} on " in error and "has ended or started again" in error, error
        # Nothing is left of the processes that were killed.
        until(lambda: answer(consumer.links.remote()) == 2, "links of dead processes are kept")
        for actor in producer, other, consumer, bell:
            ray.kill(actor)
    kills.tell(kills.COUNT)


def a_stopped_sender_is_named_at_the_deadline():
    for fabrics in FABRICS:
        producer, consumer, bell = start(Producer, fabrics), start(Consumer, fabrics), Bell.remote()
        pid = answer(producer.pid.remote())
        made, error = transfers_until_the_end(producer, consumer, bell, lambda pid: os.kill(pid, signal.SIGSTOP))
        assert f"not within {0.9 * RAY_LIMIT_S:.3g} s, and that process does not answer" in error, error
        os.kill(pid, signal.SIGCONT)
        assert answer(consumer.get.remote([made], len)) == BIG
        for actor in producer, consumer, bell:
            ray.kill(actor)


def system_call(actor, group, function, *arguments):
    """Calls a function of Ray's in an actor, on the thread on which Ray calls it."""
    return actor.__ray_call__.options(concurrency_group=group).remote(function, *arguments)


def aborted_transfers_end_and_all_actors_live():
    producer, consumer = start(Producer, "tcp"), start(Consumer, "tcp")
    pids = answer([producer.pid.remote(), consumer.pid.remote()])
    made = producer.make.remote(BIG, 5)
    assert sum_of(consumer, made) == 5 * BIG
    metadata = MANAGER.get_rdt_metadata(made.hex()).tensor_transport_meta
    for begun in True, False:
        transfer = pytern.ray.Transfer(secrets.token_hex(8))
        receive = rdt_store.__ray_recv__, made.hex(), metadata, transfer, "TERN"
        abort = rdt_store.__ray_abort_transport__, made.hex(), transfer, "TERN"
        os.kill(pids[0], signal.SIGSTOP)
        if begun:
            received = system_call(consumer, "_ray_system", *receive)
            until(lambda: answer(consumer.windows.remote())[1] > 0, "the transfer does not begin")
        answer(system_call(consumer, "_ray_system_error", *abort))
        if not begun:
            received = system_call(consumer, "_ray_system", *receive)
        answer(received)
        error = answer(consumer.error_of.remote(made.hex()))
        assert f"tern: object {made.hex()} of actor " in error and error.endswith("Ray has aborted the transfer"), error
        os.kill(pids[0], signal.SIGCONT)
        # Another transfer of the object is not aborted, and the actors are those that they were.
        assert sum_of(consumer, made) == 5 * BIG
        assert answer([producer.pid.remote(), consumer.pid.remote()]) == pids
    ray.kill(producer)
    ray.kill(consumer)


def who_does_not_know_the_secret_is_refused():
    producer = start(Producer)
    made = producer.make.remote(1000, 6)
    lent(made)
    metadata = MANAGER.get_rdt_metadata(made.hex()).tensor_transport_meta
    assert metadata.source.secret not in repr(metadata)
    transport = pytern.ray.TernTransport()

    def fetched(changed):
        return transport.recv_multiple_tensors(made.hex(), changed, transport.get_communicator_metadata(None, None))

    def failure(changed):
        try:
            fetched(changed)
        except ray.exceptions.RayDirectTransportError as error:
            return str(error)
        raise AssertionError("it was let in")

    other = dataclasses.replace(metadata.source, secret="0" * 32)
    error = failure(dataclasses.replace(metadata, source=other))
    assert "refused: another secret, or no permission" in error and " of actor " in error, error
    window = bytearray(metadata.windows[0])
    window[16] ^= 1  # the capability
    error = failure(dataclasses.replace(metadata, windows=[bytes(window)]))
    assert "has made no window with this descriptor" in error, error
    with Context(timeout=LIMIT_S) as context:
        try:
            context.connect(metadata.source.address).wait_up()
            raise AssertionError("it was let in")
        except PeerDown as error:
            assert "refused: another secret" in str(error), error
    assert int(fetched(metadata)[0].sum()) == 6000
    ray.kill(producer)


def the_secret_file_is_asked_for_too():
    with tempfile.NamedTemporaryFile() as file:
        file.write(secrets.token_hex(16).encode())
        file.flush()
        producer = start(Producer, TERN_SECRET_FILE=file.name)
        knows, not_ = start(Consumer, TERN_SECRET_FILE=file.name), start(Consumer)
        made = producer.make.remote(1000, 9)
        assert sum_of(knows, made) == 9000
        error = refused(not_.get.remote(lent(made), len))
        assert "refused: another secret" in error and "or has another TERN_SECRET_FILE" in error, error
        error = refused(start(Producer, TERN_SECRET_FILE="/dev/null").make.remote(10))
        assert "TERN_SECRET_FILE" in error, error


def what_cannot_be_sent_is_refused():
    producer = start(Producer)
    for make, sentence in (
            (lambda: [torch.zeros(2), torch.zeros(3, 4).T], "tensor 1 of 2: it is not contiguous: return tensor.contiguous()"),
            (lambda: torch.zeros(3, dtype=torch.complex64).conj(), "tensor 0 of 1: it is a lazy conjugate"),
            (lambda: torch.zeros(3, device="meta"), "tensor 0 of 1: it is on the device meta")):
        error = refused(producer.call.remote(make))
        assert f"tern: {sentence}" in error, error
    assert answer(producer.windows.remote())[0] == 0
    pytern.ray.register()  # again
    for arguments, kind, sentence in (((), bytes, "got builtins.bytes"), (("tern", numpy.ndarray), None, "Ray has another"),
                                      (("nixl",), None, "Ray has another transport 'nixl'")):
        try:
            pytern.ray.register(*arguments, **({"data_type": kind} if kind else {}))
            raise AssertionError(sentence)
        except (TypeError, ValueError) as error:
            assert sentence in str(error), error
    ray.kill(producer)


def nothing_is_written_into_a_tensor_after_its_fetch_has_failed():
    producer = start(Producer, "tcp")
    made, pid = producer.make.remote(BIG, 5), answer(producer.pid.remote())
    lent(made)
    for number in range(5):
        target = torch.zeros(BIG, dtype=torch.uint8)
        ray.experimental.set_target_for_ref(made, [target])
        assert answer(made) is target
        # Most moments are in the middle of a transfer.
        stop = threading.Timer(0.3 * random.Random(kills.SEED + number).random(), os.kill, (pid, signal.SIGSTOP))
        stop.start()
        try:
            while True:
                ray.get(made, timeout=1)
        except ray.exceptions.GetTimeoutError as error:
            cause = str(error.__context__)
            assert f"(pid {pid} on " in cause and "not within the time that ray.get() was given" in cause, cause
        target.fill_(9)
        stop.join()
        os.kill(pid, signal.SIGCONT)
        other = torch.zeros(BIG, dtype=torch.uint8)
        ray.experimental.set_target_for_ref(made, [other])
        assert answer(made) is other and bool((other == 5).all()) and bool((target == 9).all())
    ray.kill(producer)


def the_example_runs_over_tern():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run([sys.executable, TOP / "docs/examples/ray_weights.py"], env=environment, capture_output=True, text=True,
                          timeout=LIMIT_S)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "step 2: the means are [3.0, 3.0]" in said, said
    assert re.search(r"tern: actor \w+ \(pid \d+ on .*\) gets from actor \w+ \(pid \d+ on .*\), by shm", said), said


if __name__ == "__main__":
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20)
    MANAGER = ray._private.worker.global_worker.rdt_manager
    tap.run([values_are_equal_whatever_way_they_come, arrays_of_numpy_are_moved, arrays_of_jax_are_moved,
             what_cannot_be_sent_is_refused, who_does_not_know_the_secret_is_refused, the_secret_file_is_asked_for_too,
             aborted_transfers_end_and_all_actors_live, memory_stays_until_the_object_is_freed,
             a_killed_sender_is_named_and_the_receiver_goes_on, a_stopped_sender_is_named_at_the_deadline,
             nothing_is_written_into_a_tensor_after_its_fetch_has_failed, the_example_runs_over_tern])
