"""Keyed noise: every random draw is a pure function of a key (paper.md, "Randomness").

Key = (noise seed, position, stream, row[, token id]). No generator, no state and no call order,
so tokens do not depend on batch composition, and compact and cap-accept draw the same numbers.

    h = mix(seed + G (position + 1));  h = mix(h + G (stream 2^32 + row + 1));  with a token id
    h = mix(h + G (token + 1)) once more;  mix = the splitmix64 finaliser, arithmetic modulo 2^64.

`ops/noise.py` gives the same bits on a device.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]

GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, the splitmix64 increment
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
UNIFORM_BITS = 52  # (bits + 1/2) 2^-52 is exact in float64 and never 0 or 1; with 53 it can be 1
_MASK64 = (1 << 64) - 1


class Stream(IntEnum):
    """What a draw is for. Row 0 predicts x_1; residual and bonus are drawn once a block (row 0)."""

    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    BONUS = 4
    COUPLED = 5


@dataclass(frozen=True, slots=True)
class BlockUniforms:
    """The uniforms of one block of every request, each in (0, 1)."""

    draft: F64  # [bs, gamma]
    accept: F64  # [bs, gamma]
    residual: F64  # [bs]
    bonus: F64  # [bs]


def noise_seed(random_seed: int, rid: str) -> int:
    """Seed of a request that brought none: the same on every rank, different for every rid.

    Returns an unsigned 64-bit integer.
    """
    digest = hashlib.blake2b(f"{random_seed}\0{rid}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def to_int64(seed: int) -> int:
    """The signed integer with the same 64 bits as `seed`, for an int64 array or tensor."""
    seed &= _MASK64
    return seed - (1 << 64) if seed >> 63 else seed


def counter(stream: Stream, row: int) -> int:
    """The third field of the key, as the odd-multiple increment that is added to the hash."""
    return GOLDEN * ((int(stream) << 32) + row + 1) & _MASK64


def mix64(x: U64) -> U64:
    """The splitmix64 finaliser, a bijection of 64-bit words. Any shape."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(MIX_2)
    return x ^ (x >> np.uint64(31))


def keyed_bits(
    seeds: npt.ArrayLike,
    positions: npt.ArrayLike,
    stream: Stream,
    rows: npt.ArrayLike,
    tokens: npt.ArrayLike | None = None,
) -> U64:
    """64 random bits for every key; the four arrays broadcast. Integers of either sign."""
    high = np.uint64(GOLDEN * (int(stream) << 32) & _MASK64)
    with np.errstate(over="ignore"):  # numpy warns where a scalar wraps around, which is meant
        words = mix64(_words(seeds) + _steps(positions))
        words = mix64(words + (_steps(rows) + high))
        return words if tokens is None else mix64(words + _steps(tokens))


def uniform(bits: U64) -> F64:
    """Bits -> float64 in the open interval (0, 1), multiples of 2^-53. Any shape."""
    return ((bits >> np.uint64(64 - UNIFORM_BITS)).astype(np.float64) + 0.5) * 2.0**-UNIFORM_BITS


def exponential(bits: U64) -> F64:
    """Bits -> E ~ Exp(1), so that argmax(p / E) = argmax(log p - log E) is a draw from p.

    E = -log1p(-v) with v = (upper 32 bits + 1/2) 2^-32: a small E, which is what wins, keeps its
    relative precision, and no E is 0 or infinite.
    """
    upper = (bits >> np.uint64(32)).astype(np.float64)
    return -np.log1p(-(upper + 0.5) * 2.0**-32)


def block_uniforms(seeds: npt.ArrayLike, positions: npt.ArrayLike, gamma: int) -> BlockUniforms:
    """All uniforms of the blocks anchored at `positions`. seeds, positions: [bs]."""
    seeds, positions = np.asarray(seeds)[:, None], np.asarray(positions)[:, None]

    def draw(stream: Stream, rows: int) -> F64:
        return uniform(keyed_bits(seeds, positions, stream, np.arange(rows)))

    return BlockUniforms(
        draft=draw(Stream.DRAFT, gamma),
        accept=draw(Stream.ACCEPT, gamma),
        residual=draw(Stream.RESIDUAL, 1)[:, 0],
        bonus=draw(Stream.BONUS, 1)[:, 0],
    )


def coupled_exponentials(seeds: npt.ArrayLike, positions: npt.ArrayLike, vocab_size: int) -> F64:
    """E of the tokens *drawn for* the absolute `positions`, per token id.

    seeds and positions broadcast to [...]; returns [..., vocab_size].
    """
    seeds, positions = np.asarray(seeds)[..., None], np.asarray(positions)[..., None]
    bits = keyed_bits(seeds, positions, Stream.COUPLED, 0, np.arange(vocab_size))
    return exponential(bits)


def _words(values: npt.ArrayLike) -> U64:
    array = np.asarray(values)
    return array if array.dtype == np.uint64 else array.astype(np.int64).astype(np.uint64)


def _steps(values: npt.ArrayLike) -> U64:
    return (_words(values) + np.uint64(1)) * np.uint64(GOLDEN)
