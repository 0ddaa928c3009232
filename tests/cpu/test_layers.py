"""Our layer forwards and packed products against formulae written out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import linear

from sglang_dspark.cpu.layers import rms_norm_forward, rotary_forward, silu_and_mul_forward
from sglang_dspark.ops.packed import either_linear, pack, packable

TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 4e-2}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def norm_layer(size: int, dtype: torch.dtype, **unusual) -> SimpleNamespace:
    plain = {
        "variance_size_override": None,
        "cast_x_before_out_mul": False,
        "fp32_residual": False,
        "forward_native": lambda *args: "native",
    }
    plain |= {"weight": torch.randn(size).to(dtype), "variance_epsilon": 1e-6}
    return SimpleNamespace(**{**plain, **unusual})


def close(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return (got.double() - wanted.double()).abs().max().item() < TOLERANCE[got.dtype]


@dtypes
def test_rms_norm_is_normalise_then_weight(dtype):
    layer, x = norm_layer(24, dtype), torch.randn(5, 24).to(dtype)
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    assert close(rms_norm_forward(layer, x), exact * layer.weight.double())


@dtypes
def test_rms_norm_adds_the_residual_first_and_returns_it(dtype):
    layer, x, residual = norm_layer(24, dtype), *torch.randn(2, 5, 24).to(dtype)
    before = x.clone(), residual.clone()
    out, total = rms_norm_forward(layer, x, residual)
    assert torch.equal(total, before[0] + before[1])
    assert torch.equal(out, rms_norm_forward(layer, total))
    assert torch.equal(x, before[0])


@pytest.mark.parametrize(
    "unusual",
    [
        {"variance_size_override": 8},
        {"cast_x_before_out_mul": True},
        {"fp32_residual": True},
        {"weight": torch.ones(24, dtype=torch.float64)},
    ],
    ids=lambda unusual: next(iter(unusual)),
)
def test_unusual_norms_are_left_to_sglang(unusual):
    assert rms_norm_forward(norm_layer(24, torch.float32, **unusual), torch.ones(1, 24)) == "native"


@dtypes
def test_silu_and_mul(dtype):
    x = torch.randn(3, 14).to(dtype)
    gate, up = x.double().chunk(2, -1)
    assert close(silu_and_mul_forward(None, x), gate * gate.sigmoid() * up)


def rotary(size: int, dtype: torch.dtype, **unusual) -> SimpleNamespace:
    angles = torch.arange(64)[:, None] / 100 ** (torch.arange(size // 2) / (size // 2))
    plain = {"head_size": size, "rotary_dim": size, "is_neox_style": True}
    cache = torch.cat((angles.cos(), angles.sin()), -1).to(dtype)
    native = {"forward_native": lambda *args: "native"}
    return SimpleNamespace(cos_sin_cache=cache, **{**plain, **native, **unusual})


@dtypes
def test_rotary_rotates_each_pair_of_halves(dtype):
    layer, positions = rotary(8, dtype), torch.tensor([0, 3, 63, 3])
    query, key = torch.randn(4, 4 * 8).to(dtype), torch.randn(4, 2 * 8).to(dtype)
    cos, sin = (part.double()[:, None] for part in layer.cos_sin_cache[positions].chunk(2, -1))
    for got, given in zip(rotary_forward(layer, positions, query, key), (query, key), strict=True):
        a, b = given.double().view(4, -1, 8).chunk(2, -1)
        wanted = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        assert got.shape == given.shape
        assert close(got, wanted.view_as(given))


def test_rotary_follows_a_cache_that_was_replaced():
    layer, positions, x = rotary(8, torch.float32), torch.tensor([5]), torch.randn(1, 8)
    before, _ = rotary_forward(layer, positions, x, x)
    layer.cos_sin_cache = layer.cos_sin_cache.roll(1, dims=0)
    after, _ = rotary_forward(layer, positions, x, x)
    moved, _ = rotary_forward(rotary(8, torch.float32), torch.tensor([4]), x, x)
    assert not torch.equal(before, after)
    assert torch.equal(after, moved)


@pytest.mark.parametrize("unusual", [{"is_neox_style": False}, {"rotary_dim": 4}], ids=str)
def test_unusual_rotations_are_left_to_sglang(unusual):
    layer = rotary(8, torch.float32, **unusual)
    x = torch.ones(1, 8)
    assert rotary_forward(layer, torch.tensor([0]), x, x) == "native"


@dtypes
@pytest.mark.parametrize("rows", [1, 7, 65])
def test_a_packed_product_equals_the_plain_one(dtype, rows):
    weight, bias = torch.randn(48, 32).to(dtype), torch.randn(48).to(dtype)
    if not packable(weight):
        pytest.skip(f"oneDNN has no {dtype} on this processor")
    packed, x = pack(weight), torch.randn(rows, 32).to(dtype)
    for added in (None, bias):
        got = either_linear(packed, weight, x, added)
        exact = linear(x.double(), weight.double(), None if added is None else added.double())
        assert (got.double() - exact).abs().max() < 20 * TOLERANCE[dtype]
    assert either_linear(packed, weight, x[:0]).shape == (0, 48)
