"""What is measured of one arm: answers in turns, and the worker's counters around each answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_dspark.core.accept_length import AcceptCounts
from sglang_dspark.profiling.client import Client, TimedCompletion


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """The worker's counters, as sums; the difference of two is what happened in between."""

    steps: int = 0
    pairs: int = 0  # (request, step) pairs that went through verification
    accepted: int = 0
    step_seconds: float = 0.0
    overhead_seconds: float = 0.0  # of step_seconds: all but the target and draft forwards

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> WorkerCounts:
        """From the worker's record in `/server_info`."""
        return cls(
            record["steps"],
            record["verified_requests"],
            record["accepted_drafts"],
            record["step_seconds"],
            record["overhead_seconds"],
        )

    def __add__(self, other: WorkerCounts) -> WorkerCounts:
        return self._combine(other, 1)

    def __sub__(self, other: WorkerCounts) -> WorkerCounts:
        return self._combine(other, -1)

    def _combine(self, other: WorkerCounts, sign: int) -> WorkerCounts:
        return WorkerCounts(
            self.steps + sign * other.steps,
            self.pairs + sign * other.pairs,
            self.accepted + sign * other.accepted,
            self.step_seconds + sign * other.step_seconds,
            self.overhead_seconds + sign * other.overhead_seconds,
        )

    @property
    def accept_length(self) -> float:
        """1 + accepted drafts per verification; nan before the first."""
        return AcceptCounts(pairs=self.pairs, accepted=self.accepted).accept_length

    @property
    def overhead_ms(self) -> float:
        """Milliseconds a step, everything but the target and draft forwards; nan without steps."""
        return self._per_step_ms(self.overhead_seconds)

    @property
    def step_ms(self) -> float:
        return self._per_step_ms(self.step_seconds)

    def _per_step_ms(self, seconds: float) -> float:
        return 1000 * seconds / self.steps if self.steps else float("nan")


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer and what the worker did for it (nothing counted on the arm without one)."""

    prompt: str
    answer: TimedCompletion
    worker: WorkerCounts


@dataclass(frozen=True, slots=True)
class Samples:
    """Answers of one arm: of one turn, or of all turns of a domain."""

    items: tuple[Sample, ...]

    @property
    def tokens(self) -> int:
        return sum(len(s.answer.tokens) for s in self.items)

    @property
    def tokens_per_s(self) -> float:
        """Answered tokens over the time the client waited, prefill included."""
        return self.tokens / sum(s.answer.seconds for s in self.items)

    @property
    def tpot_ms(self) -> float:
        """Milliseconds per output token after an answer's first; nan where none has two."""
        count, spent = 0, 0.0
        for answer in (s.answer for s in self.items):
            if answer.first_token_seconds is not None:
                count += len(answer.tokens) - 1
                spent += answer.seconds - answer.first_token_seconds
        return 1000 * spent / count if count else float("nan")

    @property
    def worker(self) -> WorkerCounts:
        return sum((s.worker for s in self.items), WorkerCounts())

    @property
    def sglang_accept_length(self) -> float:
        """SGLang's `spec_accept_length`: tokens, the prefill's included, over verify steps."""
        verifications = sum(s.answer.meta.get("spec_verify_ct", 0) for s in self.items)
        return self.tokens / verifications if verifications else float("nan")

    def only(self, keep: Iterable[bool]) -> Samples:
        return Samples(tuple(s for s, k in zip(self.items, keep, strict=True) if k))


def join(turns: Iterable[Samples]) -> Samples:
    """All answers of several turns."""
    return Samples(tuple(sample for turn in turns for sample in turn.items))


class Arm:
    """One server under measurement: greedy answers, one request at a time."""

    def __init__(self, client: Client, max_new_tokens: int) -> None:
        self.client = client
        self._max_new_tokens = max_new_tokens

    def take_turn(self, prompts: Sequence[str]) -> Samples:
        return Samples(tuple(self._sample(prompt) for prompt in prompts))

    def _sample(self, prompt: str) -> Sample:
        answer = self.client.generate_timed(
            prompt, temperature=0, max_new_tokens=self._max_new_tokens
        )
        return Sample(prompt, answer, self._work())

    def _work(self) -> WorkerCounts:
        """What the worker did since the last call."""
        return WorkerCounts()


class DSparkArm(Arm):
    """An arm whose worker reports what it did."""

    def __init__(self, client: Client, max_new_tokens: int) -> None:
        super().__init__(client, max_new_tokens)
        self._before = WorkerCounts()

    def _work(self) -> WorkerCounts:
        now = WorkerCounts.read(self.client.worker_record())
        before, self._before = self._before, now
        return now - before
