"""Draft KV behind every kind of prefill: prefix hits, chunks, long and short contexts, aborts.

On the copy pair a draft is right at every position or some row of the draft KV is wrong, so the
accept length is exactly gamma + 1, and the answer is known without a control.
"""

from __future__ import annotations

import random
import threading
import time

import httpx
import pytest

from sglang_dspark.profiling.client import Completion
from tests.planted import copy_continuation
from tests.server.ask import counting, load, many, stream, wait_until_idle
from tests.server.conftest import Serve
from tests.server.servers import PAGE, Running

GAMMA = 7
FULL_LENGTH = GAMMA + 1

Ids = list[int]


def random_prompt(length: int, seed: int) -> Ids:
    rng = random.Random(f"{length} {seed}")
    return [rng.randrange(3, 320) for _ in range(length)]


def greedy(server: Running, prompt: Ids, new: int = 48) -> tuple[Completion, float]:
    """Answer and accept length; the answer is checked."""
    with counting(server) as counted:
        answer = server.client.generate(prompt, temperature=0, max_new_tokens=new, ignore_eos=True)
    assert list(answer.tokens) == copy_continuation(prompt, new)
    return answer, counted.accept_length


@pytest.mark.parametrize("length", [16, 1000, 8000])
@pytest.mark.serves("copy")
def test_full_accept_length_at_every_context(length: int, serve: Serve) -> None:
    _, accept_length = greedy(serve("copy"), random_prompt(length, seed=1))
    assert accept_length == FULL_LENGTH


@pytest.mark.parametrize("length", [40, 512])
@pytest.mark.serves("copy")
def test_second_identical_request_is_a_hit_and_drafts_as_well(length: int, serve: Serve) -> None:
    server = serve("copy")
    server.client.flush_cache()
    first, accept_length = greedy(server, random_prompt(length, seed=2))
    assert first.meta["cached_tokens"] == 0
    second, accept_length_of_hit = greedy(server, random_prompt(length, seed=2))
    assert second.meta["cached_tokens"] >= length - 1
    assert accept_length == accept_length_of_hit == FULL_LENGTH


@pytest.mark.serves("copy")
def test_next_turn_of_a_conversation_hits_prompt_and_answer(serve: Serve) -> None:
    server = serve("copy")
    prompt = random_prompt(100, seed=3)
    first, _ = greedy(server, prompt)
    turn = prompt + list(first.tokens) + random_prompt(30, seed=4)
    second, accept_length = greedy(server, turn)
    assert second.meta["cached_tokens"] >= len(prompt) + len(first.tokens) - 1
    assert accept_length == FULL_LENGTH


@pytest.mark.serves("copy")
def test_a_short_unrelated_prompt_after_a_long_one(serve: Serve) -> None:
    """Stale KV of the long one must not show through."""
    server = serve("copy")
    greedy(server, random_prompt(2000, seed=5), new=100)
    server.client.flush_cache()
    _, accept_length = greedy(server, random_prompt(13, seed=6))
    assert accept_length == FULL_LENGTH


@pytest.mark.serves("copy")
def test_requests_of_unequal_length_together(serve: Serve) -> None:
    server = serve("copy")
    prompts = [random_prompt(length, seed=7) for length in (11, 12, 40, 41, 200, 700, 90, 33)]
    lengths = [60, 1, 2, 200, 8, 9, 33, 100]
    body = {
        "input_ids": prompts,
        "sampling_params": [
            {"temperature": 0, "max_new_tokens": n, "ignore_eos": True} for n in lengths
        ],
    }
    with counting(server) as counted:
        answers = server.client.post("/generate", body)
    for prompt, n, answer in zip(prompts, lengths, answers, strict=True):
        assert answer["output_ids"] == copy_continuation(prompt, n)
    assert counted.accept_length == FULL_LENGTH


@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("pages", [1, 4])
@pytest.mark.serves("small-paged")
def test_prefix_that_ends_at_a_page_edge(pages: int, more: int, serve: Serve) -> None:
    server = serve("small-paged")
    server.client.flush_cache()
    shared = random_prompt(PAGE * pages + more, seed=8)
    greedy(server, shared + random_prompt(20, seed=9))
    answer, accept_length = greedy(server, shared + random_prompt(20, seed=10))
    assert answer.meta["cached_tokens"] == (PAGE * pages + more) // PAGE * PAGE
    assert accept_length == FULL_LENGTH


@pytest.mark.parametrize("length", [63, 64, 65, 300])
@pytest.mark.serves("small-paged")
def test_prompt_in_chunks_of_64(length: int, serve: Serve) -> None:
    """Like `small` and `copy`, which take these prompts in one chunk."""
    server = serve("small-paged")
    server.client.flush_cache()
    _, accept_length = greedy(server, random_prompt(length, seed=11))
    assert accept_length == FULL_LENGTH


@pytest.mark.serves("small-paged")
def test_chunks_between_decoding_neighbours(serve: Serve) -> None:
    server = serve("small-paged")
    server.client.flush_cache()
    prompts = [random_prompt(length, seed=12) for length in (20, 300, 30, 200)]
    with counting(server) as counted:
        answers = many(server.client, prompts, temperature=0, max_new_tokens=60, ignore_eos=True)
    assert [list(a.tokens) for a in answers] == [copy_continuation(p, 60) for p in prompts]
    assert counted.accept_length == FULL_LENGTH


# ------------------------------------------------------------------------------------------- aborts


def hang_up(server: Running, prompt: Ids, rid: str) -> None:
    body = {"input_ids": prompt, "rid": rid}
    body["sampling_params"] = {"temperature": 0, "max_new_tokens": 4000, "ignore_eos": True}
    for _ in stream(server.url, "/generate", body):
        return  # the connection closes with the first event


def abort_by_rid(server: Running, prompt: Ids, rid: str) -> None:
    events: list[dict] = []
    body = {"input_ids": prompt, "rid": rid}
    body["sampling_params"] = {"temperature": 0, "max_new_tokens": 4000, "ignore_eos": True}
    reader = threading.Thread(
        target=lambda: events.extend(stream(server.url, "/generate", body)), daemon=True
    )
    reader.start()
    deadline = time.monotonic() + 30
    while not events and time.monotonic() < deadline:
        time.sleep(0.02)
    httpx.post(f"{server.url}/abort_request", json={"rid": rid}).raise_for_status()
    reader.join(timeout=30)
    assert not reader.is_alive()
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize("end", [hang_up, abort_by_rid])
@pytest.mark.serves("copy")
def test_abort_in_flight_frees_the_slots_and_spares_the_neighbour(end, serve: Serve) -> None:
    server = serve("copy")
    neighbour, answer = random_prompt(50, seed=13), []

    def ask() -> None:
        done = server.client.generate(neighbour, temperature=0, max_new_tokens=400, ignore_eos=True)
        answer.extend(done.tokens)

    asking = threading.Thread(target=ask)
    asking.start()
    end(server, random_prompt(100, seed=14), rid=f"abort-{end.__name__}")
    asking.join(timeout=60)
    assert answer == copy_continuation(neighbour, 400)
    wait_until_idle(server)
    assert load(server)["num_used_tokens"] == 0
    _, accept_length = greedy(server, random_prompt(60, seed=15))
    assert accept_length == FULL_LENGTH
