# SPDX-License-Identifier: Apache-2.0
"""Jobs whose workers train a PyTorch module on a GPU: it ends with the same bytes for any number of workers, and in a second
run. PYTHONPATH names the folder of the package pytern.

usage: torch_jobs.py TERN [--device cuda|cpu]
"""
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT_S = 120
STEPS = 12
SKIPPED = 77


def train(device, out):
    """A worker. The one that finishes the job writes the module's state to `out`."""
    import pytern as tern
    import pytern.torch
    import torch
    from torch import nn

    torch.manual_seed(1)
    module = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                           nn.Dropout(0.1), nn.Linear(8 * 12 * 12, 10)).to(device)
    images = torch.rand(256, 1, 12, 12)
    labels = (images.mean((1, 2, 3)) * 1000).long() % 10
    with tern.Session(optimizer=tern.Adam(1e-3), slots=2, steps=STEPS, records=256, batch=16) as session:
        server = pytern.torch.Server(module, session)
        for slot, (x, y) in server.slots(torch.utils.data.TensorDataset(images, labels)):
            with slot:
                loss = nn.functional.cross_entropy(module(x.to(device)), y.to(device))
                loss.backward()
                slot.loss(loss.item())
        if session.finisher:
            torch.save({name: value.cpu() for name, value in server.state_dict().items()}, out)


def job(tern, device, workers, out):
    """Runs a job. Returns the state that it saved."""
    import torch

    done = subprocess.run([tern, "run", "--servers", "1", "--workers", str(workers), "--", sys.executable, __file__,
                           "--train", device, out], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return torch.load(out)


def cases(tern, device, folder):
    import torch

    states = {}

    def a_module_has_the_same_bytes_with_one_and_two_workers():
        for workers in (1, 2):
            states[workers] = job(tern, device, workers, folder / f"{workers}.pt")
        assert all(torch.equal(value, states[2][name]) for name, value in states[1].items())
        assert float(states[1]["1.bias"].abs().max()) > 0  # it begins with zeros

    def a_second_run_has_the_same_bytes():
        again = job(tern, device, 1, folder / "again.pt")
        assert all(torch.equal(value, again[name]) for name, value in states[1].items())
    return [a_module_has_the_same_bytes_with_one_and_two_workers, a_second_run_has_the_same_bytes]


def main():
    if sys.argv[1] == "--train":
        train(sys.argv[2], sys.argv[3])
        return
    tern, device = sys.argv[1], "cpu" if "cpu" in sys.argv[2:] else "cuda"
    if device == "cpu":  # with any Python that has PyTorch
        sys.path.insert(0, str(HERE.parent / "python"))
        import with_torch  # noqa: F401
    try:
        import torch
    except ImportError:
        print(f"{sys.executable} has no PyTorch: pip install torch")
        sys.exit(SKIPPED)
    if device == "cuda" and not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} has found no CUDA device")
        sys.exit(SKIPPED)
    sys.path.insert(0, str(HERE.parent / "harness"))
    import tap

    with tempfile.TemporaryDirectory(prefix="tern-torch-") as folder:
        tap.run(cases(tern, device, Path(folder)))


main()
