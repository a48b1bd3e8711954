# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's MPS, by which processes that share a GPU run kernels side by side, for as long as measurements last."""
import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path

PROGRAM = "nvidia-cuda-mps-control"
START_S = 10


@contextlib.contextmanager
def running(folder):
    """Yields variables for the environment of the processes, and a word for the results."""
    if not shutil.which(PROGRAM):
        yield {}, "without MPS"
        return
    places = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    env = {**os.environ, **places}
    daemon = subprocess.Popen([PROGRAM, "-f"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while not (Path(folder) / "control").exists() and time.monotonic() < deadline and daemon.poll() is None:
            time.sleep(0.01)
        yield places, "with MPS"
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([PROGRAM], input="quit\n", text=True, env=env, capture_output=True, timeout=START_S)
        daemon.terminate()
        daemon.wait()
