"""Requests that keep a batch of known size busy until they are told to stop."""

from __future__ import annotations

import random
import threading
import uuid
from contextlib import suppress

import httpx

from sglang_dspark.profiling.load import Ask, LoadResult, run_load

STOP_S = 60.0


class LoadError(RuntimeError):
    """The requests of a batch failed; the text holds the server's reason."""


class RunningLoad:
    """R requests with random prompts, sent together from a thread of their own."""

    def __init__(
        self, url: str, requests: int, prompt_len: int, max_new_tokens: int, vocabulary: int
    ) -> None:
        """vocabulary: of the target, in tokens; special ones at either end are avoided."""
        rng = random.Random(uuid.uuid4().int)  # prompts must not be in the prefix cache
        ids = range(vocabulary // 10, max(vocabulary // 2, 1))
        name = uuid.uuid4().hex
        # Temperature 1: greedy answers to random prompts loop, and drafts of loops all fit.
        sampling = {"temperature": 1.0, "max_new_tokens": max_new_tokens, "ignore_eos": True}
        self._asks = [
            Ask(tuple(rng.choices(ids, k=prompt_len)), sampling, rid=f"{name}-{n}")
            for n in range(requests)
        ]
        self._url = url
        self._result: LoadResult | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = run_load(self._url, self._asks, len(self._asks))
        except BaseException as failure:
            self._failure = failure

    @property
    def is_running(self) -> bool:
        """Whether any of the requests still runs.

        Raises:
            LoadError: a request failed.
        """
        if self._failure is not None:
            raise LoadError(f"the requests could not be sent: {self._failure!r}")
        if self._result is not None and self._result.errors:
            raise LoadError(f"a request failed: {self._result.errors[0]}")
        return self._thread.is_alive()

    def stop(self) -> None:
        """Abort what still runs and wait for its end; does nothing where it has ended."""
        with suppress(httpx.HTTPError), httpx.Client(base_url=self._url, trust_env=False) as http:
            for ask in self._asks:
                if not self._thread.is_alive():
                    break
                http.post("/abort_request", json={"rid": ask.rid})
        self._thread.join(STOP_S)
