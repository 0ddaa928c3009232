"""How a batch draws and accepts tokens: a rule object per step, chosen by what the batch holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from sglang_dspark.ops.accept import Accepted, accept_mixed, accept_tokens
from sglang_dspark.ops.draw import best_token, inverse_cdf, race
from sglang_dspark.ops.filters import Filters, target_probs
from sglang_dspark.ops.layout import RowLayout, unpack
from sglang_dspark.ops.markov import Chooser, DraftBlock, Greedy, Mixed
from sglang_dspark.ops.noise import BlockNoise, BlockUniforms, CoupledNoise


@dataclass(frozen=True, slots=True)
class Verified:
    """The target's answer to a block."""

    logits: Tensor  # [rows, V]: all rows of every request, or the packed rows of `layout`
    layout: RowLayout | None  # None: [bs * (g + 1), V]
    draft_lens: Tensor | None  # [bs] windows; None: the whole block


class Rule(Protocol):
    """One step's law. Its noise is keyed by the absolute positions of the anchors."""

    def chooser(self, num_drafts: int) -> Chooser:
        """How the draft picks x_1..x_g."""

    def accept(self, block: DraftBlock, verified: Verified) -> Accepted:
        """Judge a block: cut it to its window first, then decide."""

    def draw(self, logits: Tensor) -> Tensor:
        """One token per request from the target alone: logits [bs, V] -> [bs] int64."""


class GreedyRule:
    """Temperature 0 everywhere: the target's argmax, lowest id first."""

    def chooser(self, num_drafts: int) -> Chooser:
        return Greedy()

    def accept(self, block: DraftBlock, verified: Verified) -> Accepted:
        own = _dense(best_token(verified.logits), verified.layout, block.tokens.shape[1] + 1)
        return accept_tokens(block.tokens, own, verified.draft_lens)

    def draw(self, logits: Tensor) -> Tensor:
        return best_token(logits)


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise sources of one worker; built once."""

    block: BlockNoise
    coupled: CoupledNoise


@dataclass(frozen=True, slots=True)
class Requested:
    """What each request asked for; fields [bs]."""

    temperature: Tensor  # float32
    greedy: Tensor  # bool
    coupled: Tensor | None  # bool; None when no request has a sampling_seed
    filters: Filters | None  # fields [bs]; None when no request filters


class SampledRule:
    """Any mixture of greedy, sampled and coupled requests."""

    def __init__(
        self,
        settings: Requested,
        *,
        seeds: Tensor,  # [bs] int64
        anchors: Tensor,  # [bs] int64 positions
        noise: Noise,
        num_drafts: int,
        vocab_size: int,
    ) -> None:
        self._settings, self._vocab_size = settings, vocab_size
        coupled = settings.coupled
        self._deterministic = settings.greedy if coupled is None else settings.greedy | coupled
        self._uniforms = noise.block(seeds, anchors)
        # [bs, g + 1, V]; row j is shared by the draft x_{j+1} and the target's row j
        self._exponentials = (
            None if coupled is None else noise.coupled(seeds, anchors, num_rows=num_drafts + 1)
        )

    def chooser(self, num_drafts: int) -> Chooser:
        return Mixed(
            self._settings.temperature,
            self._uniforms.draft[:, :num_drafts],
            self._vocab_size,
            sampled=~self._deterministic,
            greedy=self._settings.greedy,
            exponentials=self._exponentials,
        )

    def accept(self, block: DraftBlock, verified: Verified) -> Accepted:
        num_drafts = block.tokens.shape[1]
        layout, width = verified.layout, num_drafts + 1
        probs, own = self._judge(verified.logits, layout, width)
        if layout is None:
            probs = probs.view(-1, width, self._vocab_size)
        return accept_mixed(
            block.tokens,
            block.probs,
            probs,
            verified.draft_lens,
            _first(self._uniforms, num_drafts),
            self._deterministic,
            _dense(own, layout, width),
            None if layout is None else layout.row_start,
        )

    def draw(self, logits: Tensor) -> Tensor:
        probs, own = self._judge(logits, None, 1)
        drawn = inverse_cdf(probs, self._uniforms.bonus)
        return torch.where(self._deterministic, own, drawn)

    def _judge(self, logits: Tensor, layout: RowLayout | None, width: int) -> tuple[Tensor, Tensor]:
        """The law of every row [rows, V], and what a deterministic request takes there [rows]."""
        settings, rows = self._settings, _RowsOf(layout, width)
        probs = target_probs(
            logits.float(), rows.repeat(settings.temperature), rows.repeat_filters(settings.filters)
        )
        best = best_token(logits)
        if self._exponentials is None:
            return probs, best
        shared = race(probs, rows.select(self._exponentials))
        return probs, torch.where(rows.repeat(settings.greedy), best, shared)


@dataclass(frozen=True, slots=True)
class _RowsOf:
    """Per-request values -> per-row values, packed or not."""

    layout: RowLayout | None
    width: int

    def repeat(self, values: Tensor) -> Tensor:
        """[bs] -> [rows]"""
        if self.layout is None:
            return values if self.width == 1 else values.repeat_interleave(self.width)
        return values[self.layout.request]

    def repeat_filters(self, filters: Filters | None) -> Filters | None:
        """Fields [bs] -> [rows]"""
        if filters is None:
            return None
        return replace(
            filters,
            top_k=self.repeat(filters.top_k),
            top_p=self.repeat(filters.top_p),
            min_p=self.repeat(filters.min_p),
        )

    def select(self, values: Tensor) -> Tensor:
        """[bs, >= width, V] -> [rows, V]"""
        if self.layout is None:
            return values[:, : self.width].flatten(0, 1)
        return values[self.layout.request, self.layout.row]


def _dense(values: Tensor, layout: RowLayout | None, width: int) -> Tensor:
    """[rows] -> [bs, width]; past a window the request's last row is repeated."""
    return values.view(-1, width) if layout is None else unpack(values, layout, width)


def _first(uniforms: BlockUniforms, num_drafts: int) -> BlockUniforms:
    return BlockUniforms(
        uniforms.draft[:, :num_drafts],
        uniforms.accept[:, :num_drafts],
        uniforms.residual,
        uniforms.bonus,
    )
