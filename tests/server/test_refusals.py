"""What a request may not ask for yet: HTTP 400 that names it, and a server that goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_dspark.seam.requests import refuse_request
from tests.planted import copy_continuation
from tests.server.ask import stream
from tests.server.conftest import Serve

PROMPT = list(range(40, 60))

# name in the refusal -> sampling parameters that ask for it
OF_SAMPLING: dict[str, dict[str, Any]] = {
    "frequency_penalty": {"frequency_penalty": 0.5},
    "presence_penalty": {"presence_penalty": -0.5},
    "repetition_penalty": {"repetition_penalty": 1.2},
    "min_new_tokens": {"min_new_tokens": 3},
    "logit_bias": {"logit_bias": {"5": 1.0}},
    "json_schema": {"json_schema": '{"type": "object"}'},
    "regex": {"regex": "[ab]+"},
    "ebnf": {"ebnf": 'root ::= "a"'},
    "structural_tag": {"structural_tag": "{}"},
    "beam_width": {"beam_width": 2},
    "custom_params": {"custom_params": {"a": 1}},
}
# name -> attributes of the scheduler's request
OF_REQUEST: dict[str, dict[str, Any]] = {
    "custom_logit_processor": {"custom_logit_processor": "{}"},
    "return_logprob": {"return_logprob": True},
    "return_hidden_states": {"return_hidden_states": True},
    "return_sampling_mask": {"return_sampling_mask": True},
    "input_embeds": {"input_embeds": [[0.0]]},
    "lora_path": {"lora_id": "a"},
    "multimodal": {"multimodal_inputs": object()},
}


def request(sampling: dict[str, Any] | None = None, **attributes: Any) -> Any:
    plain = {
        "custom_logit_processor": None,
        "return_logprob": False,
        "return_hidden_states": False,
        "return_sampling_mask": False,
        "input_embeds": None,
        "lora_id": None,
        "multimodal_inputs": None,
    }
    params = SamplingParams(**(sampling or {}))
    return SimpleNamespace(**(plain | {"sampling_params": params} | attributes))


def test_a_plain_request_is_served() -> None:
    assert refuse_request(request(), True) is None
    sampled = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "sampling_seed": 3}
    ending = {"stop": ["x"], "stop_token_ids": [5], "max_new_tokens": 3, "ignore_eos": True}
    assert refuse_request(request(sampled | ending), False) is None


@pytest.mark.parametrize("name", OF_SAMPLING)
def test_each_sampling_parameter_is_refused_by_name(name: str) -> None:
    assert name in (refuse_request(request(OF_SAMPLING[name]), True) or "")


def test_a_watermark_is_refused() -> None:
    asked = request()
    asked.sampling_params.watermark = {"key": 1}
    assert "watermark" in (refuse_request(asked, True) or "")


@pytest.mark.parametrize("name", OF_REQUEST)
def test_each_request_attribute_is_refused_by_name(name: str) -> None:
    assert name in (refuse_request(request(**OF_REQUEST[name]), True) or "")


def test_all_reasons_are_named_at_once() -> None:
    reason = refuse_request(request({"regex": "a"}, return_logprob=True), True)
    assert "regex" in reason and "return_logprob" in reason


# ------------------------------------------------------------------------------ through the server

BODIES: dict[str, dict[str, Any]] = {
    name: {"sampling_params": OF_SAMPLING[name]}
    for name in ("frequency_penalty", "repetition_penalty", "min_new_tokens", "regex")
} | {
    "return_logprob": {"return_logprob": True, "top_logprobs_num": 2},
    "logit_bias": {"sampling_params": OF_SAMPLING["logit_bias"]},
    "json_schema": {"sampling_params": OF_SAMPLING["json_schema"]},
}


@pytest.mark.serves("copy")
@pytest.mark.parametrize("name", BODIES)
def test_http_400_names_the_parameter(name: str, serve: Serve) -> None:
    server = serve("copy")
    reply = httpx.post(f"{server.url}/generate", json={"input_ids": PROMPT} | BODIES[name])
    assert reply.status_code == 400
    assert name in reply.text
    good = server.client.generate(PROMPT, temperature=0, max_new_tokens=9, ignore_eos=True)
    assert list(good.tokens) == copy_continuation(PROMPT, 9)


@pytest.mark.serves("copy")
def test_a_stream_ends_with_the_reason(serve: Serve) -> None:
    """HTTP 200 by then; the one event carries the status code and the text."""
    body = {"input_ids": PROMPT, "sampling_params": {"presence_penalty": 1.0}}
    events = list(stream(serve("copy").url, "/generate", body))
    assert len(events) == 1
    reason = events[0]["meta_info"]["finish_reason"]
    assert (reason["type"], reason["status_code"]) == ("abort", 400)
    assert "presence_penalty" in reason["message"]


@pytest.mark.serves("copy")
def test_a_streamed_chat_completion_gets_an_error_event(serve: Serve) -> None:
    body = {"model": "copy", "messages": [{"role": "user", "content": "hello"}]}
    body["presence_penalty"] = 1.0
    events = list(stream(serve("copy").url, "/v1/chat/completions", body))
    assert len(events) == 1
    assert events[0]["error"]["code"] == 400
    assert "presence_penalty" in events[0]["error"]["message"]


@pytest.mark.serves("copy")
@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"frequency_penalty": 1.0}, "frequency_penalty"),
        ({"logprobs": True}, "return_logprob"),
        ({"response_format": {"type": "json_object"}}, "json_schema"),
    ],
)
def test_chat_completions_are_refused_too(asked: dict, name: str, serve: Serve) -> None:
    body = {"model": "copy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    reply = httpx.post(f"{serve('copy').url}/v1/chat/completions", json=body | asked)
    assert reply.status_code == 400
    assert name in reply.text


@pytest.mark.serves("copy")
def test_a_refused_request_among_good_ones_fails_alone(serve: Serve) -> None:
    """Sent one by one: SGLang answers a batched call as a whole."""
    server = serve("copy")
    for i in range(4):
        bad = {"input_ids": PROMPT, "sampling_params": {"regex": "a"}}
        assert httpx.post(f"{server.url}/generate", json=bad).status_code == 400
        prompt = [*PROMPT, 3 + i]
        good = server.client.generate(prompt, temperature=0, max_new_tokens=9, ignore_eos=True)
        assert list(good.tokens) == copy_continuation(prompt, 9)
