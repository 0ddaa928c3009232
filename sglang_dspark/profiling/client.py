"""What we ask of a running server, over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

_TWO_PIECES = {"stream_interval": 1_000_000}  # tokens between two pieces after the first


class RequestError(RuntimeError):
    """The server refused a request or failed at it."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of `/generate`."""

    text: str
    tokens: tuple[int, ...]
    meta: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TimedCompletion(Completion):
    """An answer and the time it took, as the client saw it."""

    seconds: float  # request sent to last token
    first_token_seconds: float | None  # request sent to first token; None: all came in one piece


class Client:
    """A connection to one server."""

    def __init__(self, url: str, timeout_s: float = 600) -> None:
        self._http = httpx.Client(
            base_url=url,
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=256),
            trust_env=False,  # the server is on this machine: no proxy stands between
        )

    def generate(
        self, prompt: str | list[int], *, rid: str | None = None, **sampling: Any
    ) -> Completion:
        """`/generate` with a text or token ids; keywords are SGLang's sampling parameters."""
        body: dict[str, Any] = {"sampling_params": sampling}
        body["text" if isinstance(prompt, str) else "input_ids"] = prompt
        if rid is not None:
            body["rid"] = rid
        answer = self.post("/generate", body)
        return Completion(answer.get("text", ""), tuple(answer["output_ids"]), answer["meta_info"])

    def generate_timed(self, prompt: str, **sampling: Any) -> TimedCompletion:
        """`/generate` as a stream of two pieces: the first token, then all others at once.

        So the time to the first token is known and no arm pays for sending every step by itself.

        Raises:
            RequestError: the server refused, or broke off.
        """
        body = {"text": prompt, "stream": True, "sampling_params": _TWO_PIECES | sampling}
        arrivals: list[float] = []  # seconds after the start, one per piece
        start = time.perf_counter()
        with self._http.stream("POST", "/generate", json=body) as reply:
            if reply.status_code != 200:
                raise RequestError(f"/generate: HTTP {reply.status_code}: {reply.read().decode()}")
            for line in reply.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    arrivals.append(time.perf_counter() - start)
                    answer = json.loads(line.removeprefix("data: "))
                    if "error" in answer:
                        raise RequestError(f"/generate: {answer['error']}")
        if not arrivals:
            raise RequestError("/generate: the stream was empty")
        return TimedCompletion(
            answer["text"],
            tuple(answer["output_ids"]),
            answer["meta_info"],
            seconds=arrivals[-1],
            first_token_seconds=arrivals[0] if len(arrivals) > 1 else None,
        )

    def top2_gap(self, prompt: str, position: int) -> float:
        """Difference of the two best logits at an output position of the greedy answer."""
        answer = self.post(
            "/generate",
            {
                "text": prompt,
                "sampling_params": {"temperature": 0, "max_new_tokens": position + 1},
                "return_logprob": True,
                "top_logprobs_num": 2,
            },
        )
        best, second = answer["meta_info"]["output_top_logprobs"][position]
        return float(best[0] - second[0])

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """POST JSON; the decoded answer.

        Raises:
            RequestError: any status but 200, with the server's text.
        """
        reply = self._http.post(path, json=body)
        if reply.status_code != 200:
            raise RequestError(f"{path}: HTTP {reply.status_code}: {reply.text}")
        return reply.json()

    def flush_cache(self) -> None:
        """Empty the prefix cache."""
        self._http.post("/flush_cache").raise_for_status()

    def server_info(self) -> dict[str, Any]:
        """The server's arguments and internal state."""
        return dict(self._http.get("/server_info").raise_for_status().json())

    def worker_record(self) -> dict[str, Any]:
        """The DSpark worker's counters (`dspark_info_record` of `/server_info`)."""
        return dict(self.server_info()["internal_states"][0]["dspark_info_record"])

    def close(self) -> None:
        self._http.close()
