"""What we ask of a running server, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx


class RequestError(RuntimeError):
    """The server refused a request or failed at it."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of `/generate`."""

    text: str
    tokens: tuple[int, ...]
    meta: Mapping[str, Any]


class Client:
    """A connection to one server."""

    def __init__(self, url: str, timeout_s: float = 600) -> None:
        self._http = httpx.Client(
            base_url=url, timeout=timeout_s, limits=httpx.Limits(max_connections=256)
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

    def worker_record(self) -> dict[str, Any]:
        """The DSpark worker's counters (`dspark_info_record` of `/server_info`)."""
        states = self._http.get("/server_info").raise_for_status().json()["internal_states"]
        return dict(states[0]["dspark_info_record"])

    def close(self) -> None:
        self._http.close()
