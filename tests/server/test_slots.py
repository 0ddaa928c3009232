"""KV slots: free before = free after, at the context end, under a pool that is too small.

Every server of these tests also checks its own books after each step (`servers.STRICT`): a leaked
slot, a slot with two owners or a freed one in use ends it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.planted import copy_continuation
from tests.server.ask import counting, load, many, wait_until_idle
from tests.server.conftest import Serve
from tests.server.servers import SMALL_CONTEXT, SMALL_POOL
from tests.server.test_cache import FULL_LENGTH, greedy, random_prompt

SMALL = [pytest.param(n, marks=pytest.mark.serves(n)) for n in ("small", "small-paged")]

LONGEST = SMALL_CONTEXT - 2  # prompt and answer: SGLang stops a request two tokens short,
FEWEST = 5  # and takes no prompt that leaves fewer


def to_the_end(prompts: Sequence[Sequence[int]], most: int = SMALL_CONTEXT) -> dict[str, Any]:
    """All prompts at once, each up to the context end or to `most` tokens."""
    lengths = [min(most, SMALL_CONTEXT - len(prompt)) for prompt in prompts]
    sampling = [{"temperature": 0, "max_new_tokens": n, "ignore_eos": True} for n in lengths]
    return {"input_ids": prompts, "sampling_params": sampling}


@pytest.mark.parametrize("name", SMALL)
def test_slots_are_held_while_a_request_runs(name: str, serve: Serve) -> None:
    """The count that the other tests find at zero does move."""
    server = serve(name)
    prompt = random_prompt(200, seed=1)
    asking = threading.Thread(
        target=lambda: server.client.generate(
            prompt, temperature=0, max_new_tokens=300, ignore_eos=True
        )
    )
    asking.start()
    seen, deadline = 0, time.monotonic() + 30
    while asking.is_alive() and time.monotonic() < deadline:
        seen = max(seen, load(server)["num_used_tokens"])
    asking.join()
    assert seen >= len(prompt)
    wait_until_idle(server)
    assert load(server)["num_used_tokens"] == 0


@pytest.mark.parametrize("name", SMALL)
def test_a_hundred_short_requests_leave_every_slot_free(name: str, serve: Serve) -> None:
    server = serve(name)
    server.client.flush_cache()
    prompts = [random_prompt(1 + i % 37, seed=i) for i in range(100)]
    lengths = [1 + i % 19 for i in range(100)]
    body = {
        "input_ids": prompts,
        "sampling_params": [{"temperature": 0, "max_new_tokens": n} for n in lengths],
    }
    server.client.post("/generate", body)
    wait_until_idle(server)
    assert load(server)["num_used_tokens"] == 0
    server.client.flush_cache()
    # All of the pool is there: as many full contexts as it holds, at once and in one go.
    whole = [random_prompt(LONGEST - 60, seed=i) for i in range(SMALL_POOL // SMALL_CONTEXT - 1)]
    answers = many(server.client, whole, temperature=0, max_new_tokens=40, ignore_eos=True)
    assert [list(a.tokens) for a in answers] == [copy_continuation(p, 40) for p in whole]
    assert all(a.meta["num_retractions"] == 0 for a in answers)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("left", [FEWEST, 6, 7, 8, 9, 17, 100])
def test_generation_to_the_context_end_with_a_neighbour(name: str, left: int, serve: Serve) -> None:
    """Blocks reach past the last position of the context, and past the end of the row."""
    server = serve(name)
    prompts = [random_prompt(LONGEST - left, seed=left), random_prompt(25, seed=left)]
    with counting(server) as counted:
        answers = server.client.post("/generate", to_the_end(prompts, most=110))
    assert [a["output_ids"] for a in answers] == [
        copy_continuation(prompts[0], left),
        copy_continuation(prompts[1], 110),
    ]
    # What was drafted past the context is never committed; all before it was right.
    assert counted.accept_length > FULL_LENGTH - 2
    assert load(server)["num_used_tokens"] == 0


@pytest.mark.parametrize("name", SMALL)
def test_several_requests_at_the_context_end_together(name: str, serve: Serve) -> None:
    server = serve(name)
    prompts = [random_prompt(LONGEST - left, seed=left) for left in (30, 31)]
    answers = server.client.post("/generate", to_the_end(prompts))
    assert [a["output_ids"] for a in answers] == [
        copy_continuation(p, left) for p, left in zip(prompts, (30, 31), strict=True)
    ]
    wait_until_idle(server)
    assert load(server)["num_used_tokens"] == 0


@pytest.mark.parametrize("name", SMALL)
def test_retracted_requests_come_back_with_the_same_tokens(name: str, serve: Serve) -> None:
    """More running requests than the pool can hold to their ends."""
    server = serve(name)
    server.client.flush_cache()
    prompts = [random_prompt(40 + i, seed=i) for i in range(12)]
    with counting(server) as counted:
        answers = many(server.client, prompts, temperature=0, max_new_tokens=300, ignore_eos=True)
    assert sum(a.meta["num_retractions"] for a in answers) > 0
    assert [list(a.tokens) for a in answers] == [copy_continuation(p, 300) for p in prompts]
    assert counted.accept_length == FULL_LENGTH
    assert load(server)["num_used_tokens"] == 0


@pytest.mark.parametrize("name", SMALL)
def test_a_seeded_sample_survives_retraction(name: str, serve: Serve) -> None:
    """The noise is keyed by position, not by how often the request was started."""
    server = serve(name)
    prompts = [random_prompt(40 + i, seed=i) for i in range(12)]
    # Hot enough that the copied token is not certain.
    sampling = {"temperature": 6.0, "sampling_seed": 5, "ignore_eos": True}
    alone = [server.client.generate(p, max_new_tokens=150, **sampling).tokens for p in prompts[:2]]
    crowd = many(server.client, prompts, max_new_tokens=300, **sampling)
    assert sum(a.meta["num_retractions"] for a in crowd) > 0
    assert [a.tokens[:150] for a in crowd[:2]] == alone
    assert list(alone[0]) != copy_continuation(prompts[0], 150)


@pytest.mark.parametrize("name", SMALL)
def test_the_server_is_as_good_as_new_afterwards(name: str, serve: Serve) -> None:
    server = serve(name)
    server.client.flush_cache()
    _, accept_length = greedy(server, random_prompt(100, seed=99))
    assert accept_length == FULL_LENGTH
