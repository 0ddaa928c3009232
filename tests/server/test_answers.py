"""How an answer ends and how it is handed over: length, EOS, stop strings, streams, endpoints.

A block commits up to gamma + 1 tokens at once; an answer may have to end inside it. With the copy
pair every block commits all of them: output token 0 comes from the prefill, tokens 1..8 from the
first step, 9..16 from the second.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.planted import COPY_DISTANCE, EOS, copy_continuation, digits_of, token_of
from tests.server.ask import many, stream
from tests.server.conftest import Serve
from tests.server.servers import Pairs

pytestmark = pytest.mark.serves("copy")

GAMMA = 7
PLACES = range(2 * GAMMA + 4)  # in the first token, and everywhere in two blocks
Ids = list[int]


def prompt_of(seed: int, length: int = 30) -> Ids:
    rng = random.Random(seed)
    return [rng.randrange(3, 320) for _ in range(length)]


@pytest.mark.parametrize("new", [1, 2, GAMMA, GAMMA + 1, GAMMA + 2])
def test_max_new_tokens(new: int, serve: Serve) -> None:
    prompt = prompt_of(1)
    answer = serve("copy").client.generate(
        prompt, temperature=0, max_new_tokens=new, ignore_eos=True
    )
    assert list(answer.tokens) == copy_continuation(prompt, new)
    assert answer.meta["completion_tokens"] == new
    assert answer.meta["finish_reason"]["type"] == "length"


def test_stop_token_at_every_place(serve: Serve) -> None:
    prompt = prompt_of(2)
    whole = copy_continuation(prompt, len(PLACES))
    places = [place for place in PLACES if whole.index(whole[place]) == place]
    assert len(places) > len(PLACES) - 3
    body = {
        "input_ids": [prompt] * len(places),
        "sampling_params": [
            {"temperature": 0, "max_new_tokens": 60, "stop_token_ids": [whole[place]]}
            for place in places
        ],
    }
    for place, answer in zip(places, serve("copy").client.post("/generate", body), strict=True):
        assert answer["output_ids"] == whole[: place + 1]
        reason = answer["meta_info"]["finish_reason"]
        assert (reason["type"], reason["matched"]) == ("stop", whole[place])


def prompt_that_ends_at(place: int, seed: int) -> Ids:
    """Its continuation has EOS at output token `place` (below COPY_DISTANCE), and not before."""
    prompt = prompt_of(seed)
    prompt[place - COPY_DISTANCE] = token_of([*digits_of(EOS)[:3], 1])
    last = digits_of(prompt[-1])
    prompt[-1] = token_of([*last[:3], (digits_of(EOS)[3] - place - 1) % 4])
    return prompt


def test_eos_at_every_place(serve: Serve) -> None:
    prompts = [prompt_that_ends_at(place, seed=3) for place in range(COPY_DISTANCE - 1)]
    client = serve("copy").client
    for place, prompt in enumerate(prompts):
        whole = copy_continuation(prompt, 40)
        assert whole.index(EOS) == place
    answers = many(client, prompts, temperature=0, max_new_tokens=40)
    for place, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        assert list(answer.tokens) == copy_continuation(prompt, place + 1)
        assert answer.meta["finish_reason"]["type"] == "stop"
    ignoring = many(client, prompts, temperature=0, max_new_tokens=40, ignore_eos=True)
    assert [list(a.tokens) for a in ignoring] == [copy_continuation(p, 40) for p in prompts]


@pytest.mark.parametrize("place", [3, GAMMA + 1, 2 * (GAMMA + 1)])
def test_stop_string_inside_a_block_and_across_its_edge(
    place: int, serve: Serve, pairs: Pairs
) -> None:
    """Two letters, the tokens at `place` and `place` + 1; from 8 to 9 and from 16 to 17 a step
    ends between them.
    """
    tokenizer = AutoTokenizer.from_pretrained(pairs.get("copy").target)
    a, b = tokenizer("H~").input_ids  # ids below 80 and from 80 to 159: fourth digits 0 and 1
    assert (digits_of(a)[3], digits_of(b)[3]) == (0, 1)
    prompt = prompt_of(4)
    for token, at in ((a, place), (b, place + 1)):  # both are copied from there, maybe twice
        prompt[at % COPY_DISTANCE - COPY_DISTANCE] = token
    last = digits_of(prompt[-1])
    prompt[-1] = token_of([*last[:3], -(place + 1) % 4])
    whole = copy_continuation(prompt, 40)
    assert whole[place : place + 2] == [a, b]
    text = tokenizer.decode(whole, skip_special_tokens=True)
    answer = serve("copy").client.generate(prompt, temperature=0, max_new_tokens=40, stop=["H~"])
    assert answer.text == text[: text.index("H~")]
    assert answer.meta["finish_reason"]["matched"] == "H~"
    assert len(answer.tokens) == place + 2


# ------------------------------------------------------------------------------ streams, endpoints


def test_a_stream_adds_up_to_the_whole_answer(serve: Serve) -> None:
    server = serve("copy")
    prompt = prompt_of(5)
    sampling = {"temperature": 0, "max_new_tokens": 50, "ignore_eos": True}
    whole = server.client.generate(prompt, **sampling)
    events = list(
        stream(server.url, "/generate", {"input_ids": prompt, "sampling_params": sampling})
    )
    assert len(events) > 3
    assert events[-1]["text"] == whole.text
    assert events[-1]["output_ids"] == list(whole.tokens)
    assert events[-1]["meta_info"]["finish_reason"]["type"] == "length"
    for earlier, later in pairwise(events):
        assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
        assert len(later["output_ids"]) - len(earlier["output_ids"]) <= GAMMA + 1


def test_a_stream_ends_inside_a_block(serve: Serve) -> None:
    server = serve("copy")
    prompt = prompt_of(6)
    sampling = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
    events = list(
        stream(server.url, "/generate", {"input_ids": prompt, "sampling_params": sampling})
    )
    assert events[-1]["output_ids"] == copy_continuation(prompt, 4)


def test_text_and_ids_are_the_same_prompt(serve: Serve, pairs: Pairs) -> None:
    text = "a prompt of more than eleven letters"
    ids = AutoTokenizer.from_pretrained(pairs.get("copy").target)(text).input_ids
    client = serve("copy").client
    sampling = {"temperature": 0, "max_new_tokens": 30, "ignore_eos": True}
    by_text, by_ids = client.generate(text, **sampling), client.generate(ids, **sampling)
    assert by_text.tokens == by_ids.tokens == tuple(copy_continuation(ids, 30))
    assert by_text.text == by_ids.text


def test_several_answers_of_one_request(serve: Serve) -> None:
    prompt = prompt_of(7)
    sampling = {"temperature": 0, "max_new_tokens": 20, "n": 3, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": sampling}
    answers = serve("copy").client.post("/generate", body)
    assert [a["output_ids"] for a in answers] == [copy_continuation(prompt, 20)] * 3


MESSAGES = [
    {"role": "system", "content": "You copy."},
    {"role": "user", "content": "Say what was said eleven tokens ago."},
]


def chat(stream_it: bool = False) -> dict[str, Any]:
    body = {"model": "copy", "messages": MESSAGES, "temperature": 0, "max_tokens": 40}
    return body | {"ignore_eos": True, "stream": stream_it}


def expected_chat(pairs: Pairs) -> str:
    tokenizer = AutoTokenizer.from_pretrained(pairs.get("copy").target)
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    out = copy_continuation(tokenizer(text, add_special_tokens=False).input_ids, 40)
    return str(tokenizer.decode(out, skip_special_tokens=True))


def test_chat_completion_uses_the_chat_template(serve: Serve, pairs: Pairs) -> None:
    answer = serve("copy").client.post("/v1/chat/completions", chat())
    assert answer["choices"][0]["message"]["content"] == expected_chat(pairs)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 40


def test_a_streamed_chat_completion_adds_up(serve: Serve, pairs: Pairs) -> None:
    events = stream(serve("copy").url, "/v1/chat/completions", chat())
    pieces = [e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"]]
    assert sum(map(bool, pieces)) > 2
    assert "".join(pieces) == expected_chat(pairs)
