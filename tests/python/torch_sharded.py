# SPDX-License-Identifier: Apache-2.0
"""What PyTorch 2.15 builds on process groups, over Tern: FSDP, functional collectives, DTensor, checkpoints, and several
backends in one process group. What each of two ranks gets is compared with what it gets over gloo.

usage: torch_sharded.py
"""
import contextlib
import functools
import shutil
import sys
import tempfile

import with_torch  # noqa: F401  (first: it may start this script again, with another Python)
import pytern.torch.distributed as of_tern
import torch
import torch.distributed as dist
from jobs import tap
from torch_distributed import given, run

if not of_tern.IS_BACKEND:
    print(f"skipped: PyTorch {torch.__version__} has no backends in Python: it needs 2.15, which `./run test long` installs")
    sys.exit(77)

import torch.distributed._functional_collectives as functional  # noqa: E402
import torch.distributed.checkpoint as checkpoint  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: E402

CPU = torch.device("cpu")
scratch = tempfile.mkdtemp(prefix="tern-checkpoint-")


# ---- what the ranks do ----

def trained(module, rank):
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    torch.manual_seed(100 + rank)
    for _ in range(5):
        optimizer.zero_grad()
        module(torch.randn(16, 20)).square().sum().backward()
        optimizer.step()


def layers():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(20, 301), torch.nn.Tanh(), torch.nn.Linear(301, 3))


def fsdp(rank, size):
    module = FullyShardedDataParallel(layers(), device_id=CPU)
    trained(module, rank)
    return [p.detach() for p in module.parameters()]


def sharded(rank, size):
    module = layers()
    mesh = init_device_mesh("cpu", (size,))
    fully_shard(module[0], mesh=mesh)
    fully_shard(module, mesh=mesh)
    trained(module, rank)
    return module


def fsdp2(rank, size):
    return [p.full_tensor().detach() for p in sharded(rank, size).parameters()]


def checkpoints(rank, size):
    module = sharded(rank, size)
    saved = {"module": module.state_dict()}
    folder = [tempfile.mkdtemp(dir=scratch) if rank == 0 else None]
    dist.broadcast_object_list(folder, 0)
    checkpoint.save(saved, checkpoint_id=folder[0])
    with torch.no_grad():
        before = [p.to_local().clone() for p in module.parameters()]
        for p in module.parameters():
            p.zero_()
    checkpoint.load(saved, checkpoint_id=folder[0])
    module.load_state_dict(saved["module"])
    after = [p.to_local().detach() for p in module.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(after, before)) and any(b.any() for b in before)
    return after


def functional_collectives(rank, size):
    group, x, y = dist.group.WORLD, given(rank, torch.float32, (8, 4)), given(10 + rank, torch.float32, (2, 3))
    found = [functional.all_reduce(x, "sum", group), functional.all_gather_single(x, 0, group),
             functional.reduce_scatter_single(x, "sum", 0, group), functional.all_to_all_single(x, None, None, group),
             functional.broadcast(x, 1, group),
             functional.all_to_all_single(x, [3, 2] if rank == 0 else [5, 6], [3, 5] if rank == 0 else [2, 6], group)]
    found += functional.all_reduce_coalesced([x, y], "sum", group)
    found += functional.all_gather_single_coalesced([x, y], group)
    found += functional.reduce_scatter_single_coalesced([x, y], "sum", [0, 0], group)
    return [tensor + 0 for tensor in found]  # which waits


def redistributed(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(48.0).view(8, 6)
    rows, mine = distribute_tensor(whole, mesh, [Shard(0)]), DTensor.from_local(given(rank, torch.float32), mesh, [Partial()])
    odd = distribute_tensor(torch.arange(7.0), mesh, [Shard(0)])
    return [odd.full_tensor(), *(d.redistribute(mesh, [place]).to_local() for d, place in (
        (rows, Replicate()), (rows, Shard(1)), (odd, Replicate()), (mine, Replicate()), (mine, Shard(0))))]


def objects(rank, size):
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * 1000 * rank})
    at_root = [None] * size if rank == 1 else None
    dist.gather_object(("of", rank), at_root, 1)
    scattered = [None]
    dist.scatter_object_list(scattered, [[r, "to"] for r in range(size)] if rank == 0 else None, 0)
    sent = [{"from": 0}] if rank == 0 else [None]
    if rank == 0:
        dist.send_object_list(sent, 1)
    else:
        dist.recv_object_list(sent, 0)
    return [gathered, at_root, scattered, sent]


def subgroups(rank, size):
    found = []
    alone, both = dist.new_group([1]), dist.new_group([0, 1])
    for group in alone, both:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.all_reduce(tensor := given(rank, torch.float32), group=group)
            found.append(tensor)
    mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("outer", "inner"))
    for name in ("outer", "inner"):
        dist.all_reduce(tensor := given(rank, torch.float32), group=mesh[name].get_group())
        found.append(tensor)
    dist.barrier(both)
    return found


CASES = fsdp, fsdp2, checkpoints, functional_collectives, redistributed, objects, subgroups


def plain(value):
    """Something that compares bit for bit."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    return value


def all_cases(rank, size):
    return {case.__name__: [plain(value) for value in case(rank, size)] for case in CASES}


@functools.cache
def results(name, fabrics):
    return run(all_cases, 2, backend=name, fabrics=fabrics)


# ---- the tests ----

def compared(name):
    expected = [answer[name] for answer in results("gloo", "auto")]
    for fabrics in ("auto", "tcp"):
        assert [answer[name] for answer in results("tern", fabrics)] == expected, fabrics
    return expected


def fsdp_gives_the_bytes_that_gloo_gives():
    for name in ("fsdp", "fsdp2"):
        compared(name)
    first, second = compared("fsdp2")
    assert first == second


def distributed_checkpoints_are_saved_and_loaded():
    compared("checkpoints")


def functional_collectives_give_what_gloo_gives():
    compared("functional_collectives")


def dtensors_are_redistributed():
    compared("redistributed")


def objects_are_moved():
    compared("objects")


def subgroups_and_meshes_give_what_gloo_gives():
    compared("subgroups")


def coalesced(rank, size):
    other, manager = 1 - rank, dist.distributed_c10d._coalescing_manager
    got, tensors = torch.empty(3), [torch.ones(3), torch.ones(4)]
    with manager(device=CPU, async_ops=True) as batch:
        dist.isend(torch.full((3,), float(rank)), other)
        dist.irecv(got, other)
    batch.wait()
    assert got.tolist() == [float(other)] * 3
    with manager(device=CPU):
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert [t.tolist() for t in tensors] == [[2.0] * 3, [2.0] * 4]
    return True


def operations_are_coalesced():
    run(coalesced, 2)


def of_two_backends(rank, size):
    here, other = dist.group.WORLD._get_backend(CPU), dist.group.WORLD._get_backend(torch.device("cuda"))
    assert isinstance(here, of_tern.Backend) and not isinstance(other, of_tern.Backend), (here, other)
    dist.all_reduce(tensor := torch.full((3,), rank + 1.0))
    assert tensor.tolist() == [3.0] * 3
    assert here._get_sequence_number_for_group() == 1
    return fsdp2(rank, size)[0].numpy().tobytes()


def another_backend_may_have_the_gpus():
    """NCCL's refuses to be made without a GPU, and gloo's does not."""
    expected = [answer["fsdp2"][0][2] for answer in results("gloo", "auto")]
    assert run(of_two_backends, 2, backend="cpu:tern,cuda:gloo") == expected


def summed(rank, size):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    both = dist.new_group([0, 1])
    dist.all_reduce(tensor := torch.ones(3), group=both)
    return tensor.tolist()


def torch_may_check_each_operation():
    """TORCH_DISTRIBUTED_DEBUG=DETAIL puts a wrapper around the backend."""
    assert run(summed, 2) == [[2.0] * 3] * 2


def fails(rank, size):
    """Rank 1 has ended: each way to wait for an operation says so."""
    if rank == 1:
        return {"error": ""}
    group, x = dist.group.WORLD, torch.ones(5)
    for wait in (lambda: functional.all_reduce(x, "sum", group) + 0, lambda: dist.all_reduce(x),
                 lambda: dist.all_reduce(x, async_op=True).get_future().wait()):
        with contextlib.suppress(dist.DistBackendError):
            wait()
            return {"error": "nothing was raised"}
    try:
        functional.all_reduce(x, "sum", group) + 0
    except RuntimeError as error:
        return {"error": str(error)}


def a_rank_that_is_gone_is_named():
    first, second = run(fails, 2)
    assert "rank 1 (" in first["error"], first


if __name__ == "__main__":
    try:
        tap.run([fsdp_gives_the_bytes_that_gloo_gives, distributed_checkpoints_are_saved_and_loaded,
                 functional_collectives_give_what_gloo_gives, dtensors_are_redistributed, objects_are_moved,
                 subgroups_and_meshes_give_what_gloo_gives, operations_are_coalesced, another_backend_may_have_the_gpus, torch_may_check_each_operation,
                 a_rank_that_is_gone_is_named])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
