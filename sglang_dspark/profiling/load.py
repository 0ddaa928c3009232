"""Many requests at once: a closed loop that keeps a number of them in flight."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

# Tokens between two pieces of a stream after the first: the time to the first token is seen, and
# no arm pays for sending every step by itself.
PIECE = 1_000_000


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of `/generate`; `sampling` holds SGLang's sampling parameters."""

    prompt: str | tuple[int, ...]  # a text or token ids
    sampling: Mapping[str, Any] = field(default_factory=dict)
    rid: str | None = None

    def body(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "stream": True,
            "sampling_params": {"stream_interval": PIECE, **self.sampling},
        }
        if isinstance(self.prompt, str):
            record["text"] = self.prompt
        else:
            record["input_ids"] = list(self.prompt)
        if self.rid is not None:
            record["rid"] = self.rid
        return record


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one request; times in seconds since it was sent."""

    tokens: tuple[int, ...]
    seconds: float  # to the last token, or to the error
    first_token_s: float | None  # None: all tokens came in one piece
    error: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)  # SGLang's `meta_info`

    @property
    def tpot_ms(self) -> float:
        """Milliseconds per token after the first; nan where there is none."""
        if self.first_token_s is None or len(self.tokens) < 2:
            return float("nan")
        return 1000 * (self.seconds - self.first_token_s) / (len(self.tokens) - 1)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """All answers of one load, in the order of the requests."""

    answers: tuple[Answer, ...]
    seconds: float  # first request sent to last answer complete

    @property
    def tokens(self) -> int:
        """Of the requests that were answered."""
        return sum(len(a.tokens) for a in self.answers if a.error is None)

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(a.error for a in self.answers if a.error is not None)


def run_load(url: str, asks: Sequence[Ask], concurrency: int, timeout_s: float = 600) -> LoadResult:
    """Send all requests, `concurrency` at a time; the next one leaves when one is answered.

    A request that fails is an answer with an error; nothing is retried or dropped.

    Raises:
        ValueError: concurrency below 1.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency {concurrency}: must be at least 1")
    return asyncio.run(_run(url, asks, concurrency, timeout_s))


async def _run(url: str, asks: Sequence[Ask], concurrency: int, timeout_s: float) -> LoadResult:
    gate = asyncio.Semaphore(concurrency)
    async with aiohttp.ClientSession(
        base_url=url,
        connector=aiohttp.TCPConnector(limit=concurrency),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
    ) as session:

        async def one(ask: Ask) -> Answer:
            async with gate:
                return await _ask(session, ask)

        begun = time.perf_counter()
        answers = await asyncio.gather(*(one(ask) for ask in asks))
        return LoadResult(tuple(answers), time.perf_counter() - begun)


async def _ask(session: aiohttp.ClientSession, ask: Ask) -> Answer:
    begun = time.perf_counter()
    first: float | None = None
    last: dict[str, Any] = {}
    pieces, error = 0, None
    try:
        async with session.post("/generate", json=ask.body()) as reply:
            if reply.status != 200:
                error = f"HTTP {reply.status}: {(await reply.text()).strip()}"
            else:
                async for raw in reply.content:
                    line = raw.decode().strip()
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    last, pieces = json.loads(line.removeprefix("data: ")), pieces + 1
                    if pieces == 1:
                        first = time.perf_counter() - begun
                    if "error" in last:
                        break
    except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    seconds = time.perf_counter() - begun
    error = error or _complaint(last)
    if error is not None:
        return Answer((), seconds, None, error)
    return Answer(
        tuple(last["output_ids"]),
        seconds,
        first if pieces > 1 else None,
        meta=last["meta_info"],
    )


def _complaint(last: Mapping[str, Any]) -> str | None:
    """Why a finished stream is no answer; None where it is one."""
    if "error" in last:
        return str(last["error"])
    if "output_ids" not in last:
        return "the stream ended without an answer"
    reason = last["meta_info"].get("finish_reason") or {}
    if reason.get("type") == "abort":
        return str(reason.get("message", "aborted"))
    return None
