"""The device rule takes the decisions of `core/accept`, one request at a time."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sglang_dspark.core import accept as ref
from sglang_dspark.core import draw as core_draw
from sglang_dspark.ops.accept import accept_mixed, accept_sampled, accept_tokens
from sglang_dspark.ops.draw import LEAST_VALUES, best_token, inverse_cdf, race
from sglang_dspark.ops.layout import pack, row_layout
from sglang_dspark.ops.noise import BlockNoise, BlockUniforms, CoupledNoise

BELOW_ONE = 1.0 - 2.0**-53
ABOVE_ZERO = 2.0**-53


def laws(seed, bs, gamma, vocab, dtype=torch.float32, spiky=False):
    """(drafts, draft_probs, target_probs); `spiky` mixes in one-hot rows, zeros and equal laws."""
    rng = np.random.default_rng(seed)
    draft = rng.dirichlet(np.full(vocab, 0.5), (bs, gamma))
    target = rng.dirichlet(np.full(vocab, 0.5), (bs, gamma + 1))
    target[:, :gamma] = 0.5 * target[:, :gamma] + 0.5 * draft
    if spiky:
        for probs in (draft, target):
            sharp = rng.random(probs.shape[:2]) < 0.3
            probs[sharp] = np.eye(vocab)[rng.integers(vocab, size=int(sharp.sum()))]
            holes = (rng.random(probs.shape) < 0.3) & (probs < 1)
            probs[holes] = 0.0
            empty = probs.sum(-1) == 0
            probs[empty] = 1 / vocab
            probs /= probs.sum(-1, keepdims=True)
        same = rng.random((bs, gamma)) < 0.2
        target[:, :gamma][same] = draft[same]
    draft, target = torch.tensor(draft).to(dtype), torch.tensor(target).to(dtype)
    drafts = inverse_cdf(draft, torch.tensor(rng.random((bs, gamma))))
    return drafts, draft, target


def random_uniforms(seed, bs, gamma, edges=False):
    rng = np.random.default_rng(seed)
    u = rng.random((bs, 2 * gamma + 2)).clip(ABOVE_ZERO, BELOW_ONE)
    if edges:
        ends = rng.choice([ABOVE_ZERO, 0.25, 0.5, BELOW_ONE], u.shape)
        u = np.where(rng.random(u.shape) < 0.4, ends, u)
    u = torch.tensor(u)
    return BlockUniforms(u[:, :gamma], u[:, gamma : 2 * gamma], u[:, -2], u[:, -1])


def reference(drafts, draft_probs, target_probs, lens, uniforms):
    out = [
        ref.accept_sampled(
            drafts[r].numpy(),
            None if draft_probs is None else draft_probs[r].numpy(),
            target_probs[r].numpy(),
            int(lens[r]),
            uniforms.accept[r].numpy(),
            float(uniforms.residual[r]),
            float(uniforms.bonus[r]),
        )
        for r in range(len(drafts))
    ]
    return [o.accepted for o in out], [o.next_token for o in out]


def assert_same(out, expected):
    assert out.accepted.tolist() == expected[0]
    assert out.next_token.tolist() == expected[1]
    assert out.accepted.dtype == out.next_token.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("point_mass", [False, True])
def test_same_decisions_on_a_dense_grid_of_uniforms(dtype, point_mass):
    """Every (accept_1, accept_2, last draw) on a grid that includes both ends, every window."""
    axis = np.concatenate(([ABOVE_ZERO], np.linspace(0, 1, 13)[1:-1], [BELOW_ONE]))
    grid = torch.tensor(np.array(list(product(axis, axis, axis))))
    drafts, draft, target = laws(11, 1, 2, 4, dtype)
    for length in range(3):
        n = len(grid)
        lens = torch.full((n,), length)
        u = BlockUniforms(grid[:, :2], grid[:, :2], grid[:, 2], grid[:, 2].flip(0))
        args = [
            drafts.expand(n, -1),
            None if point_mass else draft.expand(n, -1, -1),
            target.expand(n, -1, -1),
            lens,
            u,
        ]
        assert_same(accept_sampled(*args), reference(*args))


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    bs=st.integers(1, 12),
    gamma=st.integers(0, 4),
    vocab=st.integers(1, 6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    point_mass=st.booleans(),
)
def test_same_decisions_on_adversarial_laws(seed, bs, gamma, vocab, dtype, point_mass):
    drafts, draft, target = laws(seed, bs, gamma, vocab, dtype, spiky=True)
    lens = torch.tensor(np.random.default_rng(seed).integers(0, gamma + 1, bs))
    u = random_uniforms(seed, bs, gamma, edges=True)
    args = [drafts, None if point_mass else draft, target, lens, u]
    expected = reference(*args)
    assert_same(accept_sampled(*args), expected)

    layout = row_layout(lens, int(lens.sum()) + bs + 3)  # packed, with three padding rows
    packed = accept_sampled(drafts, args[1], pack(target, layout), lens, u, layout.row_start)
    assert_same(packed, expected)
    final = torch.tensor([target[r, a, t] for r, (a, t) in enumerate(zip(*expected, strict=True))])
    assert bool((final > 0).all())


def test_no_window_is_the_whole_block():
    drafts, draft, target = laws(3, 64, 5, 9)
    u = random_uniforms(3, 64, 5)
    whole = accept_sampled(drafts, draft, target, torch.full((64,), 5), u)
    static = accept_sampled(drafts, draft, target, None, u)
    assert torch.equal(static.accepted, whole.accepted)
    assert torch.equal(static.next_token, whole.next_token)
    assert set(static.accepted.tolist()) == set(range(6))


@pytest.mark.parametrize("bs", [1, 512])
def test_a_request_is_decided_alone(bs):
    drafts, draft, target = laws(5, 512, 7, 50)
    u = random_uniforms(5, 512, 7)
    lens = torch.arange(512) % 8
    full = accept_sampled(drafts, draft, target, lens, u)
    part = BlockUniforms(u.draft[:bs], u.accept[:bs], u.residual[:bs], u.bonus[:bs])
    some = accept_sampled(drafts[:bs], draft[:bs], target[:bs], lens[:bs], part)
    assert torch.equal(some.accepted, full.accepted[:bs])
    assert torch.equal(some.next_token, full.next_token[:bs])
    assert_same(full, reference(drafts, draft, target, lens, u))


def test_rows_after_the_window_are_never_looked_at():
    """Compact and cap-accept agree: the rows that only cap-accept has may hold anything."""
    drafts, draft, target = laws(6, 40, 3, 5)
    lens = torch.arange(40) % 4
    u = random_uniforms(6, 40, 3)
    expected = accept_sampled(drafts, draft, target, lens, u)
    steps = torch.arange(4)
    target[steps > lens[:, None]] = torch.nan
    draft[steps[:3] >= lens[:, None]] = torch.nan
    out = accept_sampled(drafts, draft, target, lens, u)
    assert torch.equal(out.accepted, expected.accepted)
    assert torch.equal(out.next_token, expected.next_token)


def test_equality_rejects():
    """u q = p exactly: the reference and the device say no, so u in (0, p/q) accepts."""
    p, q = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]]), torch.tensor([[[0.5, 0.5]]])
    half = torch.tensor([0.5], dtype=torch.float64)
    u = BlockUniforms(half[:, None], half[:, None], half, half)
    out = accept_sampled(torch.tensor([[0]]), q, p, None, u)
    assert_same(out, reference(torch.tensor([[0]]), q, p, [1], u))
    assert out.accepted.tolist() == [0]


def test_a_residual_without_mass_falls_back_to_the_target():
    p = torch.tensor([[[0.5, 0.5 - 1e-7], [0.5, 0.5]]])
    q = torch.tensor([[[0.5, 0.5]]])
    last = torch.tensor([BELOW_ONE])
    u = BlockUniforms(last[:, None], last[:, None], torch.tensor([0.9]), torch.tensor([0.1]))
    out = accept_sampled(torch.tensor([[1]]), q, p, None, u)
    assert (out.accepted.tolist(), out.next_token.tolist()) == ([0], [1])


def test_deterministic_rows_equal_the_reference():
    rng = np.random.default_rng(8)
    target = torch.tensor(rng.integers(0, 3, (200, 5)))
    drafts = torch.where(torch.tensor(rng.random((200, 4)) < 0.7), target[:, :-1], 1)
    lens = torch.tensor(rng.integers(0, 5, 200))
    out = accept_tokens(drafts, target, lens)
    expected = [
        ref.accept_tokens(drafts[r].numpy(), target[r].numpy(), int(lens[r])) for r in range(200)
    ]
    assert out.accepted.tolist() == [e.accepted for e in expected]
    assert out.next_token.tolist() == [e.next_token for e in expected]
    whole = accept_tokens(drafts, target)
    assert torch.equal(
        whole.accepted, accept_tokens(drafts, target, torch.full((200,), 4)).accepted
    )


def test_a_mixed_batch_is_both_kinds_side_by_side():
    drafts, draft, target = laws(9, 60, 3, 4)
    u, lens = random_uniforms(9, 60, 3), torch.arange(60) % 4
    fixed = torch.arange(60) % 3 == 0
    tokens = target.argmax(-1)
    drafts[fixed] = torch.where(torch.rand(20, 3) < 0.7, tokens[fixed][:, :3], drafts[fixed])
    mixed = accept_mixed(drafts, draft, target, lens, u, fixed, tokens)
    greedy, sampled = (
        accept_tokens(drafts, tokens, lens),
        accept_sampled(drafts, draft, target, lens, u),
    )
    for name in ("accepted", "next_token"):
        got, a, b = (getattr(o, name) for o in (mixed, greedy, sampled))
        assert torch.equal(got[fixed], a[fixed]) and torch.equal(got[~fixed], b[~fixed])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_at_both_ends_stay_on_tokens_with_weight(dtype):
    weights = torch.rand(300, 1000, dtype=dtype) * (torch.rand(300, 1000) < 0.02)
    weights[:, [0, -1]] = 0.0
    weights *= torch.logspace(-30, 3, 300, dtype=dtype)[:, None]
    has_weight = (weights > 0).any(-1)
    ends = (torch.full((300,), u, dtype=torch.float64) for u in (ABOVE_ZERO, BELOW_ONE))
    first, last = (inverse_cdf(weights, u) for u in ends)
    positive = (weights > 0)[has_weight]
    assert torch.equal(first[has_weight], positive.to(torch.uint8).argmax(-1))
    # Weights below an ulp of the sum before them can not move it, so "last" means last to move.
    picked = weights[has_weight].gather(1, last[has_weight, None])
    assert bool((picked > 0).all())
    assert inverse_cdf(torch.zeros(1, 3), torch.tensor([0.5])).tolist() == [0]


@pytest.mark.parametrize("vocab", [65, 4096, 5003])
def test_long_rows_are_drawn_as_the_twin_draws(vocab):
    """In two steps, with every uniform at a boundary of two tokens: weights are exact sums."""
    rng = np.random.default_rng(vocab)
    bs = 2 * LEAST_VALUES // vocab + 1
    weights = rng.integers(0, 4, size=(bs, vocab)) * (rng.random((bs, vocab)) < 0.5)
    weights[:, 100:300] = 0  # blocks without any weight
    weights[0] = 0
    weights[1, :] = 0
    weights[1, vocab - 1] = 2
    weights = weights.astype(np.float32)
    total = weights.sum(1, dtype=np.float64)
    marks = np.floor(rng.random(bs) * np.maximum(total, 1))
    for shift in (0.0, 1e-12, 1e-3):
        u = np.clip(marks / np.maximum(total, 1) + shift, ABOVE_ZERO, BELOW_ONE)
        got = inverse_cdf(torch.from_numpy(weights), torch.from_numpy(u))
        assert got.tolist() == [
            core_draw.inverse_cdf(w, x) for w, x in zip(weights, u, strict=True)
        ]


def test_a_block_whose_sum_rounds_below_its_mark_still_gives_a_token_with_weight():
    rng = np.random.default_rng(8)
    weights = torch.from_numpy(rng.random((40, 4096)).astype(np.float32) ** 8)
    weights[torch.from_numpy(rng.random((40, 4096)) < 0.7)] = 0
    sums = weights.double().cumsum(-1)
    for _ in range(200):
        # Uniforms aimed at the ends of blocks, a rounding to either side.
        ends = torch.from_numpy(rng.integers(1, 64, size=(40, 1)) * 64 - 1)
        u = (sums.gather(1, ends) / sums[:, -1:]).squeeze(1)
        u = u * (1 + torch.from_numpy(rng.integers(-2, 3, size=40)) * 2.0**-53)
        drawn = inverse_cdf(weights, u.clamp(ABOVE_ZERO, BELOW_ONE))
        assert bool((weights.gather(1, drawn[:, None]) > 0).all())


@pytest.mark.parametrize("vocab", [65, 4096, 5003])
def test_the_best_token_of_long_rows_is_the_first_of_the_best(vocab):
    rng = np.random.default_rng(vocab)
    scores = torch.from_numpy(rng.integers(0, 50, size=(2 * LEAST_VALUES // vocab + 1, vocab)))
    scores = scores.float()
    scores[0] = -torch.inf
    scores[1, 70 % vocab :] = -torch.inf
    assert torch.equal(best_token(scores), torch.from_numpy(scores.numpy().argmax(-1)))
    scores[2, 64] = scores[2, 10] = torch.nan
    assert best_token(scores)[2] == 10


def test_race_breaks_ties_by_id_and_never_takes_probability_zero():
    noise = torch.full((2, 3), 22.0)
    assert race(torch.tensor([[0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]), noise).tolist() == [1, 2]


NUM_REQUESTS = 60_000


def simulate(accept=accept_sampled, argmax_drafts=False):
    """p-value of the first three tokens of many requests, keyed noise, windows 0..gamma."""
    vocab, gamma = 3, 2
    rng = np.random.default_rng(1)
    p_table = torch.tensor(rng.dirichlet(np.ones(vocab), vocab), dtype=torch.float32)
    q_table = torch.tensor(rng.dirichlet(np.ones(vocab), vocab), dtype=torch.float32)
    q_table = 0.5 * (p_table + q_table)
    noise, seeds = BlockNoise(gamma, "cpu"), torch.arange(NUM_REQUESTS)
    tokens = torch.zeros(NUM_REQUESTS, 3 * (gamma + 1) + 1, dtype=torch.int64)
    position = torch.zeros(NUM_REQUESTS, dtype=torch.int64)
    for step in range(3):
        u = noise(seeds, position)
        context = [tokens.gather(1, position[:, None]).squeeze(1)]
        for k in range(gamma):
            q = q_table[context[-1]]
            context.append(q.argmax(-1) if argmax_drafts else inverse_cdf(q, u.draft[:, k]))
        block = torch.stack(context, 1)
        lens = (seeds + step) % (gamma + 1)
        out = accept(block[:, 1:], q_table[block[:, :-1]], p_table[block], lens, u)
        for k in range(gamma + 1):
            value = out.next_token
            if k < gamma:
                value = torch.where(k < out.accepted, block[:, k + 1], out.next_token)
            tokens.scatter_(1, position[:, None] + 1 + k, value[:, None])
        position = position + out.accepted + 1
    counts = torch.bincount((tokens[:, 1:4] * torch.tensor([9, 3, 1])).sum(1), minlength=27)
    p = p_table.double().numpy()
    exact = np.array([p[0, a] * p[a, b] * p[b, c] for a, b, c in product(range(3), repeat=3)])
    return stats.chisquare(counts.numpy(), exact / exact.sum() * NUM_REQUESTS).pvalue


def test_keyed_noise_gives_the_targets_joint_law():
    assert simulate() > 1e-4


def test_argmax_drafts_are_point_masses():
    """faults.md B1: right with draft_probs None, visibly wrong with the law they are the top of."""

    def point_mass(drafts, q, p, lens, u):
        return accept_sampled(drafts, None, p, lens, u)

    assert simulate(point_mass, argmax_drafts=True) > 1e-4
    assert simulate(argmax_drafts=True) < 1e-9


def test_accept_noise_must_differ_from_draft_noise():
    def reused(drafts, q, p, lens, u):
        return accept_sampled(drafts, q, p, lens, replace(u, accept=u.draft))

    assert simulate(reused) < 1e-9


def coupled_tokens(windows, gamma, num_requests=20_000, length=6):
    """The tokens of seeded requests; `windows(step)` gives their draft_lens [n]."""
    rng = np.random.default_rng(2)
    p_table = torch.tensor(rng.dirichlet(np.ones(3), 3), dtype=torch.float32)
    q_table = torch.tensor(rng.dirichlet(np.ones(3), 3), dtype=torch.float32)
    q_table = 0.5 * (p_table + q_table)
    noise, seeds = CoupledNoise(3, "cpu"), torch.arange(num_requests)
    tokens = torch.zeros(num_requests, length * (gamma + 1) + 1, dtype=torch.int64)
    position, total = torch.zeros(num_requests, dtype=torch.int64), 0
    for step in range(length):
        shared = noise(seeds, position, gamma + 1)
        context = [tokens.gather(1, position[:, None]).squeeze(1)]
        for k in range(gamma):
            context.append(race(q_table[context[-1]], shared[:, k]))
        block = torch.stack(context, 1)
        out = accept_tokens(block[:, 1:], race(p_table[block], shared), windows(step))
        for k in range(gamma + 1):
            value = out.next_token
            if k < gamma:
                value = torch.where(k < out.accepted, block[:, k + 1], out.next_token)
            tokens.scatter_(1, position[:, None] + 1 + k, value[:, None])
        position = position + out.accepted + 1
        total += int(out.accepted.sum())
    p = p_table.double().numpy()
    return tokens[:, 1 : length + 1], p, total / (num_requests * length)


def test_coupled_tokens_do_not_depend_on_the_window_and_follow_the_target():
    n = 20_000
    plain, p, _ = coupled_tokens(lambda step: torch.zeros(n, dtype=torch.int64), 2)
    whole, _, accepted = coupled_tokens(lambda step: None, 3)
    varied, _, _ = coupled_tokens(lambda step: (torch.arange(n) + step) % 3, 2)
    assert torch.equal(plain, whole) and torch.equal(plain, varied)
    assert accepted > 0.5
    counts = torch.bincount((plain[:, :3] * torch.tensor([9, 3, 1])).sum(1), minlength=27)
    exact = np.array([p[0, a] * p[a, b] * p[b, c] for a, b, c in product(range(3), repeat=3)])
    assert stats.chisquare(counts.numpy(), exact / exact.sum() * n).pvalue > 1e-4
