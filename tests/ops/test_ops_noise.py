import numpy as np
import pytest
import torch

from sglang_dspark.core import noise as ref
from sglang_dspark.core.noise import Stream
from sglang_dspark.ops.noise import BlockNoise, CoupledNoise, keyed_bits, noise_seed, to_int64

SEEDS = [0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, noise_seed(7, "rid")]
POSITIONS = [0, 1, 5, 4096, 2**31, 2**40, 131_071]


def words(seeds):
    return torch.tensor([to_int64(s) for s in seeds])


@pytest.mark.parametrize("stream", list(Stream))
def test_bits_equal_the_reference(stream):
    rows, tokens = np.arange(9), np.arange(5)
    seeds = np.array(SEEDS, dtype=np.uint64)
    expected = ref.keyed_bits(
        seeds[:, None, None], np.array(POSITIONS)[:, None, None], stream, rows[:, None], tokens
    )
    got = keyed_bits(
        words(SEEDS)[:, None, None],
        torch.tensor(POSITIONS)[:, None, None],
        stream,
        torch.arange(9)[:, None],
        torch.arange(5),
    )
    assert np.array_equal(got.numpy().view(np.uint64), expected)
    no_token = keyed_bits(words(SEEDS), torch.tensor(POSITIONS), stream, torch.tensor(3))
    expected = ref.keyed_bits(seeds, POSITIONS, stream, 3)
    assert np.array_equal(no_token.numpy().view(np.uint64), expected)


@pytest.mark.parametrize("gamma", [0, 1, 7])
def test_block_uniforms_equal_the_reference(gamma):
    seeds, positions = words(SEEDS), torch.tensor(POSITIONS)
    noise = BlockNoise(gamma, "cpu")
    got = noise(seeds, positions)
    expected = ref.block_uniforms(np.array(SEEDS, dtype=np.uint64), POSITIONS, gamma)
    for name in ("draft", "accept", "residual", "bonus"):
        assert np.array_equal(getattr(got, name).numpy(), getattr(expected, name)), name
    assert torch.equal(noise.bonus(seeds, positions), got.bonus)
    assert torch.equal(seeds, words(SEEDS))  # the in-place mixer left the caller's tensors alone


def test_a_smaller_gamma_keeps_the_rows_it_has():
    seeds, positions = words(SEEDS), torch.tensor(POSITIONS)
    long, short = BlockNoise(7, "cpu")(seeds, positions), BlockNoise(3, "cpu")(seeds, positions)
    assert torch.equal(long.draft[:, :3], short.draft)
    assert torch.equal(long.accept[:, :3], short.accept)
    assert torch.equal(long.bonus, short.bonus) and torch.equal(long.residual, short.residual)


def test_coupled_noise_equals_the_reference_and_names_absolute_positions():
    noise = CoupledNoise(33, "cpu")
    anchors = torch.tensor(POSITIONS)
    got = noise(words(SEEDS), anchors, 4)
    drawn_for = np.array(POSITIONS)[:, None] + 1 + np.arange(4)
    expected = ref.coupled_exponentials(np.array(SEEDS, dtype=np.uint64)[:, None], drawn_for, 33)
    # The last bit of log1p may differ between libraries; float32 hides it.
    np.testing.assert_array_max_ulp(got.numpy(), expected.astype(np.float32), maxulp=1)
    # A block anchored one later sees the same noise one row earlier.
    assert torch.equal(noise(words(SEEDS), anchors + 1, 3), got[:, 1:])
    assert got.dtype == torch.float32 and bool((got > 0).all()) and bool(got.isfinite().all())
