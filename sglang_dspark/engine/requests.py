"""What the worker knows of each running request, by its slot: where its randomness comes from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sglang_dspark.ops.noise import noise_seed, to_int64


class RequestSeeds:
    """Noise seeds of all running requests.

    A request with `sampling_seed` is coupled: its seed is that number. Any other request gets a
    hash of (`--random-seed`, rid), so that its tokens do not depend on who else is in the batch.
    """

    def __init__(self, num_slots: int, random_seed: int, device: torch.device | str) -> None:
        self._random_seed = random_seed
        self._seeds = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self._coupled = torch.zeros(num_slots, dtype=torch.bool, device=device)

    def admit(self, requests: list[Any], slots: Tensor) -> None:
        """Note the requests of a prefill; slots [bs] are their rows of the request table."""
        given = [request.sampling_params.sampling_seed for request in requests]
        seeds = [
            noise_seed(self._random_seed, request.rid) if seed is None else seed
            for request, seed in zip(requests, given, strict=True)
        ]
        signed = [to_int64(seed % 2**64) for seed in seeds]
        device = self._seeds.device
        self._seeds[slots] = torch.tensor(signed).to(device, non_blocking=True)
        coupled = torch.tensor([seed is not None for seed in given])
        self._coupled[slots] = coupled.to(device, non_blocking=True)

    def seeds(self, slots: Tensor) -> Tensor:
        """[bs] int64 bits of each request's seed."""
        return self._seeds[slots]

    def coupled(self, slots: Tensor) -> Tensor:
        """[bs] bool: the request shares its noise between draft and target."""
        return self._coupled[slots]
