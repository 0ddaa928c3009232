"""The planted pairs do what they promise, judged by the reference alone; and the exact pair is
sensitive: every slip that an engine can make costs it acceptance.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, Qwen3ForCausalLM

from sglang_dspark.draft.checkpoint import read_draft_config
from sglang_dspark.draft.target import check_against_target
from sglang_dspark.draft.weights import check_same_target
from tests.draft.conftest import tiny_target
from tests.draft.reference import (
    ReferenceDraft,
    load_target,
    speculate_greedy,
    target_forward,
)
from tests.planted import (
    LAYER_IDS,
    LETTERS,
    Pair,
    copy_continuation,
    make_bigram_pair,
    make_copy_pair,
    make_garbage_pair,
    make_noisy_pair,
)

GAMMA = 7


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 320) for _ in range(length)]


def open_pair(pair: Pair) -> tuple[Qwen3ForCausalLM, ReferenceDraft]:
    target = load_target(pair.target)
    config = read_draft_config(pair.draft)
    check_against_target(config, tiny_target())
    assert check_same_target(config, target.model.embed_tokens.weight) is None
    return target, ReferenceDraft(pair.draft, target)


def greedy(target: Qwen3ForCausalLM, prompt: list[int], num_new: int) -> list[int]:
    ids = list(prompt)
    for _ in range(num_new):
        ids.append(int(target_forward(target, ids, LAYER_IDS)[0][-1].argmax()))
    return ids[len(prompt) :]


def test_speculation_with_the_reference_is_plain_greedy_decoding(tmp_path: Path) -> None:
    target, draft = open_pair(make_noisy_pair(tmp_path))
    out, accepted = speculate_greedy(target, draft, prompt_of(12), 40, GAMMA)
    assert out == greedy(target, prompt_of(12), len(out))
    assert 0 < sum(accepted) < GAMMA * len(accepted)


def test_garbage_is_never_accepted(tmp_path: Path) -> None:
    _, accepted = speculate_greedy(
        *open_pair(make_garbage_pair(tmp_path)), prompt_of(12), 40, GAMMA
    )
    assert set(accepted) == {0}


@pytest.mark.parametrize("head_type", ["vanilla", "gated"])
def test_bigram_is_always_accepted(tmp_path: Path, head_type: str) -> None:
    pair = make_bigram_pair(tmp_path, head_type=head_type)
    _, accepted = speculate_greedy(*open_pair(pair), prompt_of(12), 80, GAMMA)
    assert set(accepted) == {GAMMA}


def test_noisy_is_partly_right_and_six_tokens_hold_the_mass(tmp_path: Path) -> None:
    target, draft = open_pair(make_noisy_pair(tmp_path))
    generator = torch.Generator().manual_seed(0)
    ids, at_zero, at_one, mass = prompt_of(12), [], [], []
    for _ in range(60):
        logits, features = target_forward(target, ids, LAYER_IDS)
        p = logits[-1].double().softmax(-1)
        proposal = draft.propose(features[:-1], ids[-1], 1)
        q = proposal.logits[0].double().softmax(-1)
        at_zero.append(float(proposal.tokens[0] == p.argmax()))
        at_one.append(float(torch.minimum(p, q).sum()))
        mass.append(float(p[list(LETTERS)].sum()))
        ids.append(int(torch.multinomial(p, 1, generator=generator)))
    assert 0.2 < sum(at_zero) / 60 < 0.8
    assert 0.2 < sum(at_one) / 60 < 0.8
    assert sum(mass) / 60 > 0.97


# ----------------------------------------------------------------------- exact, through the context


@pytest.fixture(scope="module")
def copy_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_copy_pair(tmp_path_factory.mktemp("copy"), gamma=GAMMA)


@pytest.mark.parametrize("head_type", ["vanilla", "gated", "rnn"])
def test_copy_is_always_accepted(tmp_path: Path, head_type: str) -> None:
    pair = make_copy_pair(tmp_path, gamma=GAMMA, head_type=head_type)
    out, accepted = speculate_greedy(*open_pair(pair), prompt_of(16), 100, GAMMA)
    assert out == copy_continuation(prompt_of(16), len(out))
    assert set(accepted) == {GAMMA}


@pytest.mark.parametrize("length", [16, 1000])
@pytest.mark.parametrize("gamma", [1, 4, GAMMA])
def test_copy_is_exact_at_every_context_and_gamma(copy_pair: Pair, length: int, gamma: int) -> None:
    prompt = prompt_of(length, seed=length)
    out, accepted = speculate_greedy(*open_pair(copy_pair), prompt, 3, gamma)
    assert out == copy_continuation(prompt, len(out))
    assert set(accepted) == {gamma}


def test_copy_holds_at_eight_thousand_positions(copy_pair: Pair) -> None:
    """Without a forward of 8,000 positions: the features repeat nothing but the token's code."""
    target, draft = open_pair(copy_pair)
    prompt = prompt_of(8001, seed=8)
    # Features depend on the single token (layers below the last have no attention).
    _, table = target_forward(target, list(range(320)), LAYER_IDS)
    tokens = draft.propose(table[prompt[:-1]], prompt[-1], GAMMA).tokens
    assert tokens == copy_continuation(prompt, GAMMA)


def one_place_late(features: Tensor) -> Tensor:
    return torch.cat([features[:1], features[:-1]])


def one_place_early(features: Tensor) -> Tensor:
    return torch.cat([features[1:], features[-1:]])


def layers_reversed(features: Tensor) -> Tensor:
    return torch.cat(features.chunk(len(LAYER_IDS), dim=-1)[::-1], dim=-1)


def one_row_short(features: Tensor) -> Tensor:
    """The block then starts one position early, too."""
    return features[:-1]


@pytest.mark.parametrize("slip", [one_place_late, one_place_early, layers_reversed, one_row_short])
def test_a_shifted_or_mixed_context_is_seen_at_the_first_draft(
    copy_pair: Pair, slip: Callable[[Tensor], Tensor]
) -> None:
    target, draft = open_pair(copy_pair)
    prompt = prompt_of(30)
    _, features = target_forward(target, prompt[:-1], LAYER_IDS)
    wanted = copy_continuation(prompt, GAMMA)
    assert draft.propose(features, prompt[-1], GAMMA).tokens == wanted
    assert draft.propose(slip(features), prompt[-1], GAMMA).tokens[0] != wanted[0]


@pytest.mark.parametrize("slot", [0, 1, 2])
@pytest.mark.parametrize("shift", [-1, 1])
def test_a_layer_captured_one_off_is_seen(copy_pair: Pair, slot: int, shift: int) -> None:
    target, draft = open_pair(copy_pair)
    prompt = prompt_of(30)
    layers = list(LAYER_IDS)
    layers[slot] += shift
    _, features = target_forward(target, prompt[:-1], layers)
    got = draft.propose(features, prompt[-1], GAMMA).tokens
    assert got[0] != copy_continuation(prompt, 1)[0]


def test_one_stale_context_row_is_seen_where_it_is_read(copy_pair: Pair) -> None:
    """Row a-1 is read by the draft COPY_DISTANCE - 1 places later only; row a-11 by the first."""
    target, draft = open_pair(copy_pair)
    prompt = prompt_of(30)
    _, features = target_forward(target, prompt[:-1], LAYER_IDS)
    wanted = copy_continuation(prompt, GAMMA)
    for k in range(GAMMA):
        spoiled = features.clone()
        row = len(prompt) - 11 + k  # what x_{k+1} copies
        spoiled[row] = features[row - 1]
        got = draft.propose(spoiled, prompt[-1], GAMMA).tokens
        assert got[:k] == wanted[:k]
        assert got[k] != wanted[k]


def test_a_markov_step_that_reads_the_row_before_is_seen(copy_pair: Pair) -> None:
    target, draft = open_pair(copy_pair)
    prompt = prompt_of(30)
    _, features = target_forward(target, prompt[:-1], LAYER_IDS)
    known = [prompt[-1], *copy_continuation(prompt, GAMMA)]
    hidden = draft.propose(features, prompt[-1], GAMMA).hidden
    for k in range(1, GAMMA):
        bias, _ = draft.markov_bias(torch.zeros(16), known[k - 1], hidden[k])
        assert int((draft.lm_head @ hidden[k] + bias).argmax()) != known[k + 1]


def test_the_tokenizer_round_trips_any_output(copy_pair: Pair) -> None:
    tokenizer = AutoTokenizer.from_pretrained(copy_pair.target)
    assert tokenizer.decode(tokenizer("a ü\n").input_ids) == "a ü\n"
    assert "<300>" in tokenizer.decode([70, 300, 71])
    chat = [{"role": "user", "content": "hi"}]
    assert str(tokenizer.apply_chat_template(chat, tokenize=False)).endswith("assistant: ")
