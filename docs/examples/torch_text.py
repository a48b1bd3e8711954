# SPDX-License-Identifier: Apache-2.0
"""Trains a transformer in PyTorch that predicts the next character of a text, with Tern's servers.

    tern run --servers 1 --workers 2 -- python3 torch_text.py TEXT model.pt

The output layer has the embedding's weight (a tied parameter), and the layers have dropout. The worker that finishes the
job writes the module's state to model.pt.
"""
import argparse

import pytern as tern
import pytern.torch
import torch
from torch import nn

LENGTH = 32  # characters of a record


class Model(nn.Module):
    def __init__(self, symbols, width=48, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        nn.init.normal_(self.embedding.weight, std=0.1)  # instead of 1: it is the output layer, too
        self.place = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
                                     for _ in range(layers)])
        self.out = nn.Linear(width, symbols)
        self.out.weight = self.embedding.weight
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), float("-inf")).triu(1))

    def forward(self, x):
        y = self.embedding(x) + self.place
        for layer in self.layers:
            y = layer(y, src_mask=self.mask)
        return self.out(y)


class Windows(torch.utils.data.Dataset):
    """Record i: LENGTH characters from place i, and the same from place i + 1."""

    def __init__(self, text):
        self.symbols = sorted(set(text))
        self.codes = torch.tensor([self.symbols.index(byte) for byte in text])

    def __len__(self):
        return len(self.codes) - LENGTH

    def __getitem__(self, i):
        return self.codes[i:i + LENGTH], self.codes[i + 1:i + LENGTH + 1]


def train(options):
    with open(options.text, "rb") as file:
        text = file.read()
    dataset = Windows(text)
    torch.manual_seed(1)  # every worker makes the same initial values, as the servers check
    model = Model(len(dataset.symbols))
    with tern.Session(steps=options.steps, slots=options.slots, seed=5, optimizer=tern.Adam(lr=2e-3), clip_norm=1,
                      records=len(dataset), batch=16, data=tern.digest(text), arithmetic="torch_text 1") as session:
        server = pytern.torch.Server(model, session)
        for slot, (x, y) in server.slots(dataset):
            with slot:
                loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
                loss.backward()
                slot.loss(loss.item())
        with session.finishing() as is_finisher:
            if is_finisher:
                model.eval()
                with torch.no_grad():
                    x, y = torch.utils.data.default_collate([dataset[i] for i in range(0, len(dataset), len(text) // 64)])
                    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
                print(f"loss {loss:.4f}", flush=True)
                torch.save(server.state_dict(), options.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--slots", type=int, default=4)
    train(parser.parse_args())
