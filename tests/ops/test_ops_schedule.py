"""Survival and allocation on the device equal their core twins; compact equals cap-accept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sglang_dspark.core import allocate as ref_allocate
from sglang_dspark.core import survival as ref
from sglang_dspark.ops import survival as ops
from sglang_dspark.ops.accept import accept_mixed, accept_sampled
from sglang_dspark.ops.allocate import allocate
from sglang_dspark.ops.layout import pack, row_layout
from sglang_dspark.ops.noise import BlockNoise

GAMMA, VOCAB = 7, 11


def confidence_batches():
    """Random and adversarial: ties, dead rows, NaN, 1 and 512 requests."""
    rng = np.random.default_rng(0)
    for num_requests in (1, 2, 9, 512):
        yield rng.random((num_requests, GAMMA))
        yield np.round(rng.random((num_requests, GAMMA)) * 2) / 2
        yield np.ones((num_requests, GAMMA))
        yield np.zeros((num_requests, GAMMA))
        dead = rng.random((num_requests, GAMMA))
        dead[rng.random(dead.shape) < 0.2] = np.nan
        dead[rng.random(dead.shape) < 0.1] = np.inf
        dead[::3, 0] = 0.0
        yield dead
    yield rng.random((4, 1))


@pytest.mark.parametrize("confidence", list(confidence_batches()), ids=lambda c: str(c.shape))
def test_equals_the_core_twins(confidence):
    confidence = confidence.astype(np.float32)
    expected = ref.survivals(confidence)
    survival = ops.survivals(torch.from_numpy(confidence.copy()))
    assert np.array_equal(survival.numpy(), expected)
    for budget in {
        0,
        1,
        3,
        expected.size // 3,
        expected.size - 1,
        expected.size,
        expected.size + 5,
    }:
        lens = allocate(survival, budget)
        assert lens.dtype == torch.int64
        assert lens.tolist() == ref_allocate.allocate(expected, budget).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_confidences_equal_the_core_twin(dtype):
    logits = torch.randn(64, GAMMA, generator=torch.Generator().manual_seed(0)).mul(6).to(dtype)
    logits[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    temperatures = torch.linspace(0.5, 3.0, GAMMA + 1, dtype=torch.float64)
    for t in (None, temperatures):
        expected = ref.confidences(logits.double().numpy(), None if t is None else t.tolist())
        # exp may differ in its last float64 bit; rounded to float32 that is at most one step.
        np.testing.assert_array_almost_equal_nulp(ops.confidences(logits, t).numpy(), expected, 1)
        both = ops.survivals(ops.confidences(logits, t))
        assert torch.equal(ops.survivals_of_logits(logits, t), both)
    assert ops.confidences(logits)[0, :3].tolist() == [0, 0, 0]


def test_no_requests():
    assert allocate(torch.zeros(0, GAMMA), 3).tolist() == []
    assert ops.survivals(torch.zeros(0, GAMMA)).shape == (0, GAMMA)


def test_the_input_is_left_alone():
    confidence = torch.full((2, 3), 0.5)
    ops.survivals(confidence)
    assert torch.equal(confidence, torch.full((2, 3), 0.5))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nothing_is_read_back(device):
    with FakeTensorMode(), torch.device(device):
        survival = ops.survivals(ops.confidences(torch.rand(3, GAMMA), torch.ones(GAMMA)))
        lens = allocate(survival, 5)
        assert row_layout(lens, 3 + 5).request.shape == (8,)


def step(seed, bs, greedy_drafts=False):
    generator = torch.Generator().manual_seed(seed)
    target = torch.rand(bs, GAMMA + 1, VOCAB, generator=generator).pow_(4)
    target /= target.sum(-1, keepdim=True)
    draft = (target[:, :GAMMA] + torch.rand(bs, GAMMA, VOCAB, generator=generator)).float()
    draft /= draft.sum(-1, keepdim=True)
    drafts = torch.multinomial(draft.flatten(0, 1), 1, generator=generator).view(bs, GAMMA)
    confidence = torch.rand(bs, GAMMA, generator=generator).sqrt_()
    seeds = torch.randint(1 << 40, (bs,), generator=generator)
    uniforms = BlockNoise(GAMMA, "cpu")(seeds, torch.arange(bs) + 100)
    return target, None if greedy_drafts else draft, drafts, ops.survivals(confidence), uniforms


@pytest.mark.parametrize("greedy_drafts", [False, True])
@pytest.mark.parametrize("bs", [1, 8, 64])
def test_compact_and_cap_accept_commit_the_same_bits(bs, greedy_drafts):
    """Packed rows of the windows against all rows, cut first and decided afterwards."""
    for seed in range(20):
        target, draft, drafts, survival, u = step(seed, bs, greedy_drafts)
        deterministic = torch.arange(bs) % 3 == 0
        for budget in (0, bs, 3 * bs, 7 * bs):
            lens = allocate(survival, budget)
            layout = row_layout(lens, bs + budget)
            full = accept_sampled(drafts, draft, target, lens, u)
            packed = accept_sampled(drafts, draft, pack(target, layout), lens, u, layout.row_start)
            assert torch.equal(full.accepted, packed.accepted)
            assert torch.equal(full.next_token, packed.next_token)
            assert bool((full.accepted <= lens).all())
            ceiling = accept_sampled(drafts, draft, target, None, u)
            assert torch.equal(full.accepted, torch.minimum(ceiling.accepted, lens))
            argmax = target.argmax(-1)
            mixed = accept_mixed(drafts, draft, target, lens, u, deterministic, argmax)
            mixed_packed = accept_mixed(
                drafts,
                draft,
                pack(target, layout),
                lens,
                u,
                deterministic,
                argmax,
                layout.row_start,
            )
            assert torch.equal(mixed.accepted, mixed_packed.accepted)
            assert torch.equal(mixed.next_token, mixed_packed.next_token)


def test_padded_rows_change_nothing():
    """A tier's padding, 32 x 6 in 192 rows and more: real rows are decided as without it."""
    target, draft, drafts, survival, u = step(1, 32)
    lens = allocate(survival, 130)
    exact, padded = row_layout(lens, 162), row_layout(lens, 192)
    a = accept_sampled(drafts, draft, pack(target, exact), lens, u, exact.row_start)
    b = accept_sampled(drafts, draft, pack(target, padded), lens, u, padded.row_start)
    assert torch.equal(a.accepted, b.accepted) and torch.equal(a.next_token, b.next_token)
    assert padded.is_real.sum() == 162
