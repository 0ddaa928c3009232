"""Packed and full verification come to the same decision, for every kind of request."""

from __future__ import annotations

import pytest
import torch

from sglang_dspark.engine.rules import GreedyRule, Noise, Requested, SampledRule, Verified
from sglang_dspark.ops.filters import Filters
from sglang_dspark.ops.layout import pack, row_layout
from sglang_dspark.ops.markov import sample_block
from sglang_dspark.ops.noise import BlockNoise, CoupledNoise

BS, GAMMA, VOCAB, HIDDEN = 5, 4, 11, 3


def sampled_rule(num_drafts: int, coupled: bool, filtered: bool) -> SampledRule:
    filters = Filters(
        top_k=torch.tensor([3, VOCAB, 5, VOCAB, VOCAB]),
        top_p=torch.tensor([1.0, 0.9, 0.8, 1.0, 1.0]),
        min_p=torch.tensor([0.0, 0.0, 0.1, 0.2, 0.0]),
        backend="pytorch",
        max_top_k=None,
    )
    return SampledRule(
        Requested(
            temperature=torch.tensor([1.0, 0.7, 1.3, 1.0, 1.0]),
            greedy=torch.tensor([False, False, False, False, True]),
            coupled=torch.tensor([False, True, False, False, False]) if coupled else None,
            filters=filters if filtered else None,
        ),
        seeds=torch.arange(BS) * 7919 + 13,
        anchors=torch.tensor([4, 9, 100, 3, 57]),
        noise=Noise(BlockNoise(GAMMA, "cpu"), CoupledNoise(VOCAB, "cpu")),
        num_drafts=num_drafts,
        vocab_size=VOCAB,
    )


@pytest.mark.parametrize("num_drafts", [1, 3, GAMMA])
@pytest.mark.parametrize("kind", ["greedy", "sampled", "coupled", "filtered"])
@pytest.mark.parametrize("seed", range(8))
def test_packed_rows_and_all_rows_decide_alike(num_drafts, kind, seed):
    generator = torch.Generator().manual_seed(seed)
    rule = (
        GreedyRule()
        if kind == "greedy"
        else sampled_rule(num_drafts, kind != "sampled", kind == "filtered")
    )
    base = torch.randn(BS, num_drafts, VOCAB, generator=generator)
    hidden = torch.zeros(BS, num_drafts, HIDDEN)
    anchors = torch.zeros(BS, dtype=torch.int64)
    block = sample_block(base, hidden, anchors, None, rule.chooser(num_drafts))
    logits = torch.randn(BS, num_drafts + 1, VOCAB, generator=generator)
    logits[:, :-1] += 2 * base  # so that drafts are accepted now and then
    lens = torch.randint(0, num_drafts + 1, (BS,), generator=generator)
    layout = row_layout(lens, int((lens + 1).sum()))

    full = rule.accept(block, Verified(logits.flatten(0, 1), None, lens))
    packed = rule.accept(block, Verified(pack(logits, layout), layout, lens))
    assert torch.equal(full.accepted, packed.accepted)
    assert torch.equal(full.next_token, packed.next_token)
    assert (full.accepted <= lens).all()


@pytest.mark.parametrize("coupled", [False, True])
def test_a_first_token_and_an_empty_window_draw_alike(coupled):
    """No drafts: the anchor's row alone decides, with the same noise as a no-draft step."""
    rule = sampled_rule(0, coupled, True)
    logits = torch.randn(BS, VOCAB, generator=torch.Generator().manual_seed(3))
    drawn = rule.draw(logits)
    whole = sampled_rule(GAMMA, coupled, True)
    block = sample_block(
        torch.randn(BS, GAMMA, VOCAB),
        torch.zeros(BS, GAMMA, HIDDEN),
        torch.zeros(BS, dtype=torch.int64),
        None,
        whole.chooser(GAMMA),
    )
    lens = torch.zeros(BS, dtype=torch.int64)
    empty = whole.accept(block, Verified(logits, row_layout(lens, BS), lens))
    assert torch.equal(drawn, empty.next_token)
