"""Keyed noise on a device: the same bits as `core/noise.py`, no generator, no host reads.

torch has no arithmetic on uint64, so words are int64 tensors: sums and products wrap around the
same way, and a logical shift is an arithmetic one with the sign bits masked away.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_dspark.core import noise as ref
from sglang_dspark.core.noise import Stream, counter, noise_seed, to_int64

__all__ = ["BlockNoise", "BlockUniforms", "CoupledNoise", "keyed_bits", "noise_seed", "to_int64"]

_GOLDEN = to_int64(ref.GOLDEN)
_MIX_1 = to_int64(ref.MIX_1)
_MIX_2 = to_int64(ref.MIX_2)


@dataclass(frozen=True, slots=True)
class BlockUniforms:
    """The float64 uniforms of one block of every request, each in (0, 1)."""

    draft: Tensor  # [bs, gamma]
    accept: Tensor  # [bs, gamma]
    residual: Tensor  # [bs]
    bonus: Tensor  # [bs]


class BlockNoise:
    """All uniforms of a step in one call. Built once per (gamma, device)."""

    def __init__(self, gamma: int, device: torch.device | str) -> None:
        self._gamma = gamma
        keys = [(Stream.DRAFT, k) for k in range(gamma)]
        keys += [(Stream.ACCEPT, k) for k in range(gamma)]
        keys += [(Stream.RESIDUAL, 0), (Stream.BONUS, 0)]
        words = [to_int64(counter(stream, row)) for stream, row in keys]
        self._counters = torch.tensor(words, dtype=torch.int64, device=device)

    def __call__(self, seeds: Tensor, positions: Tensor) -> BlockUniforms:
        """seeds [bs] int64 (the bits of a uint64); positions [bs] int64, of the anchors."""
        u = _uniform(_mix64(_anchored(seeds, positions).unsqueeze(1) + self._counters))
        gamma = self._gamma
        return BlockUniforms(
            draft=u[:, :gamma],
            accept=u[:, gamma : 2 * gamma],
            residual=u[:, 2 * gamma],
            bonus=u[:, 2 * gamma + 1],
        )

    def bonus(self, seeds: Tensor, positions: Tensor) -> Tensor:
        """[bs] bonus uniforms alone: for a first token or a no-draft step, which draft nothing.

        The value equals the `bonus` of a block anchored at the same position.
        """
        return _uniform(_mix64(_anchored(seeds, positions) + self._counters[-1]))


class CoupledNoise:
    """Exponential noise of seeded requests, per token id. Built once per (vocab, device)."""

    def __init__(self, vocab_size: int, device: torch.device | str) -> None:
        ids = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device)
        self._tokens = ids * _GOLDEN

    def __call__(self, seeds: Tensor, anchors: Tensor, num_rows: int) -> Tensor:
        """E [bs, num_rows, vocab] float32; row j is for the token at position anchor + 1 + j.

        seeds [bs] int64 (sampling_seed); anchors [bs] int64, absolute positions. Row j serves the
        draft x_{j+1} and the target's row j alike: both stand at that position.
        """
        rows = torch.arange(1, num_rows + 1, device=anchors.device)
        words = _anchored(seeds.unsqueeze(1), anchors.unsqueeze(1) + rows)
        words = _mix64(words + to_int64(counter(Stream.COUPLED, 0)))
        return _exponential(_mix64(words.unsqueeze(2) + self._tokens))


def keyed_bits(
    seeds: Tensor, positions: Tensor, stream: Stream, rows: Tensor, tokens: Tensor | None = None
) -> Tensor:
    """64 random bits for every key, int64; the four tensors broadcast. Twin of core's."""
    high = to_int64(ref.GOLDEN * (int(stream) << 32))
    words = _mix64(_anchored(seeds, positions) + ((rows + 1) * _GOLDEN + high))
    return words if tokens is None else _mix64(words + (tokens + 1) * _GOLDEN)


def _anchored(seeds: Tensor, positions: Tensor) -> Tensor:
    return _mix64(seeds + (positions.to(torch.int64) + 1) * _GOLDEN)


def _logical_shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix64(x: Tensor) -> Tensor:
    """Overwrites `x`, which every caller has just made."""
    x.bitwise_xor_(_logical_shift(x, 30)).mul_(_MIX_1)
    x.bitwise_xor_(_logical_shift(x, 27)).mul_(_MIX_2)
    return x.bitwise_xor_(_logical_shift(x, 31))


def _uniform(bits: Tensor) -> Tensor:
    top = _logical_shift(bits, 64 - ref.UNIFORM_BITS).to(torch.float64)
    return top.add_(0.5).mul_(2.0**-ref.UNIFORM_BITS)


def _exponential(bits: Tensor) -> Tensor:
    # In float64 and rounded once: float32 would lose the last bit differently on each device,
    # and v would reach 1.
    v = _logical_shift(bits, 32).to(torch.float64).add_(0.5).mul_(-(2.0**-32))
    return v.log1p_().neg_().to(torch.float32)
