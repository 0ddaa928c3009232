"""The no-draft form of a step: plain decode, after which drafting resumes with a complete KV."""

from __future__ import annotations

import random

import pytest

from tests.planted import copy_continuation
from tests.server.ask import counting, many
from tests.server.conftest import Serve
from tests.server.grid import BATCHES, Control, Workload, compare_with

GAMMA = 7


@pytest.mark.serves("text-no-draft")
@pytest.mark.parametrize("batch", BATCHES)
def test_never_drafting_gives_the_same_tokens(
    batch: int, serve: Serve, workload: Workload, control: Control
) -> None:
    server = serve("text-no-draft")
    with counting(server) as counted:
        result = compare_with(control, workload, server.client, batch)
    assert result.identical, str(result)
    assert counted.steps == counted.no_draft_steps > 0
    assert counted.verified_requests == counted.accepted_drafts == 0
    assert counted.draft_forward_seconds == 0


@pytest.mark.serves("copy-alternate")
@pytest.mark.parametrize("prompt_length", [16, 300])
def test_drafting_resumes_as_if_it_had_never_stopped(prompt_length: int, serve: Serve) -> None:
    """Three steps with drafts, three without: each draft reads rows that no-draft steps wrote."""
    server = serve("copy-alternate")
    rng = random.Random(prompt_length)
    prompts = [[rng.randrange(3, 320) for _ in range(prompt_length)] for _ in range(3)]
    with counting(server) as counted:
        answers = many(server.client, prompts, temperature=0, max_new_tokens=200, ignore_eos=True)
    assert [list(a.tokens) for a in answers] == [copy_continuation(p, 200) for p in prompts]
    assert 0.3 < counted.no_draft_steps / counted.steps < 0.7
    assert counted.accept_length == GAMMA + 1


@pytest.mark.serves("copy-alternate")
def test_a_cached_prefix_written_by_no_draft_steps_serves_drafts(serve: Serve) -> None:
    """The answer of the first request, half of it decoded without drafts, is the prefix of the
    second.
    """
    server = serve("copy-alternate")
    rng = random.Random(9)
    prompt = [rng.randrange(3, 320) for _ in range(20)]
    sampling = {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}
    first = server.client.generate(prompt, **sampling)
    longer = prompt + list(first.tokens)
    with counting(server) as counted:
        second = server.client.generate(longer, **sampling)
    assert second.meta["cached_tokens"] >= len(longer) - 2
    assert list(second.tokens) == copy_continuation(longer, 60)
    assert counted.accept_length == GAMMA + 1
