# SPDX-License-Identifier: Apache-2.0
"""Training steps of Tern (gpu_step) and of PyTorch on the same GPU, in turns: forward, loss,
backward and Adam, from the same initial parameters on the same batch, which stays on the
device. Both compute in fp32, once with TF32 in the products of matrices and once without.

usage: compare.py GPU_STEP [--smoke] [--no-blas] [--device cpu] > ROWS

It prints rows (see figures.py), one JSON line each. Where the losses of the two differ by more than
TOLERANCE, the training was not the same and the row says so. --smoke: small and short, as
TERN_GPU_SCALE=few does, and --device cpu: PyTorch on the CPU, both to try this program; their
figures mean nothing.
"""
import argparse
import gc
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

ROUNDS, CHECK_STEPS = 9, 10
# model, floats of a record or symbols of context, classes, batch, steps of a sample
JOBS = [("mlp:1024,1024", 784, 10, 1024, 50), ("charlm:16,16,256", 16, 96, 256, 200)]
SMALL_JOBS = [("mlp:16,16", 12, 10, 8, 2), ("charlm:4,3,16", 4, 9, 8, 2)]
# How much the losses may differ, relative to the first loss: in the first step, and in step
# CHECK_STEPS. The latter is more, because Adam turns rounding errors near zero into full updates.
TOLERANCE = {"fp32": (1e-5, 5e-4), "tf32": (1e-3, 1e-2)}


class Job:
    """What both sides train: the parameters in Tern's order, weights as [in][out], and the batch."""

    def __init__(self, numpy, spec, features, classes, batch):
        self.spec, self.features, self.classes, self.batch = spec, features, classes, batch
        self.text = spec.startswith("charlm")
        widths = [int(w) for w in spec.split(":")[1].split(",")]
        random = numpy.random.default_rng(7)
        self.params = []
        inputs, hidden = features, widths
        if self.text:
            self.params.append(random.uniform(-0.1, 0.1, (classes, widths[1])))
            inputs, hidden = features * widths[1], widths[2:]
        for outputs in [*hidden, classes]:
            scale = (6 / inputs) ** 0.5
            self.params += [random.uniform(-scale, scale, (inputs, outputs)), numpy.zeros(outputs)]
            inputs = outputs
        self.params = [p.astype(numpy.float32) for p in self.params]
        shape = (batch, features)
        self.x = (random.integers(0, classes, shape, numpy.int32) if self.text
                  else random.random(shape, numpy.float32))
        self.labels = random.integers(0, classes, batch, numpy.int32)

    def write(self, path):
        with open(path, "wb") as file:
            for array in [*self.params, self.x, self.labels]:
                file.write(array.tobytes())


class Tern:
    name = "Tern"

    def __init__(self, program, job, precision, path, options):
        self.process = subprocess.Popen(
            [program, job.spec, str(job.features), str(job.classes), str(job.batch), precision,
             str(path), *options], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        first = json.loads(self.process.stdout.readline() or "null")
        if not first:
            raise RuntimeError(f"gpu_step ended with status {self.process.wait()}")
        self.bytes, self.fingerprint = first["bytes"], first["fingerprint"]

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if len(answer) != 2:
            raise RuntimeError(f"gpu_step ended with status {self.process.wait()}")
        return [float(a) for a in answer]

    def reset(self):
        self.ask("reset")

    def run(self, steps):
        """Microseconds, and the loss of the last step."""
        return self.ask(str(steps))

    def close(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            raise RuntimeError(f"gpu_step ended with status {self.process.returncode}")


def network(torch, job, device):
    """The job's model as a module. Its parameters keep their addresses, as CUDA graphs require."""
    functional = torch.nn.functional

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.params = torch.nn.ParameterList(
                torch.nn.Parameter(torch.tensor(p, device=device)) for p in job.params)

        def forward(self, x, labels):
            params = list(self.params)
            if job.text:
                x = functional.embedding(x, params.pop(0)).flatten(1)
            for i in range(0, len(params), 2):
                x = torch.addmm(params[i + 1], x, params[i])
                if i + 2 < len(params):
                    x = torch.relu(x)
            return functional.cross_entropy(x, labels)

    return Network()


EAGER, COMPILED, REDUCED, GRAPH, COMPILED_GRAPH = KINDS = [
    "PyTorch eager", "torch.compile", "torch.compile, CUDA graphs", "a CUDA graph of the whole step",
    "torch.compile, a CUDA graph of the whole step"]
NEEDS_GPU = {REDUCED, GRAPH, COMPILED_GRAPH}
WARM_UP = 5  # steps


class Torch:
    """PyTorch, in the ways of KINDS. The last two capture forward, backward and Adam in one CUDA graph, as the
    documentation of torch.cuda.CUDAGraph describes, which leaves the processor one launch per step."""

    def __init__(self, torch, job, kind, device):
        self.torch, self.job, self.name, self.device = torch, job, kind, device
        gc.collect()  # so that the memory of earlier peers is not counted
        before = self.allocated()
        self.network = self.forward = network(torch, job, device)
        self.x = torch.tensor(job.x, device=device)
        self.labels = torch.tensor(job.labels, device=device).long()
        self.adam = torch.optim.Adam(self.network.parameters(), lr=1e-3, betas=(0.9, 0.999),
                                     eps=1e-8, fused=True, capturable=kind in (GRAPH, COMPILED_GRAPH))
        if kind in (COMPILED, REDUCED, COMPILED_GRAPH):
            self.forward = torch.compile(self.network, mode="reduce-overhead" if kind == REDUCED else None)
        if kind == REDUCED:
            for tensor in (self.x, self.labels):  # so that graphs need no copies of them
                torch._dynamo.mark_static_address(tensor)
        self.graph = None
        if kind in (GRAPH, COMPILED_GRAPH):
            self.capture()
        self.run(WARM_UP)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.run(2)
        # If memory of an earlier peer (an earlier object of this class) was freed meanwhile, the
        # difference is too small. A negative one becomes 0, which the tables show as "-", not known.
        self.bytes = max(0, torch.cuda.max_memory_allocated() - before) if device == "cuda" else 0

    def allocated(self):
        return self.torch.cuda.memory_allocated() if self.device == "cuda" else 0

    def capture(self):
        """Captures a step, after some steps on a side stream, which the documentation asks for."""
        cuda = self.torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(WARM_UP):
                self.plain_step()
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        self.adam.zero_grad(set_to_none=True)  # so that gradients are allocated in the graph's memory
        with cuda.graph(graph):
            self.loss = self.forward(self.x, self.labels)
            self.loss.backward()
            self.adam.step()
        self.graph = graph

    def plain_step(self):
        self.adam.zero_grad(set_to_none=True)
        loss = self.forward(self.x, self.labels)
        loss.backward()
        self.adam.step()
        return loss

    def step(self):
        if self.graph:
            self.graph.replay()
            return self.loss
        if self.name == REDUCED:
            self.torch.compiler.cudagraph_mark_step_begin()
        return self.plain_step()

    def reset(self):
        with self.torch.no_grad():
            for p, initial in zip(self.network.parameters(), self.job.params):
                p.copy_(self.torch.from_numpy(initial))
            for state in self.adam.state.values():
                for value in state.values():
                    value.zero_()

    def run(self, steps):
        if self.device != "cuda":
            start = time.perf_counter()
            for _ in range(steps):
                loss = self.step()
            return (time.perf_counter() - start) * 1e6, loss.item()
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(steps):
            loss = self.step()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3, loss.item()

    def close(self):
        pass


def difference(ours, peer, precision):
    """Trains both sides for CHECK_STEPS steps. Returns why it was not the same training, or None."""
    losses = []
    for side in (ours, peer):
        side.reset()
        losses.append((side.run(1)[1], side.run(CHECK_STEPS - 1)[1]))
    for a, b, most, step in zip(*losses, TOLERANCE[precision], (1, CHECK_STEPS)):
        if not abs(a - b) <= most * losses[0][0]:
            return f"in step {step} the loss was {a:.6g}, and {b:.6g} of {peer.name}"
    return None


def peers_of(torch, why_not, job, device, rows):
    """The peers that can run here. The rows of the others get the reason as "missing"."""
    peers = []
    for kind in KINDS:
        try:
            if torch is None:
                raise RuntimeError(why_not)
            if kind in NEEDS_GPU and device != "cuda":
                raise RuntimeError("there are no CUDA graphs on the CPU")
            peers.append(Torch(torch, job, kind, device))
        except Exception as e:  # torch.compile may raise anything
            rows[kind]["missing"] = (str(e).strip().splitlines() or [type(e).__name__])[0]
    return peers


def rows_of(spec, batch, precision, **more):
    """{kind of peer: its row, without samples}."""
    return {kind: {"name": f"step of {spec}, batch {batch}, {precision}", "peer": kind, "goal": 1.0,
                   "bytes": 0, "ours_us": [], "peer_us": [], **more} for kind in KINDS}


def compare(torch, why_not, tern, job, precision, arguments, steps):
    rounds = 2 if arguments.smoke else ROUNDS
    rows = rows_of(job.spec, job.batch, precision, ours_bytes=tern.bytes,
                   fingerprint=tern.fingerprint)
    if torch:
        torch.compiler.reset()
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    peers = peers_of(torch, why_not, job, arguments.device, rows)
    for peer in peers:
        rows[peer.name].update(wrong=difference(tern, peer, precision), peer_bytes=peer.bytes)
    sides = [tern, *peers]
    samples = {side.name: [] for side in sides}
    for side in sides:
        side.run(steps)
    for _ in range(rounds):
        for side in [*sides, *reversed(sides)]:
            samples[side.name].append(side.run(steps)[0] / steps)
    for kind, row in rows.items():
        row["ours_us"], row["peer_us"] = samples[tern.name], samples.get(kind, [])
        print(json.dumps(row), flush=True)


def load_torch(device):
    try:
        import torch
    except ImportError:
        return None, "PyTorch is not installed"
    if device == "cuda" and not torch.cuda.is_available():
        return None, "PyTorch has no GPU"
    return torch, None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("gpu_step")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--no-blas", action="store_true")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    arguments.smoke |= os.environ.get("TERN_GPU_SCALE") == "few"
    jobs = SMALL_JOBS if arguments.smoke else JOBS
    try:
        import numpy
    except ImportError:
        for job in jobs:
            for row in rows_of(job[0], job[3], "fp32", missing="numpy is not installed").values():
                print(json.dumps(row))
        return
    torch, why_not = load_torch(arguments.device)
    options = ["--no-blas"] if arguments.no_blas else []
    with tempfile.TemporaryDirectory() as directory:
        for spec, features, classes, batch, steps in jobs:
            job = Job(numpy, spec, features, classes, batch)
            path = Path(directory) / "job"
            job.write(path)
            for precision in ("fp32", "tf32"):
                tern = Tern(arguments.gpu_step, job, precision, path, options)
                compare(torch, why_not, tern, job, precision, arguments, steps)
                tern.close()


if __name__ == "__main__":
    main()
