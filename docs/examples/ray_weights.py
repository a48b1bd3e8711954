# SPDX-License-Identifier: Apache-2.0
"""A learner gives its weights to two workers of Ray, over Tern.

python ray_weights.py
"""
import pytern.ray
import ray
import torch

pytern.ray.register()  # before classes of actors name the transport


@ray.remote(num_cpus=0)
class Learner:
    def __init__(self):
        self.weights = {"first": torch.zeros(1000, 1000), "second": torch.zeros(1000)}

    @ray.method(tensor_transport="tern")
    def publish(self):
        # The workers read the tensors that are returned, so they are not changed afterwards: these are new ones.
        self.weights = {name: tensor + 1 for name, tensor in self.weights.items()}
        return self.weights


@ray.remote(num_cpus=0, enable_tensor_transport=True)  # it receives tensors
class Worker:
    def mean(self, weights):
        return weights["first"].mean().item()


ray.init()
learner, workers = Learner.remote(), [Worker.remote() for _ in range(2)]
for step in range(3):
    weights = learner.publish.remote()
    print(f"step {step}: the means are", ray.get([worker.mean.remote(weights) for worker in workers]))
