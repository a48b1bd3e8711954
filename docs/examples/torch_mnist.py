# SPDX-License-Identifier: Apache-2.0
"""Trains a convolutional network in PyTorch, on images in the IDX format such as those of MNIST, with Tern's servers.

    tern run --servers 1 --workers 2 -- python3 torch_mnist.py IMAGES LABELS model.pt

IMAGES and LABELS are files, which may be packed with gzip. One record in five is kept for the test at the end. The
worker that finishes the job writes the module's state to model.pt.
"""
import argparse
import gzip
import struct

import numpy
import pytern as tern
import pytern.torch
import torch
from torch import nn


def read_idx(path):
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with (gzip.open if packed else open)(path, "rb") as file:
        data = file.read()
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise SystemExit(f"{path}: expected an IDX file of bytes")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    return numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * data[3]).reshape(shape)


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 7 * 7, 10))


def train(options):
    images, labels = read_idx(options.images), read_idx(options.labels)
    x = torch.from_numpy(images.astype(numpy.float32))[:, None] / 255
    y = torch.from_numpy(labels.astype(numpy.int64))
    held = len(x) // 5
    dataset = torch.utils.data.TensorDataset(x[:-held], y[:-held])
    torch.manual_seed(1)  # every worker makes the same initial values, as the servers check
    model = make_model()
    with tern.Session(steps=options.steps, slots=options.slots, seed=5, optimizer=tern.Adam(lr=2e-3),
                      records=len(dataset), batch=32, data=tern.digest(images, labels),
                      arithmetic="torch_mnist 1") as session:
        server = pytern.torch.Server(model, session)
        for slot, (images, labels) in server.slots(dataset):
            with slot:
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                slot.loss(loss.item())
        with session.finishing() as is_finisher:
            if is_finisher:
                model.eval()
                with torch.no_grad():
                    right = (model(x[-held:]).argmax(1) == y[-held:]).float().mean()
                print(f"accuracy {right:.4f} of {held} records", flush=True)
                torch.save(server.state_dict(), options.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("images")
    parser.add_argument("labels")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--slots", type=int, default=4)
    train(parser.parse_args())
