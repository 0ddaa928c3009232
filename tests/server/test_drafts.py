"""The drafts themselves, against the plain reference: how many of each block are accepted."""

from __future__ import annotations

import random

import pytest

from sglang_dspark.profiling.equality import compare
from tests.draft.reference import ReferenceDraft, load_target, speculate_greedy
from tests.planted import Pair
from tests.server.ask import counting, many
from tests.server.conftest import Serve
from tests.server.law import next_logits
from tests.server.servers import Pairs

NEW = 40


def prompts_of(length: int, count: int) -> list[list[int]]:
    rng = random.Random(length)
    return [[rng.randrange(3, 259) for _ in range(length)] for _ in range(count)]


def reference_rounds(pair: Pair, prompt: list[int], gamma: int) -> tuple[list[int], list[int]]:
    target = load_target(pair.target)
    out, accepted = speculate_greedy(target, ReferenceDraft(pair.draft, target), prompt, NEW, gamma)
    return out[:NEW], accepted


@pytest.mark.serves("law")
def test_every_round_accepts_what_the_reference_accepts(serve: Serve, pairs: Pairs) -> None:
    """A partly right draft whose proposals depend on its KV: the counts of each block agree."""
    gamma, server = 2, serve("law")
    for prompt in prompts_of(14, count=3):
        tokens, accepted = reference_rounds(pairs.get("noisy"), prompt, gamma)
        with counting(server) as counted:
            answer = server.client.generate(
                prompt, temperature=0, max_new_tokens=NEW, ignore_eos=True
            )
        assert list(answer.tokens) == tokens
        assert counted.histogram == [accepted.count(k) for k in range(gamma + 1)]


@pytest.mark.serves("garbage")
def test_a_draft_that_is_never_right_costs_nothing_but_time(serve: Serve, pairs: Pairs) -> None:
    """Every row that was verified and rejected is overwritten by the next step."""
    server, target = serve("garbage"), load_target(pairs.get("garbage").target)
    prompts = prompts_of(9, count=4)
    expected = [greedy(target, prompt) for prompt in prompts]
    with counting(server) as counted:
        answers = many(server.client, prompts, temperature=0, max_new_tokens=NEW, ignore_eos=True)

    def gap_at(prompt: int, position: int) -> float:
        logits = next_logits(target, [prompts[prompt] + expected[prompt][:position]])[0]
        logits.sort()
        return float(logits[-1] - logits[-2])

    result = compare(expected, [a.tokens for a in answers], gap_at)
    assert result.identical, str(result)
    assert counted.accepted_drafts == 0 and counted.verified_requests >= 4 * (NEW - 1)
    assert counted.accept_length == 1.0


def greedy(target, prompt: list[int]) -> list[int]:
    ids = list(prompt)
    for _ in range(NEW):
        ids.append(int(next_logits(target, [ids])[0].argmax()))
    return ids[len(prompt) :]
