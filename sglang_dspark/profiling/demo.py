"""The main job: the same prompts to a server without speculation and to one with DSPARK.

Both servers run side by side, but only one has work at a time: turns of a few prompts alternate
between them, and the two turns of a round are compared with each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sglang_dspark.profiling.client import Client
from sglang_dspark.profiling.equality import Comparison, compare
from sglang_dspark.profiling.measure import Arm, DSparkArm, Samples, join
from sglang_dspark.profiling.prompts import read_prompts
from sglang_dspark.profiling.server import Server

DOMAINS = ("code", "text")
WARM_UP_PROMPTS = 2  # per domain; first requests are slow everywhere
START_TIMEOUT_S = 600  # half a minute alone on a quiet machine


class DemoError(RuntimeError):
    """The demo cannot say anything about our worker."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What is served and asked."""

    target: Path
    draft: Path
    prompts: Path  # a folder with one file of prompts per domain
    out: Path  # a folder
    rounds: int = 20
    prompts_per_turn: int = 2
    max_new_tokens: int = 128
    max_running_requests: int = 8

    @property
    def control_flags(self) -> list[str]:
        """All that both servers are started with."""
        return [
            *("--model-path", str(self.target), "--dtype", "float32", "--random-seed", "0"),
            *("--max-running-requests", str(self.max_running_requests), "--sleep-on-idle"),
            # DSPARK alone would hold back a prefill until several requests are free.
            *("--min-free-slots-delay", "1"),
        ]

    @property
    def dspark_flags(self) -> list[str]:
        draft = ("--speculative-draft-model-path", str(self.draft))
        return [*self.control_flags, "--speculative-algorithm", "DSPARK", *draft]

    def read_prompts(self) -> dict[str, list[str]]:
        """Per domain: the prompts of all turns in order, then those of the warm-up.

        Raises:
            PromptError: a file is missing, malformed or too short.
        """
        count = self.rounds * self.prompts_per_turn + WARM_UP_PROMPTS
        return {name: read_prompts(self.prompts / f"{name}.jsonl", count) for name in DOMAINS}


class Progress(Protocol):
    """Who is told how far the demo is."""

    def stage(self, text: str, turns: int | None = None) -> None:
        """A new stage has begun, of a number of turns where that is known."""

    def tick(self) -> None:
        """Still waiting."""

    def advance(self) -> None:
        """A turn is over."""

    def round_done(self, number: int, speeds: Mapping[str, tuple[float, float]]) -> None:
        """Tokens/s of a round by domain: no speculation, DSPARK."""


@dataclass(frozen=True, slots=True)
class DomainResult:
    """Both arms' turns over one domain, in round order."""

    control: tuple[Samples, ...]
    dspark: tuple[Samples, ...]
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class DemoResult:
    domains: Mapping[str, DomainResult]
    worker: str  # what the server says is serving
    gamma: int
    device: str  # where the servers ran, in SGLang's word
    memory_pss_mb: float  # of the DSPARK server, after the load

    @property
    def comparison(self) -> Comparison:
        """Over all domains."""
        return sum((d.comparison for d in self.domains.values()), Comparison(0, 0))


def run_demo(plan: DemoPlan, progress: Progress) -> DemoResult:
    """Start both servers, measure, compare, stop them; they are stopped on every way out.

    Raises:
        PromptError, ServerError, RequestError, DemoError
    """
    prompts = plan.read_prompts()
    control = Server(plan.control_flags, log=plan.out / "no_speculation.log")
    dspark = Server(plan.dspark_flags, log=plan.out / "dspark.log")
    with ExitStack() as stack:
        progress.stage("Starting two servers (most of it is imports)")
        for server in (control, dspark):
            stack.callback(server.stop)
            server.launch()

        def tick() -> None:
            progress.tick()
            for server in (control, dspark):
                server.check_start()

        for server in (control, dspark):
            server.wait(START_TIMEOUT_S, tick)
        clients = [stack.enter_context(closing(Client(s.url))) for s in (control, dspark)]
        arms = Arm(clients[0], plan.max_new_tokens), DSparkArm(clients[1], plan.max_new_tokens)
        record, device = _own_record(clients[1]), clients[1].server_info()["device"]
        _warm_up(arms, prompts, progress)
        control_turns, dspark_turns = _measure(plan, arms, prompts, progress)
        memory = dspark.memory_pss_mb()
        progress.stage("Comparing the answers")
        domains = {
            name: DomainResult(
                tuple(control_turns[name]),
                tuple(dspark_turns[name]),
                _compare(join(control_turns[name]), join(dspark_turns[name]), clients[0]),
            )
            for name in DOMAINS
        }
        progress.stage("Stopping the servers")
    return DemoResult(domains, record["worker"], record["gamma"], device, memory)


def _own_record(client: Client) -> Mapping[str, Any]:
    """The worker's record, which only our worker writes like this."""
    try:
        record = client.worker_record()
    except KeyError:
        record = {}
    if not str(record.get("worker", "")).startswith("sglang-dspark"):
        raise DemoError(
            "the DSPARK server does not run our worker; is SGLANG_DSPARK_DISABLE or "
            "SGLANG_PLUGINS set?"
        )
    return record


def _warm_up(arms: Sequence[Arm], prompts: Mapping[str, Sequence[str]], progress: Progress) -> None:
    progress.stage("Warming up", turns=len(arms) * len(DOMAINS))
    for arm in arms:
        for name in DOMAINS:
            arm.take_turn(prompts[name][-WARM_UP_PROMPTS:])
            progress.advance()


Turns = dict[str, list[Samples]]  # by domain, in round order


def _measure(
    plan: DemoPlan,
    arms: tuple[Arm, DSparkArm],
    prompts: Mapping[str, Sequence[str]],
    progress: Progress,
) -> tuple[Turns, Turns]:
    """All rounds. Who goes first changes from round to round."""
    turns: tuple[Turns, Turns] = ({n: [] for n in DOMAINS}, {n: [] for n in DOMAINS})
    progress.stage(
        "Measuring (tokens/s without speculation -> with DSPARK)",
        turns=plan.rounds * len(DOMAINS) * len(arms),
    )
    for number in range(plan.rounds):
        first = number * plan.prompts_per_turn
        for name in DOMAINS:
            asked = prompts[name][first : first + plan.prompts_per_turn]
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                turns[which][name].append(arms[which].take_turn(asked))
                progress.advance()
        control, dspark = turns
        progress.round_done(
            number + 1,
            {n: (control[n][-1].tokens_per_s, dspark[n][-1].tokens_per_s) for n in DOMAINS},
        )
    return turns


def _compare(expected: Samples, got: Samples, control: Client) -> Comparison:
    return compare(
        [s.answer.tokens for s in expected.items],
        [s.answer.tokens for s in got.items],
        gap_at=lambda prompt, position: control.top2_gap(expected.items[prompt].prompt, position),
    )
