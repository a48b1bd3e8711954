# SPDX-License-Identifier: Apache-2.0
"""Where a module computes. Values and gradients of a module on a GPU cross a buffer of host memory."""
import os
from typing import Any

import torch
from torch import nn

KINDS = ("cpu", "cuda")  # ROCm's GPUs are "cuda", too


def on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def to_host(tensor: torch.Tensor) -> Any:
    """The elements in row-major order, as an array: the tensor's own memory if that is such an array."""
    return tensor.detach().cpu().contiguous().numpy()


def buffer_for(tensor: torch.Tensor) -> torch.Tensor:
    """A buffer of host memory for the values of a tensor, in row-major order; page-locked for a GPU, which copies faster
    then."""
    return torch.empty(tensor.shape, pin_memory=tensor.device.type == "cuda")


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


def settings(device: torch.device) -> list[str]:
    """What the bits of a gradient depend on beside PyTorch's build, if the device is a GPU."""
    if device.type == "cpu":
        return []
    backends = torch.backends
    return [torch.cuda.get_device_name(device), str(torch.version.cuda), str(getattr(torch.version, "hip", None)),
            str(backends.cudnn.version()), str(backends.cudnn.allow_tf32), str(backends.cudnn.benchmark),
            str(backends.cuda.matmul.allow_tf32), str(backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
            os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")]


def label(device: torch.device) -> str:
    """The device in the description of the arithmetic."""
    if device.type == "cpu":
        return "cpu"
    major, minor = torch.cuda.get_device_capability(device)
    return f"cuda sm_{major}{minor}"
