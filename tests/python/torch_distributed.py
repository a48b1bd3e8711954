# SPDX-License-Identifier: Apache-2.0
"""PyTorch's torch.distributed over Tern: pytern.torch.distributed. Every rank is a process.

usage: torch_distributed.py
"""
import contextlib
import datetime
import gc
import itertools
import multiprocessing
import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import weakref
from unittest import mock

import with_torch  # noqa: F401  (first: it may start this script again, with another Python)
import pytern.torch.distributed as of_tern
import torch
import torch.distributed as dist
from jobs import tap
import kills  # after jobs, which says where it is
from pytern.torch import addresses
from pytern.torch.lanes import Lane
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

with contextlib.suppress(ImportError):  # each rank would import it, for DistributedDataParallel
    import torch._dynamo  # noqa: F401

LIMIT_S = 60
fork = multiprocessing.get_context("fork")


# ---- ranks ----

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def be_rank(answers, act, backend, rank, size, limit_s):
    try:
        torch.set_num_threads(1)
        dist.init_process_group(backend, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=limit_s))
        answers.put((rank, act(rank, size)))
    except BaseException:
        answers.put((rank, traceback.format_exc()))
    finally:
        answers.close()
        answers.join_thread()
        os._exit(0)


class Ranks:
    """Processes that each call act(rank, size). `answers`: (rank, what it has returned, or a traceback)."""

    def __init__(self, act, size, backend="tern", fabrics="auto", limit_s=LIMIT_S):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), GLOO_SOCKET_IFNAME="lo",
                          TERN_FABRICS=fabrics)
        self.answers = fork.Queue()
        self.running = [self.start(act, backend, rank, size, limit_s) for rank in range(size)]

    def start(self, *arguments):
        process = fork.Process(target=be_rank, args=(self.answers, *arguments))
        process.start()
        return process

    def restart(self, rank, act, port):
        """Starts another process for a rank whose process has ended, in a group with another store."""
        os.environ["MASTER_PORT"] = str(port)
        self.running[rank] = self.start(act, "tern", rank, len(self.running), LIMIT_S)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.running:
            process.kill()
            process.join()

    def next(self):
        return self.answers.get(timeout=LIMIT_S)


def run(act, size, **options):
    """What all ranks return, by rank."""
    with Ranks(act, size, **options) as ranks:
        answers = dict(ranks.next() for _ in range(size))
    for rank, answer in answers.items():
        assert not isinstance(answer, str), f"rank {rank}: {answer}"
    return [answers[rank] for rank in range(size)]


def given(rank, dtype, shape=(7, 5)):
    """Small whole numbers, whose sums and products are exact in every order."""
    torch.manual_seed(rank)
    return torch.randint(1, 4, shape).to(dtype)


# ---- the tests ----

OPS = ("SUM", "PRODUCT", "MIN", "MAX")


def of_gloo(rank, size):
    """What gloo has, too."""
    found = []
    for dtype in (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8):
        for op in OPS:
            tensor = given(rank, dtype)
            dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op))
            found.append(tensor)
            tensor = given(rank, dtype, (5000,))
            dist.reduce(tensor, size - 1, op=getattr(dist.ReduceOp, op))
            found.append(tensor if rank == size - 1 else None)
    for root in range(size):
        tensor = given(rank, torch.float32, (3000,))
        dist.broadcast(tensor, root)
        parts = [torch.empty(4, 3) for _ in range(size)] if rank == root else None
        dist.gather(given(rank, torch.float32, (4, 3)), parts, root)
        mine = torch.empty(4, 3)
        dist.scatter(mine, [given(10 * r, torch.float32, (4, 3)) for r in range(size)] if rank == root else None, root)
        found += [tensor, *(parts or []), mine]
    outs = [torch.empty(6) for _ in range(size)]
    dist.all_gather(outs, given(rank, torch.float32, (6,)))
    found += outs
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * 100 * rank})
    listed = [rank, "root's"] if rank == 1 else [None, None]
    dist.broadcast_object_list(listed, 1)
    assert objects[1] == {"rank": 1, "text": "x" * 100} and listed == [1, "root's"], (objects, listed)
    dist.barrier()
    return [None if tensor is None else tensor.contiguous().tolist() for tensor in found]


def everything_that_gloo_has_too_gives_what_gloo_gives():
    for size, fabrics in ((2, "auto"), (3, "tcp")):
        expected = run(of_gloo, size, backend="gloo")
        for rank, (ours, theirs) in enumerate(zip(run(of_gloo, size, fabrics=fabrics), expected)):
            differ = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b]
            assert not differ, (rank, differ, ours[differ[0]], theirs[differ[0]])


def beyond_gloo(rank, size):
    everyone = range(size)
    tensor = torch.tensor([rank + 1.0, 3.0])
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    assert tensor.tolist() == [(size + 1) / 2, 3.0]
    tensor = torch.full((1000,), rank + 1.0, dtype=torch.bfloat16)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [sum(r + 1.0 for r in everyone)] * 1000
    truth = torch.tensor([False, True, rank == 1])
    dist.all_reduce(truth)
    assert truth.tolist() == [False, True, True]
    dist.all_reduce(truth, op=dist.ReduceOp.MIN)
    assert truth.tolist() == [False, True, True]
    dist.all_reduce(torch.empty(0))
    apart = torch.zeros(6, 8)[:, ::2] + rank
    whole = torch.zeros(6, 8)
    whole[:, ::2] = apart
    dist.all_reduce(whole[:, ::2])
    assert (whole[:, ::2] == sum(everyone)).all() and (whole[:, 1::2] == 0).all()
    out = torch.empty(3)
    dist.reduce_scatter(out, [torch.full((3,), float(r + rank)) for r in everyone])
    assert out.tolist() == [sum(rank + r for r in everyone)] * 3
    dist.reduce_scatter(out := torch.empty(3) * 1j, [torch.full((3,), r + 1j * rank) for r in everyone])
    assert out.tolist() == [size * rank + 1j * sum(everyone)] * 3
    outs = [torch.empty(2, 2) for _ in everyone]
    dist.all_to_all(outs, [torch.full((2, 2), 10.0 * rank + r) for r in everyone])
    assert [o[0, 0].item() for o in outs] == [10.0 * r + rank for r in everyone]
    whole = torch.empty(size, dtype=torch.int64)
    dist.all_to_all_single(whole, torch.tensor([10 * rank + r for r in everyone]))
    assert whole.tolist() == [10 * r + rank for r in everyone]
    for dtype in torch.float32, torch.complex64:  # rank r has 2 * r + s rows for rank s
        parts = [torch.full((2 * rank + s, 3), 10 * rank + s, dtype=dtype) for s in everyone]
        expected = [torch.full((2 * r + rank, 3), 10 * r + rank, dtype=dtype) for r in everyone]
        outs = [torch.empty_like(part) for part in expected]
        dist.all_to_all(outs, parts)
        assert all(torch.equal(out, part) for out, part in zip(outs, expected))
        whole = torch.empty_like(torch.cat(expected))
        dist.all_to_all_single(whole, torch.cat(parts), [len(part) for part in expected], [len(part) for part in parts])
        assert torch.equal(whole, torch.cat(expected))
    works = [dist.all_reduce(torch.ones(1 << 18), async_op=True) for _ in range(30)]
    for work in works:
        work.wait()
        if not of_tern.IS_BACKEND:  # a backend is not asked
            assert (work.result()[0] == size).all()
            assert work.is_completed()  # also on a GPU: it has copied what the line above has read
        assert (work.get_future().wait()[0] == size).all()
    for number in range(2000):
        dist.all_reduce(torch.ones(1), async_op=True)
        if number % 100 == 0:
            dist.barrier()
    assert len(dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))._works) < 1000
    future = dist.all_reduce(torch.ones(5), async_op=True).get_future()
    assert future.wait()[0].tolist() == [float(size)] * 5
    # In a ring, with two tags that are received in the other order.
    after, before = (rank + 1) % size, (rank - 1) % size
    sends = [dist.isend(torch.tensor([100.0 * tag + rank]), after, tag=tag) for tag in (1, 2)]
    for tag in (2, 1):
        dist.recv(tensor := torch.empty(1), before, tag=tag)
        assert tensor.item() == 100.0 * tag + before
    for send in sends:
        send.wait()
    pair = dist.new_group([0, 2])
    if rank != 1:
        dist.all_reduce(tensor := torch.tensor([float(rank)]), group=pair)
        assert tensor.item() == 2.0
    dist.barrier()
    return True


def what_gloo_does_not_have_is_right():
    for fabrics in ("auto", "tcp"):
        run(beyond_gloo, 3, fabrics=fabrics)


def trained(rank, size):
    torch.manual_seed(5)
    module = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Tanh(), torch.nn.Linear(300, 3))
    parallel = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + rank)
    for _ in range(8):
        optimizer.zero_grad()
        parallel(torch.randn(16, 20)).square().sum().backward()
        optimizer.step()
    return [p.detach().cpu().numpy().tobytes() for p in module.parameters()]


def ddp_gives_the_bytes_that_gloo_gives():
    expected = run(trained, 2, backend="gloo")
    assert expected[0] == expected[1]
    for fabrics in ("auto", "tcp"):
        assert run(trained, 2, fabrics=fabrics) == expected, fabrics


class LateEvent:
    def __init__(self, reached):
        self._reached = reached

    def synchronize(self):
        self._reached.wait()

    def query(self):
        return self._reached.is_set()


class LateLane:
    """In the place of a GPU's stream: a thread copies later than it was told to."""

    def __init__(self):
        self._told = queue.SimpleQueue()
        self._followed = set()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while True:
            act = self._told.get()
            time.sleep(random.choice((0, 0, 0.002)))
            act()
            del act  # and its tensors

    def memory(self, shape, dtype):
        return torch.full((shape,) if isinstance(shape, int) else shape, 113, dtype=dtype)

    def follow(self, tensor):
        self._followed.add(id(tensor))

    def get(self, tensor, host):
        assert id(tensor) in self._followed
        self._told.put(lambda: host.copy_(tensor.detach()))

    def put(self, tensor, host):
        assert id(tensor) in self._followed, "the copy is not behind what the current stream does with the tensor"
        self._told.put(lambda: tensor.detach().copy_(host))

    def mark(self):
        reached = threading.Event()
        self._told.put(reached.set)
        return LateEvent(reached)

    def wait_for(self, event):
        if threading.current_thread().name != "tern-futures":  # whose current stream nobody else uses
            event.synchronize()


def with_late_copies(act):
    """The same, for tensors of the CPU that are taken for those of a GPU, except for each fifth."""
    def acts(rank, size):
        asked = itertools.count()
        of_tern.Ranks._lane = lambda self, tensor: lane_of(self, tensor, next(asked))
        return act(rank, size)

    def lane_of(group, tensor, number):
        if id(tensor) not in chosen:
            chosen[id(tensor)] = tensor, number % 5 != 4
        if "late" not in group._lanes:
            group._lanes["late"] = LateLane()  # a thread
        return group._lanes["late"] if chosen[id(tensor)][1] else None

    chosen = {}
    return acts


def copies_of_a_gpu_may_be_late():
    expected = run(of_gloo, 2, backend="gloo")
    assert run(with_late_copies(of_gloo), 2) == expected
    run(with_late_copies(beyond_gloo), 3)
    run(with_late_copies(of_batches), 2)
    run(with_late_copies(of_completion), 2)
    assert run(with_late_copies(trained), 2) == run(trained, 2, backend="gloo")


class HeldLane(LateLane):
    """A GPU that computes until `reached` is set."""

    def __init__(self):
        self.reached = threading.Event()
        super().__init__()

    def _run(self):
        self.reached.wait()
        super()._run()


def with_a_held_lane(act):
    """The same, with tensors of float32 for those of a GPU, and the lane as a third argument."""
    def acts(rank, size):
        lane = HeldLane()
        of_tern.Ranks._lane = lambda self, tensor: lane if tensor.dtype == torch.float32 else None
        return act(rank, size, lane)
    return acts


def own_group():
    """The object of pytern."""
    group = dist.distributed_c10d._get_default_group()
    return group._get_backend(torch.device("cpu")) if of_tern.IS_BACKEND else group


def waits_for_a_gpu(rank, size, lane):
    seconds = datetime.timedelta(seconds=0.05)
    work = own_group().allreduce([tensor := torch.ones(3)])
    assert "it waits for the GPU" in error_of(lambda: work.wait(seconds))
    lane.reached.set()
    work.wait()
    assert tensor.tolist() == [float(size)] * 3
    return True


def a_work_that_waits_for_a_gpu_can_be_waited_for_again():
    run(with_a_held_lane(waits_for_a_gpu), 2)


def ends_behind_a_gpu(rank, size, lane):
    group = own_group()
    dist.barrier()  # rank 0 has the store, which the others may still ask
    works = [group.allreduce([torch.ones(3, dtype=dtype)]) for dtype in (torch.float32, torch.float64)]
    of_tern.GOODBYE_S = 0.05
    (group.abort if rank == 0 else group.shutdown)()
    said = [error_of(work.wait) for work in works]
    said += [error_of(lambda dtype=dtype: group.allreduce([torch.ones(3, dtype=dtype)]).wait())
             for dtype in (torch.float32, torch.float64)]
    return said


def a_group_that_ends_does_not_wait_for_a_gpu():
    for said in run(with_a_held_lane(ends_behind_a_gpu), 2):
        assert all("the group was closed" in text for text in said), said


def frees_staging(rank, size):
    staging = []
    memory = LateLane.memory
    LateLane.memory = lambda *arguments: staging.append(memory(*arguments)) or staging[-1]
    lane = LateLane()
    of_tern.Ranks._lane = lambda self, tensor: lane
    dist.all_reduce(tensor := torch.ones(1000), async_op=True).wait()
    work = own_group().allreduce([torch.ones(1000)])
    work.wait()
    wait_until_completed(work)
    known = [weakref.ref(one) for one in staging]
    staging.clear()
    due = time.monotonic() + LIMIT_S / 2
    while any(one() is not None for one in known):
        dist.barrier()  # lets go of operations that have ended
        gc.collect()
        assert time.monotonic() < due, "the work keeps the memory that its values have crossed"
    return True


def a_work_that_has_ended_keeps_no_staging_memory():
    run(frees_staging, 2)


def a_graph_that_is_captured_is_told_that_it_cannot_have_operations():
    lane = Lane.__new__(Lane)
    lane._device = torch.device("cuda:0")
    with mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: True), \
            mock.patch.object(torch.cuda, "device", contextlib.nullcontext):
        said = error_of(lambda: lane.follow(torch.ones(3)))
    assert "cannot be part of a CUDA graph" in said, said


def threads_that_call_first_use_one_stream():
    class Slow:
        def __init__(self, device):
            time.sleep(0.01)

    class Tensor:
        device = torch.device("cuda:0")

    class Group:
        _lanes = {}

    found = []
    with mock.patch.object(of_tern, "Lane", Slow):
        threads = [threading.Thread(target=lambda: found.append(of_tern.Ranks._lane(Group, Tensor))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(found)) == 1 and len(found) == 4, found


def of_futures(rank, size):
    """Rank 1 sends with tag 1 only when rank 0 has what has tag 2."""
    if rank == 1:
        for way in range(2):
            dist.send(torch.ones(1), 0, tag=2)
            dist.recv(torch.empty(1), 0)
            dist.send(torch.ones(1), 0, tag=1)
        return True
    for way in range(2):
        first, second = (dist.irecv(torch.empty(1), 1, tag=tag) for tag in (1, 2))
        futures = first.get_future(), second.get_future()
        assert "not within" in error_of(lambda: first.wait(datetime.timedelta(seconds=0.05)))
        if way == 0:
            wait_until_completed(second)
        assert futures[1].wait()[0].item() == 1 and not futures[0].done()
        dist.send(torch.ones(1), 1)
        assert futures[0].wait()[0].item() == 1
    return True


def a_receive_that_has_ended_does_not_wait_for_an_earlier_one():
    run(of_futures, 2)


def of_callbacks(rank, size):
    def again(future):
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    assert dist.all_reduce(torch.ones(3), async_op=True).get_future().then(again).wait().tolist() == [float(size * size)] * 3
    module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(200, 300))
    module.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    for _ in range(4):
        module(torch.ones(4, 200)).sum().backward()
    return module.module.weight.grad.tolist()


def a_callback_of_a_future_may_wait_for_another_one():
    found = run(of_callbacks, 2)
    assert found[0] == found[1]


def of_modes(rank, size):
    """Results are copied to tensors that autograd lets nobody write to, also by the thread that answers futures."""
    with torch.inference_mode():
        outs = [torch.empty(3) for _ in range(size)]
    for wait in (lambda work: work.wait(), lambda work: work.get_future().wait()):
        for out in outs:
            with torch.inference_mode():
                out.fill_(-1.0)
        wait(dist.all_gather(outs, torch.full((3,), float(rank)), async_op=True))
        assert [out.tolist() for out in outs] == [[float(r)] * 3 for r in range(size)]
        parameter = torch.nn.Parameter(torch.full((4, 6), float(rank)).t())
        wait(dist.broadcast(parameter, 1, async_op=True))
        assert (parameter == 1).all()
    return True


def results_come_to_tensors_of_inference_mode_and_to_parameters():
    run(of_modes, 2)


def of_late_futures(rank, size):
    group = own_group()
    group.allreduce([torch.ones(3)]).get_future().wait()
    work = group.allreduce([torch.ones(3)])
    while not all(operation.done() for operation in work._operations):
        time.sleep(0.001)
    group.shutdown()
    assert work.get_future().wait()[0].tolist() == [float(size)] * 3
    return True


def a_future_is_answered_after_the_end_of_its_group():
    run(of_late_futures, 2)


def at_once(rank, size):
    """Leaves while other ranks may still wait for what this one has done."""
    for count in (1, 1000, 300_000):
        group = dist.new_group()
        dist.broadcast(tensor := torch.full((count,), float(rank)), 0, group=group)
        group.shutdown()
        assert (tensor == 0).all()
    return True


def ranks_may_leave_as_soon_as_they_have_their_results():
    for fabrics in ("auto", "tcp"):
        for _ in range(3):
            run(at_once, 3, fabrics=fabrics)


def of_batches(rank, size):
    other = 1 - rank
    got = torch.empty(3)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((3,), float(rank)), other),
                                        dist.P2POp(dist.irecv, got, other)]):
        work.wait()
    assert got.tolist() == [float(other)] * 3
    tensors = [torch.ones(3), torch.ones(4)]
    if hasattr(dist.ProcessGroup, "all_gather_single_coalesced"):  # PyTorch 2.15
        coalescing = dist.distributed_c10d._coalescing_manager
        with coalescing():
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert [t.tolist() for t in tensors] == [[2.0] * 3, [2.0] * 4]
        outs = [torch.empty(6), torch.empty(8)]
        with coalescing():
            for out, tensor in zip(outs, tensors):
                dist.all_gather_into_tensor(out, tensor * (rank + 1))
        assert [o.tolist() for o in outs] == [[2.0] * n + [4.0] * n for n in (3, 4)]
        with coalescing():
            for tensor, out in zip(tensors, outs):
                dist.reduce_scatter_tensor(tensor, out)
        assert [t.tolist() for t in tensors] == [[4.0 * (rank + 1)] * n for n in (3, 4)]
    dist.broadcast(tensor := torch.full((3,), 1j * rank), 1)
    assert tensor.tolist() == [1j] * 3
    return True


def batches_are_moved():
    run(of_batches, 2)


def waits_in_vain(rank, size):
    if rank == 1:
        time.sleep(LIMIT_S)
    try:
        dist.recv(torch.empty(3), 1)
    except RuntimeError as error:
        return {"error": str(error)}


def a_receive_ends_after_the_time_limit():
    with Ranks(waits_in_vain, 2, limit_s=2) as ranks:
        rank, answer = ranks.next()
        assert isinstance(answer, dict) and re.search("recv from rank 1 \\(.*\\) has not ended in 2 s", answer["error"]), answer


def trains_until_it_fails(rank, size):
    module = torch.nn.Sequential(torch.nn.Linear(200, 2000), torch.nn.Linear(2000, 3))
    parallel = torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=0.1)
    try:
        for step in range(100_000):
            if rank == 1 and step == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            parallel(torch.ones(8, 200)).sum().backward()
    except RuntimeError as error:
        return {"error": str(error)}


def a_rank_that_dies_in_ddp_is_named():
    for fabrics in ("auto", "tcp"):
        with Ranks(trains_until_it_fails, 3, fabrics=fabrics) as ranks:
            for _ in range(2):
                rank, answer = ranks.next()
                assert isinstance(answer, dict) and "rank 1 (" in answer["error"], (rank, answer)


def refusals(rank, size):
    found = []
    for call in (lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), op=dist.ReduceOp.BOR),
                 lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3), [1, 2], [1, 1]),
                 lambda: dist.reduce_scatter(torch.empty(1) * 1j, [torch.ones(1) * 1j] * size, op=dist.ReduceOp.PRODUCT),
                 lambda: dist.all_gather([torch.empty(2)] * size, torch.empty(3))):
        try:
            call()
            found.append("nothing")
        except Exception as error:
            found.append(str(error).splitlines()[0])
    dist.barrier()
    return found


def of_completion(rank, size):
    tensor = torch.ones(1000)
    work = dist.all_reduce(tensor, async_op=True)
    wait_until_completed(work)
    assert tensor.tolist() == [float(size)] * 1000 and all(torch.equal(tensor, found) for found in work.result())
    work.wait()
    wait_until_completed(dist.barrier(async_op=True))
    work = dist.all_reduce(torch.ones(3 + rank), async_op=True)  # ranks differ
    wait_until_completed(work)
    try:
        work.wait()
    except RuntimeError as error:
        return {"error": str(error)}


def wait_until_completed(work):
    due = time.monotonic() + LIMIT_S / 2
    while not work.is_completed():
        assert time.monotonic() < due
        time.sleep(0.001)


def a_work_says_when_it_is_completed():
    for said in run(of_completion, 2):
        assert "tern: all_reduce: operation 2 differs" in said["error"], said


def of_float8(rank, size):
    values = [1.0, 2.0, 448.0]
    dist.broadcast(tensor := torch.tensor(values if rank == 1 else [0.0] * 3).to(torch.float8_e4m3fn), 1)
    assert tensor.float().tolist() == values
    outs = [torch.empty(3, dtype=tensor.dtype) for _ in range(size)]
    dist.all_gather(outs, tensor)
    assert all(torch.equal(out.view(torch.uint8), tensor.view(torch.uint8)) for out in outs)
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        return {"error": str(error)}


def float8_is_moved_and_not_added():
    if not hasattr(torch, "float8_e4m3fn"):
        raise tap.Skip(f"PyTorch {torch.__version__} has no float8")
    for said in run(of_float8, 2):
        assert re.fullmatch("tern: all_reduce: SUM of torch.float8_e4m3fn is not there: convert the tensor, .*", said["error"]), said


def a_name_of_the_loopback_gives_an_address_that_others_reach():
    """Debian's installer lets the host's name resolve to 127.0.1.1."""
    def address(**variables):
        old = {name: os.environ.pop(name, None) for name in ("MASTER_ADDR", "TERN_NET_IFNAME", "NCCL_SOCKET_IFNAME")}
        os.environ.update(variables)
        try:
            return addresses.own_address()
        finally:
            for name, value in old.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

    assert address(MASTER_ADDR="127.0.0.1").startswith("127.") and address(MASTER_ADDR="localhost").startswith("127.")
    outside = addresses._outside()
    if outside is None:
        raise tap.Skip("this host has no address but that of the loopback")
    assert not outside.startswith("127.")
    reaches, addresses._source_to = addresses._source_to, lambda host: "127.0.0.1" if host == "master" else reaches(host)
    try:
        assert address(MASTER_ADDR="master") == outside
        assert address(MASTER_ADDR="master", TERN_NET_IFNAME="lo") == "127.0.0.1"
        assert address(MASTER_ADDR=outside) == outside
    finally:
        addresses._source_to = reaches


def what_is_not_there_is_refused_in_a_line():
    for said in run(refusals, 2):
        for text, expected in zip(said, ("all_reduce: .*BOR of torch.int32 is not there", "expected 2 parts of 3 rows together, got \\[1, 1\\]",
                                         "reduce_scatter: PRODUCT of torch.complex64 is not there",
                                         "expected 3 tensors of one size")):
            assert re.search(expected, text), (text, expected)


ready = fork.Value("i", 0)


def until_it_fails(rank, size):
    tensor = torch.ones(50_000)
    dist.all_reduce(tensor)
    with ready:
        ready.value += 1
    try:
        while True:
            tensor.fill_(1.0)
            dist.all_reduce(tensor)
            assert (tensor == size).all()
    except RuntimeError as error:
        return {"error": str(error)}


def started(fabrics, act=until_it_fails, **options):
    """Three ranks that are in the middle of their operations."""
    ready.value = 0
    ranks = Ranks(act, 3, fabrics=fabrics, **options)
    deadline = time.monotonic() + LIMIT_S
    while ready.value < 3:
        assert time.monotonic() < deadline, "the ranks do not begin"
        time.sleep(0.01)
    return ranks


def a_killed_rank_is_named_by_all():
    for number, moment in enumerate(kills.moments(kills.COUNT, 0.1)):
        with started(("auto", "tcp")[number % 2]) as ranks:
            victim = number % 3
            time.sleep(moment)
            os.kill(ranks.running[victim].pid, signal.SIGKILL)
            for _ in range(2):
                rank, answer = ranks.next()
                assert isinstance(answer, dict), answer
                told = f"rank {victim} \\(.*pid {ranks.running[victim].pid}"
                assert re.search(told, answer["error"]), (number, rank, victim, answer)
    kills.tell(kills.COUNT)


second_port = fork.Value("i", 0)


def error_of(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return "no error"


def in_the_second_group(rank, size, between=lambda: None):
    for number in range(20):
        dist.all_reduce(tensor := torch.full((50_000,), rank + 1.0))
        assert (tensor == size * (size + 1) / 2).all()
        if number == 10:
            between()


def in_two_groups(rank, size):
    """Works in a group until a rank dies, and then in a new one, with the process that has taken that rank's place."""
    found = until_it_fails(rank, size)
    old = dist.distributed_c10d._get_default_group()
    found["still"] = error_of(lambda: dist.all_reduce(torch.ones(1)))
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(second_port.value)
    dist.init_process_group("tern", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=LIMIT_S))

    def ask_the_old_one():
        found["after"] = error_of(lambda: old.allreduce([torch.ones(1)]).wait())

    in_the_second_group(rank, size, ask_the_old_one)
    return found


def a_rank_that_was_started_again_is_in_a_new_group_and_the_old_one_stays_failed():
    for number, fabrics in enumerate(("auto", "tcp", "auto", "tcp")):
        victim = number % 3
        with started(fabrics, act=in_two_groups) as ranks:
            second_port.value = free_port()
            former = ranks.running[victim].pid
            ranks.running[victim].kill()
            ranks.running[victim].join()
            ranks.restart(victim, in_the_second_group, second_port.value)
            answers = dict(ranks.next() for _ in range(3))
        assert answers.pop(victim) is None, answers
        for rank, answer in answers.items():
            assert isinstance(answer, dict), (rank, answer)
            assert f"rank {victim} (" in answer["error"] and f"pid {former} " in answer["error"], (rank, answer)
            assert answer["still"] == answer["error"] and answer["after"] != "no error", (rank, answer)


def a_stopped_rank_is_named_by_all():
    for fabrics in ("auto", "tcp"):
        with started(fabrics, limit_s=3) as ranks:
            os.kill(ranks.running[1].pid, signal.SIGSTOP)
            for _ in range(2):
                rank, answer = ranks.next()
                assert isinstance(answer, dict), answer
                assert "rank 1 (" in answer["error"] and "does not answer" in answer["error"], (rank, answer)


def the_log_tells_the_fabric():
    program = ("import sys, torch, torch.distributed as dist, pytern.torch.distributed; dist.init_process_group('tern', "
               "rank=int(sys.argv[1]), world_size=2); dist.barrier()")
    environment = {**os.environ, "TERN_LOG": "info", "TERN_FABRICS": "tcp", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(free_port())}
    running = [subprocess.Popen([sys.executable, "-c", program, str(rank)], text=True, stderr=subprocess.PIPE,
                                env=environment) for rank in range(2)]
    for rank, process in enumerate(running):
        said = process.communicate(timeout=LIMIT_S)[1]
        assert process.returncode == 0, said
        assert re.search(f"^tern: rank {rank} reaches rank {1 - rank}, .*pid {running[1 - rank].pid} .*, by tcp$", said, re.M), said


if __name__ == "__main__":
    print(f"# PyTorch {torch.__version__}")
    tap.run([everything_that_gloo_has_too_gives_what_gloo_gives, what_gloo_does_not_have_is_right,
             ddp_gives_the_bytes_that_gloo_gives, copies_of_a_gpu_may_be_late,
             a_work_that_waits_for_a_gpu_can_be_waited_for_again, a_group_that_ends_does_not_wait_for_a_gpu,
             a_work_that_has_ended_keeps_no_staging_memory, a_graph_that_is_captured_is_told_that_it_cannot_have_operations,
             threads_that_call_first_use_one_stream, a_receive_that_has_ended_does_not_wait_for_an_earlier_one,
             a_callback_of_a_future_may_wait_for_another_one, results_come_to_tensors_of_inference_mode_and_to_parameters,
             a_future_is_answered_after_the_end_of_its_group, ranks_may_leave_as_soon_as_they_have_their_results, batches_are_moved,
             a_receive_ends_after_the_time_limit, a_rank_that_dies_in_ddp_is_named, what_is_not_there_is_refused_in_a_line,
             a_work_says_when_it_is_completed, float8_is_moved_and_not_added, a_name_of_the_loopback_gives_an_address_that_others_reach,
             a_killed_rank_is_named_by_all, a_stopped_rank_is_named_by_all,
             a_rank_that_was_started_again_is_in_a_new_group_and_the_old_one_stays_failed, the_log_tells_the_fabric])
