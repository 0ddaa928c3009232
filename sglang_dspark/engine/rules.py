"""How a batch draws and accepts tokens: one rule object per step, chosen by what the batch holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sglang_dspark.ops.accept import Accepted, accept_mixed, accept_tokens
from sglang_dspark.ops.draw import inverse_cdf, race
from sglang_dspark.ops.filters import Filters, target_probs
from sglang_dspark.ops.markov import Chooser, DraftBlock, Greedy, Mixed
from sglang_dspark.ops.noise import BlockNoise, CoupledNoise


class Rule(Protocol):
    """One step's law. `anchors` [bs] are absolute positions, the keys of all noise."""

    def chooser(self) -> Chooser:
        """How the draft picks x_1..x_gamma."""

    def accept(self, block: DraftBlock, logits: Tensor) -> Accepted:
        """Judge a whole block by the target's logits [bs, gamma + 1, V]."""

    def draw(self, logits: Tensor) -> Tensor:
        """One token per request from the target alone: logits [bs, V] -> [bs] int64."""


class GreedyRule:
    """Temperature 0 everywhere: the target's argmax, lowest id first."""

    def chooser(self) -> Chooser:
        return Greedy()

    def accept(self, block: DraftBlock, logits: Tensor) -> Accepted:
        return accept_tokens(block.tokens, logits.argmax(-1))

    def draw(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise sources of one worker; built once."""

    block: BlockNoise
    coupled: CoupledNoise


class SampledRule:
    """Any mixture of greedy, sampled and coupled requests."""

    def __init__(
        self,
        *,
        temperature: Tensor,  # [bs] float32
        greedy: Tensor,  # [bs] bool
        coupled: Tensor | None,  # [bs] bool; None when no request has a sampling_seed
        seeds: Tensor,  # [bs] int64
        anchors: Tensor,  # [bs] int64
        filters: Filters | None,  # fields [bs, 1]
        noise: Noise,
        gamma: int,
        vocab_size: int,
    ) -> None:
        self._temperature, self._filters, self._vocab_size = temperature, filters, vocab_size
        self._greedy = greedy
        self._deterministic = greedy if coupled is None else greedy | coupled
        self._uniforms = noise.block(seeds, anchors)
        # [bs, gamma + 1, V]; row j is shared by the draft x_{j+1} and the target's row j
        self._exponentials = (
            None if coupled is None else noise.coupled(seeds, anchors, num_rows=gamma + 1)
        )

    def chooser(self) -> Chooser:
        return Mixed(
            self._temperature,
            self._uniforms.draft,
            self._vocab_size,
            sampled=~self._deterministic,
            greedy=self._greedy,
            exponentials=self._exponentials,
        )

    def accept(self, block: DraftBlock, logits: Tensor) -> Accepted:
        probs = self._probs(logits)
        return accept_mixed(
            block.tokens,
            block.probs,
            probs,
            None,
            self._uniforms,
            self._deterministic,
            self._own_tokens(logits, probs),
        )

    def draw(self, logits: Tensor) -> Tensor:
        logits = logits.unsqueeze(1)  # [bs, 1, V]
        probs = self._probs(logits)
        own = self._own_tokens(logits, probs).squeeze(1)
        drawn = inverse_cdf(probs.squeeze(1), self._uniforms.bonus)
        return torch.where(self._deterministic, own, drawn)

    def _probs(self, logits: Tensor) -> Tensor:
        return target_probs(logits.float(), self._temperature.unsqueeze(1), self._filters)

    def _own_tokens(self, logits: Tensor, probs: Tensor) -> Tensor:
        """[bs, rows] what deterministic requests take: the argmax, or the coupled draw."""
        best = logits.argmax(-1)
        if self._exponentials is None:
            return best
        shared = race(probs, self._exponentials[:, : probs.shape[1]])
        return torch.where(self._greedy.unsqueeze(1), best, shared)
