"""The servers of a sweep, and how an arm's turn is taken on one of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_dspark.profiling.client import Client
from sglang_dspark.profiling.load import Answer, Ask, run_load
from sglang_dspark.profiling.results import RequestRecord, WorkerRecord
from sglang_dspark.profiling.sweep.plan import ArmPlan, SweepPlan
from sglang_dspark.profiling.sweep.prompts import Prompt

CONTROL, DSPARK = "no-speculation", "dspark"  # server names
SUMS = (
    *("steps", "no_draft_steps", "verified_requests", "drafted", "verified_drafts"),
    *("accepted_drafts", "planned_rows", "ceiling_drafts", "ceiling_requests", "priced_steps"),
    *("step_seconds", "draft_forward_seconds", "target_forward_seconds"),
)
HISTOGRAMS = ("accepted_histogram", "draft_len_histogram")


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """How to start one server of the sweep."""

    name: str
    flags: tuple[str, ...]
    arms: tuple[ArmPlan, ...]  # that it answers for


def plan_servers(plan: SweepPlan, target: str, draft: str) -> list[ServerPlan]:
    """One server without speculation, one with DSPARK for all its arms, one per other algorithm.

    All get the same limits: `--max-running-requests`, the prefill delay and `--sleep-on-idle`.
    """
    common = [
        *("--model-path", target, "--max-running-requests", str(plan.most_requests)),
        # DSPARK alone would hold back a prefill until several requests are free.
        *("--sleep-on-idle", "--min-free-slots-delay", "1", *plan.server_flags),
    ]
    drafting = ["--speculative-algorithm", "DSPARK", "--speculative-draft-model-path", draft]
    groups: dict[str, list[ArmPlan]] = defaultdict(list)
    for arm in plan.arms:
        if arm.kind == "no-speculation":
            groups[CONTROL].append(arm)
        else:
            groups[arm.name if arm.kind == "sglang" else DSPARK].append(arm)
    own = {CONTROL: [], DSPARK: drafting}
    return [
        ServerPlan(name, (*common, *own.get(name, arms[0].flags)), tuple(arms))
        for name, arms in groups.items()
    ]


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What one turn showed."""

    seconds: float
    requests: list[RequestRecord]
    worker: WorkerRecord | None
    draft_lens_by_domain: dict[str, float]


class ArmServer:
    """A running server, steered from arm to arm."""

    def __init__(self, url: str, *, is_ours: bool) -> None:
        self.client = Client(url)
        self._url, self._is_ours = url, is_ours

    def steer(self, control: Mapping[str, Any]) -> None:
        """Settings of an arm; what it leaves open (None) goes back to the server's start.

        Raises:
            RequestError: the server refuses one of them.
        """
        if not self._is_ours or not control:
            return
        start = self.client.worker_record()
        settings = dict(control)
        if settings["dspark_gamma_limit"] is None:
            settings["dspark_gamma_limit"] = start["gamma"]
        if settings["dspark_no_draft"] is None:  # auto where plain decode has a price
            settings["dspark_no_draft"] = "auto" if start["prices_no_draft"] else "off"
        self.client.post("/set_internal_state", {"server_args": settings})

    def take_turn(
        self, prompts: Sequence[Prompt], sampling: Mapping[str, Any], concurrency: int
    ) -> TurnResult:
        """The prompts on an empty prefix cache, `concurrency` at a time."""
        self.client.flush_cache()
        before = self._record()
        done = run_load(self._url, [Ask(p.content, sampling) for p in prompts], concurrency)
        after = self._record()
        return TurnResult(
            seconds=done.seconds,
            requests=[_request(answer) for answer in done.answers],
            worker=None if before is None or after is None else difference(after, before),
            draft_lens_by_domain=_by_domain(prompts, done.answers) if self._is_ours else {},
        )

    def _record(self) -> dict[str, Any] | None:
        return self.client.worker_record() if self._is_ours else None

    def close(self) -> None:
        self.client.close()


def _request(answer: Answer) -> RequestRecord:
    return RequestRecord(
        tokens=len(answer.tokens),
        seconds=round(answer.seconds, 6),
        first_token_s=None if answer.first_token_s is None else round(answer.first_token_s, 6),
        error=answer.error,
        spec_verify_ct=answer.meta.get("spec_verify_ct"),
    )


def difference(after: Mapping[str, Any], before: Mapping[str, Any]) -> WorkerRecord:
    """What the worker counted between two of its records in `/server_info`."""
    sums: dict[str, Any] = {key: after[key] - before[key] for key in SUMS}
    histograms: dict[str, Any] = {
        key: [a - b for a, b in zip(after[key], before[key], strict=True)] for key in HISTOGRAMS
    }
    reasons = {
        name: count - before["step_reasons"].get(name, 0)
        for name, count in after["step_reasons"].items()
    }
    return WorkerRecord(
        **sums,
        **histograms,
        predicted_ms=_total(after, "predicted_step_ms") - _total(before, "predicted_step_ms"),
        actual_ms=_total(after, "actual_step_ms") - _total(before, "actual_step_ms"),
        step_reasons={name: count for name, count in reasons.items() if count},
    )


def _total(record: Mapping[str, Any], mean: str) -> float:
    """The sum behind a mean per priced step."""
    return float((record[mean] or 0.0) * record["priced_steps"])


def _by_domain(prompts: Sequence[Prompt], answers: Sequence[Answer]) -> dict[str, float]:
    """Mean draft_len of each domain's requests, from SGLang's own per-request count.

    `spec_cap_length` counts the anchor's row too, and a no-draft step as a window of 0 drafts.
    """
    rows: dict[str, float] = defaultdict(float)
    steps: dict[str, int] = defaultdict(int)
    for prompt, answer in zip(prompts, answers, strict=True):
        if "spec_cap_length" in answer.meta:
            count = answer.meta["spec_verify_ct"]
            rows[prompt.domain] += answer.meta["spec_cap_length"] * count
            steps[prompt.domain] += count
    return {domain: rows[domain] / steps[domain] - 1 for domain in rows}
