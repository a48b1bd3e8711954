# SPDX-License-Identifier: Apache-2.0
"""The models of the question `train` in PyTorch, as Tern's program and PyTorch's own contenders train them."""
import torch
import train_common
from torch import nn
from train_common import HEADS, LAYERS, LENGTH, WIDTH


class Transformer(nn.Module):
    """Predicts the next character. The output layer has the embedding's weight (a tied parameter)."""

    def __init__(self, symbols):
        super().__init__()
        self.embedding = nn.Embedding(symbols, WIDTH)
        self.place = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
                                     for _ in range(LAYERS)])
        self.out = nn.Linear(WIDTH, symbols)
        self.out.weight = self.embedding.weight
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), float("-inf")).triu(1))

    def forward(self, x):
        y = self.embedding(x) + self.place
        for layer in self.layers:
            y = layer(y, src_mask=self.mask)
        return self.out(y).flatten(0, 1)


def mlp(sizes):
    layers = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make(model, data):
    """The module, with the values with which everybody begins."""
    module = mlp(model.sizes) if model.sizes else Transformer(data.symbols)
    wanted = train_common.parameters(model, data)
    found = dict(module.named_parameters())
    assert {name: tuple(p.shape) for name, p in found.items()} == {name: shape for name, (shape, _) in wanted.items()}
    with torch.no_grad():
        for name, (shape, init) in wanted.items():
            found[name].copy_(torch.from_numpy(train_common.initial(name, shape, init)))
    return module


class Batches:
    """The batches of one worker, step by step."""

    def __init__(self, options, data):
        self.x, self.y = torch.from_numpy(data.x.copy()), torch.from_numpy(data.y.copy())
        self.order = torch.from_numpy(train_common.order(options, data))

    def of(self, step, worker):
        records = self.order[step, worker]
        return self.x[records], self.y[records].flatten()


def tests(module, data):
    """Returns the function that train_common.Run calls."""
    x, y = torch.from_numpy(data.test_x.copy()), torch.from_numpy(data.test_y.copy()).flatten()

    def test():
        with torch.no_grad():
            found = module(x)
            return (float(nn.functional.cross_entropy(found, y)),
                    float((found.argmax(1) == y).float().mean()))
    return test
