"""Heads against the plain reference, on random weights, token by token."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sglang_dspark.draft.checkpoint import DraftConfig, read_draft_config
from sglang_dspark.draft.heads import (
    MarkovHead,
    TabledVanillaHead,
    VanillaHead,
    build_confidence_head,
    build_markov_head,
)
from sglang_dspark.draft.weights import load_draft_weights
from tests.draft.conftest import tiny_target
from tests.draft.reference import ReferenceDraft, load_target
from tests.planted import HIDDEN, Pair

MakePair = Callable[..., Pair]
GAMMA = 5


def load(pair: Pair, vocab_size: int = 320) -> tuple[DraftConfig, dict[str, Tensor]]:
    config = read_draft_config(pair.draft)
    target = tiny_target(vocab_size=vocab_size)
    return config, load_draft_weights(config, target, dtype=torch.float32)


def biases(head: MarkovHead, prev_tokens: Tensor, h: Tensor) -> Tensor:
    """[bs, gamma], [bs, gamma, H] -> [bs, gamma, V]."""
    state = head.start(h.shape[0])
    out = []
    for k in range(h.shape[1]):
        bias, state = head.bias(state, prev_tokens[:, k], h[:, k])
        out.append(bias)
    return torch.stack(out, dim=1)


def reference_biases(draft: ReferenceDraft, prev_tokens: Tensor, h: Tensor) -> Tensor:
    rows = []
    for tokens, hidden in zip(prev_tokens.tolist(), h, strict=True):
        state = torch.zeros(draft.config.markov_rank)
        for token, h_k in zip(tokens, hidden, strict=True):
            bias, state = draft.markov_bias(state, token, h_k)
            rows.append(bias)
    return torch.stack(rows).view(*h.shape[:2], -1)


def random_block(batch_size: int, vocab_size: int = 320) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch_size)
    prev_tokens = torch.randint(0, vocab_size, (batch_size, GAMMA), generator=generator)
    return prev_tokens, torch.randn(batch_size, GAMMA, HIDDEN, generator=generator)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("head_type", ["vanilla", "gated", "rnn"])
def test_markov_bias_is_the_reference(
    random_pair: MakePair, head_type: str, batch_size: int
) -> None:
    pair = random_pair(head_type=head_type)
    reference = ReferenceDraft(pair.draft, load_target(pair.target))
    prev_tokens, h = random_block(batch_size)
    ours = biases(build_markov_head(*load(pair)), prev_tokens, h)
    wanted = reference_biases(reference, prev_tokens, h)
    assert wanted.std() > 0.3  # the test would be blind to small biases
    torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head_type", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize(("target_rows", "draft_rows"), [(300, 320), (320, 300)])
def test_markov_bias_with_padded_vocabularies(
    random_pair: MakePair, head_type: str, target_rows: int, draft_rows: int
) -> None:
    pair = random_pair(head_type=head_type, vocab_size=target_rows, draft_vocab_size=draft_rows)
    reference = ReferenceDraft(pair.draft, load_target(pair.target))
    prev_tokens, h = random_block(2, target_rows)
    prev_tokens[0, 1] = target_rows - 1  # a row that the smaller draft lacks
    ours = biases(build_markov_head(*load(pair, target_rows)), prev_tokens, h)
    assert ours.shape == (2, GAMMA, target_rows)
    wanted = reference_biases(reference, prev_tokens, h)
    torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)


def test_a_large_vocabulary_gets_no_square_table(random_pair: MakePair) -> None:
    config, weights = load(random_pair())
    tabled = build_markov_head(config, weights)
    plain = build_markov_head(config, weights, max_table_bytes=4 * 320 * 320 - 1)
    assert isinstance(tabled, TabledVanillaHead)
    assert isinstance(plain, VanillaHead)
    prev_tokens, h = random_block(2)
    torch.testing.assert_close(biases(tabled, prev_tokens, h), biases(plain, prev_tokens, h))


def test_a_bias_may_be_changed_in_place(random_pair: MakePair) -> None:
    head = build_markov_head(*load(random_pair()))
    prev_tokens, h = random_block(1)
    before = biases(head, prev_tokens, h)
    head.bias(head.start(1), prev_tokens[:, 0], h[:, 0])[0].zero_()
    assert torch.equal(biases(head, prev_tokens, h), before)


def test_rnn_state_reaches_only_later_positions(random_pair: MakePair) -> None:
    head = build_markov_head(*load(random_pair(head_type="rnn")))
    prev_tokens, h = random_block(1)
    before = biases(head, prev_tokens, h)
    changed = prev_tokens.clone()
    changed[0, 2] = (changed[0, 2] + 1) % 320
    moved = (biases(head, changed, h) - before).abs().amax(-1)[0] > 1e-4
    assert moved.tolist() == [False, False, True, True, True]


def test_zero_gate_logits_halve_the_vanilla_bias(random_pair: MakePair) -> None:
    config, weights = load(random_pair(head_type="gated"))
    for name in ("weight", "bias"):
        key = f"markov_head.gate_proj.{name}"
        weights[key] = torch.zeros_like(weights[key])
    prev_tokens, h = random_block(1)
    vanilla = VanillaHead(
        w1=weights["markov_head.markov_w1.weight"], w2=weights["markov_head.markov_w2.weight"]
    )
    ours = biases(build_markov_head(config, weights), prev_tokens, h)
    torch.testing.assert_close(ours, biases(vanilla, prev_tokens, h) / 2)


@pytest.mark.parametrize("head_type", ["vanilla", "rnn"])
@pytest.mark.parametrize("with_markov", [True, False])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_confidence_is_the_reference(
    random_pair: MakePair, head_type: str, with_markov: bool, batch_size: int
) -> None:
    pair = random_pair(head_type=head_type, confidence_with_markov=with_markov)
    reference = ReferenceDraft(pair.draft, load_target(pair.target))
    head = build_confidence_head(*load(pair))
    assert head is not None
    prev_tokens, h = random_block(batch_size)
    wanted = torch.stack(
        [
            torch.stack([reference.confidence_logit(x, h_k) for x, h_k in zip(t, hid, strict=True)])
            for t, hid in zip(prev_tokens.tolist(), h, strict=True)
        ]
    )
    torch.testing.assert_close(head.logits(h, prev_tokens), wanted, rtol=1e-5, atol=1e-5)


def test_confidence_logits_are_fp32_whatever_the_draft(random_pair: MakePair) -> None:
    config = read_draft_config(random_pair().draft)
    weights = load_draft_weights(config, tiny_target(), dtype=torch.bfloat16)
    head = build_confidence_head(config, weights)
    assert head is not None
    prev_tokens, h = random_block(2)
    assert head.logits(h.bfloat16(), prev_tokens).dtype == torch.float32


def test_a_draft_without_confidence_head_has_none(random_pair: MakePair) -> None:
    assert build_confidence_head(*load(random_pair(confidence=False))) is None
