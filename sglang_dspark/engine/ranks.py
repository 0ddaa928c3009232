"""Tensor-parallel ranks take one decision: rank 0's, whatever rounding told the others."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Ranks(Protocol):
    def bind(self, decision: Tensor) -> Tensor:
        """The same tensor on every rank: rank 0's values. Overwrites `decision`."""

    def bind_number(self, number: int) -> int:
        """The same number on every rank."""


class SoleRank:
    """Nobody to agree with."""

    def bind(self, decision: Tensor) -> Tensor:
        return decision

    def bind_number(self, number: int) -> int:
        return number


class FollowRankZero:
    """Broadcasts what decides the shape or the tokens of a step: budget, drafts, windows,
    accepted counts, next tokens. Ranks that differ in one of them wait for each other forever."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device | str) -> None:
        self._group, self._device = group, device
        self._source = dist.get_global_rank(group, 0)

    def bind(self, decision: Tensor) -> Tensor:
        decision = decision.contiguous()
        dist.broadcast(decision, src=self._source, group=self._group)
        return decision

    def bind_number(self, number: int) -> int:
        return int(self.bind(torch.tensor([number], device=self._device))[0])
