from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from sglang_dspark.ops.draw import inverse_cdf, race
from sglang_dspark.ops.markov import Coupled, Greedy, Mixed, Sampled, sample_block
from sglang_dspark.ops.noise import BlockNoise, CoupledNoise

BS, GAMMA, VOCAB, HIDDEN = 6, 4, 11, 5


class ToyHead:
    """Carries a state, looks at the hidden state and at the token before."""

    def __init__(self):
        rng = torch.Generator().manual_seed(1)
        self.table = torch.randn(VOCAB, VOCAB, generator=rng) * 2
        self.mix = torch.randn(HIDDEN, VOCAB, generator=rng)

    def start(self, num_reqs):
        return torch.zeros(num_reqs, VOCAB)

    def bias(self, state, prev_tokens, hidden):
        state = 0.5 * state + self.table[prev_tokens]
        return torch.tanh(state + hidden @ self.mix), state


@pytest.fixture
def block():
    rng = torch.Generator().manual_seed(2)
    base = torch.randn(BS, GAMMA, VOCAB, generator=rng) * 2
    hidden = torch.randn(BS, GAMMA, HIDDEN, generator=rng)
    anchors = torch.randint(VOCAB, (BS,), generator=rng)
    return base, hidden, anchors


def plain_loop(base, hidden, anchors, head, choose):
    """One request at a time; returns tokens and the logits each was chosen from."""
    tokens, logits = torch.zeros(BS, GAMMA, dtype=torch.int64), torch.zeros(BS, GAMMA, VOCAB)
    for r in range(BS):
        prev, state = anchors[r : r + 1], head.start(1)
        for k in range(GAMMA):
            bias, state = head.bias(state, prev, hidden[r : r + 1, k])
            logits[r, k] = base[r, k] + bias[0]
            tokens[r, k] = choose(r, k, logits[r, k])
            prev = tokens[r, k : k + 1]
    return tokens, logits


def kinds(base, hidden, anchors):
    noise = BlockNoise(GAMMA, "cpu")(torch.arange(BS), torch.arange(BS) + 40)
    shared = CoupledNoise(VOCAB, "cpu")(torch.arange(BS), torch.arange(BS) + 40, GAMMA + 1)
    temperature = torch.tensor([1.0, 0.5, 2.0, 1.0, 0.7, 1.3])

    def greedy(r, k, z):
        return z.argmax()

    def sampled(r, k, z):
        return inverse_cdf(torch.softmax(z / temperature[r], -1), noise.draft[r, k])

    def coupled(r, k, z):
        return race(torch.softmax(z / temperature[r], -1), shared[r, k])

    return noise, shared, temperature, (greedy, sampled, coupled)


def test_greedy(block):
    tokens, _ = plain_loop(*block, ToyHead(), lambda r, k, z: z.argmax())
    out = sample_block(*block, ToyHead(), Greedy())
    assert torch.equal(out.tokens, tokens) and out.probs is None
    assert out.tokens.dtype == torch.int64


def test_sampled_hands_over_the_law_it_drew_from(block):
    noise, _, temperature, (_, sampled, _) = kinds(*block)
    tokens, logits = plain_loop(*block, ToyHead(), sampled)
    out = sample_block(*block, ToyHead(), Sampled(temperature, noise.draft, VOCAB))
    assert torch.equal(out.tokens, tokens)
    expected = torch.softmax(logits / temperature[:, None, None], -1)
    torch.testing.assert_close(out.probs, expected, rtol=1e-5, atol=1e-7)
    again = torch.stack([inverse_cdf(out.probs[:, k], noise.draft[:, k]) for k in range(GAMMA)], 1)
    assert torch.equal(again, out.tokens)


def test_coupled(block):
    _, shared, temperature, (_, _, coupled) = kinds(*block)
    tokens, _ = plain_loop(*block, ToyHead(), coupled)
    out = sample_block(*block, ToyHead(), Coupled(temperature, shared))
    assert torch.equal(out.tokens, tokens) and out.probs is None


@pytest.mark.parametrize("with_coupled", [False, True])
def test_a_mixed_batch_gives_every_row_what_it_gets_alone(block, with_coupled):
    noise, shared, temperature, choosers = kinds(*block)
    kind = torch.arange(BS) % (3 if with_coupled else 2)
    tokens, _ = plain_loop(*block, ToyHead(), lambda r, k, z: choosers[int(kind[r])](r, k, z))
    chooser = Mixed(
        temperature, noise.draft, VOCAB, kind == 1, kind == 0, shared if with_coupled else None
    )
    out = sample_block(*block, ToyHead(), chooser)
    assert torch.equal(out.tokens, tokens)
    assert out.probs.shape == (BS, GAMMA, VOCAB)


def test_without_a_head_positions_are_independent(block):
    base, hidden, anchors = block
    out = sample_block(base, hidden, anchors, None, Greedy())
    assert torch.equal(out.tokens, base.argmax(-1))


def test_gated_zero_bias_and_greedy_ties_take_the_lowest_id():
    base = torch.tensor([[[0.0, 2.0, 2.0], [1.0, 1.0, 1.0]]])
    out = sample_block(
        base, torch.zeros(1, 2, 1), torch.zeros(1, dtype=torch.int64), None, Greedy()
    )
    assert out.tokens.tolist() == [[1, 0]]


def test_drafts_follow_their_law():
    n = 40_000
    base = torch.tensor([[0.3, -1.0, 1.2], [0.0, 0.5, -0.5]]).expand(n, 2, 3)
    noise = BlockNoise(2, "cpu")(torch.full((n,), 7), torch.arange(n))
    chooser = Sampled(torch.ones(n), noise.draft, 3)
    out = sample_block(base, torch.zeros(n, 2, 1), torch.zeros(n, dtype=torch.int64), None, chooser)
    counts = torch.bincount(out.tokens @ torch.tensor([3, 1]), minlength=9).numpy()
    q = torch.softmax(base[0].double(), -1).numpy()
    assert stats.chisquare(counts, np.outer(q[0], q[1]).ravel() * n).pvalue > 1e-4
