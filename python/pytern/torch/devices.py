# SPDX-License-Identifier: Apache-2.0
"""Where a module computes. Values and gradients of a module on a GPU cross a buffer of host memory."""
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

KINDS = ("cpu", "cuda")  # ROCm's GPUs are "cuda", too


def on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def to_host(tensor: torch.Tensor) -> Any:
    """The elements in row-major order, as an array: the tensor's own memory if that is such an array."""
    return tensor.detach().cpu().contiguous().numpy()


class Staging:
    """Host memory through which values in row-major order get to tensors and from them, one tensor after the other. It is
    page-locked for a GPU, which copies faster then."""

    def __init__(self, tensors: list[torch.Tensor], device: torch.device) -> None:
        largest = max((tensor.numel() for tensor in tensors), default=0)
        self._memory = torch.empty(largest, pin_memory=device.type == "cuda")
        self._lock = threading.Lock()  # autograd calls hooks on threads of its own

    def fill(self, tensor: torch.Tensor, read: Callable[[Any], None]) -> None:
        """Lets the tensor have what read(array) writes to the array."""
        with self._lock, torch.no_grad():
            part = self._part(tensor)
            read(part.numpy())
            tensor.copy_(part)

    def take(self, tensor: torch.Tensor, push: Callable[[Any], None]) -> None:
        """Calls push() with an array of the tensor's values, which it must not keep."""
        with self._lock, torch.no_grad():
            push(self._part(tensor).copy_(tensor).numpy())

    def _part(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._memory[:tensor.numel()].view(tensor.shape)


def device_of(module: nn.Module) -> torch.device:
    """The device of all parameters that are trained; the CPU if there are none."""
    first = None
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.device.type not in KINDS:
            raise ValueError(f"parameter {name} is on {parameter.device}: parameters on the CPU or on a CUDA device can be "
                             "trained")
        if first is None:
            first = name, parameter.device
        elif parameter.device != first[1]:
            raise ValueError(f"parameter {name} is on {parameter.device}, and {first[0]} on {first[1]}: all parameters must "
                             "be on one device")
    return first[1] if first else torch.device("cpu")


def be_deterministic(device: torch.device) -> None:
    torch.use_deterministic_algorithms(True)
    if device.type == "cuda":
        # cuBLAS sums in another order if it has several workspaces. PyTorch refuses to compute without the variable.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False  # it chooses between algorithms by their time


def seed(device: torch.device, number: int) -> None:
    """Lets the device's random numbers begin anew. Those of the CPU have their own seed."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(number)


def setting(*names: str) -> str:
    """A setting of torch.backends; "-" if this PyTorch does not have it, or has been set by another name for it."""
    found: Any = torch.backends
    try:
        for name in names:
            found = getattr(found, name)
    except (AttributeError, AssertionError, RuntimeError):
        return "-"
    return str(found)


def settings(device: torch.device) -> list[str]:
    """What the bits of a gradient depend on beside PyTorch's build."""
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # after a program has used the names with fp32_precision
        precision = "-"
    found = [precision, setting("mkldnn", "matmul", "fp32_precision"), setting("mkldnn", "conv", "fp32_precision")]
    if device.type == "cpu":
        return found
    backends = torch.backends
    return [*found, torch.cuda.get_device_name(device), str(torch.version.cuda), str(getattr(torch.version, "hip", None)),
            str(backends.cudnn.version()), str(backends.cudnn.benchmark), setting("cudnn", "allow_tf32"),
            setting("cudnn", "conv", "fp32_precision"), setting("cuda", "matmul", "allow_tf32"),
            setting("cuda", "matmul", "fp32_precision"), setting("cuda", "matmul", "allow_fp16_reduced_precision_reduction"),
            setting("cuda", "matmul", "allow_bf16_reduced_precision_reduction"),
            os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""), os.environ.get("NVIDIA_TF32_OVERRIDE", "")]


def label(device: torch.device) -> str:
    """The device in the description of the arithmetic."""
    if device.type == "cpu":
        return "cpu"
    major, minor = torch.cuda.get_device_capability(device)
    return f"cuda sm_{major}{minor}"
