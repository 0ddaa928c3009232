"""Run a sweep: start its servers, take the turns that are missing, append them to the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from sglang_dspark.profiling.client import Client
from sglang_dspark.profiling.provenance import machine, versions
from sglang_dspark.profiling.results import (
    ArmRecord,
    Header,
    Results,
    ServerRecord,
    Skipped,
    Turn,
    read_results,
)
from sglang_dspark.profiling.server import Server, ServerError
from sglang_dspark.profiling.sweep.arms import (
    CONTROL,
    DSPARK,
    ArmServer,
    ServerPlan,
    plan_servers,
)
from sglang_dspark.profiling.sweep.plan import ArmPlan, SweepPlan
from sglang_dspark.profiling.sweep.prompts import Pool, make_pool
from sglang_dspark.profiling.sweep.schedule import (
    Round,
    all_rounds,
    arm_order,
    arms_of,
    complete_rounds,
    first_prompt,
)

START_TIMEOUT_S = 900  # a cost table may be measured first


class SweepError(RuntimeError):
    """The sweep cannot go on; what was measured is in the file."""


@dataclass(frozen=True, slots=True)
class SweepJob:
    """A plan, and what it is measured on."""

    plan: SweepPlan
    target: Path
    draft: Path
    prompts: Path  # folder with a file per domain
    out: Path  # the result file
    command: str


class Progress(Protocol):
    def stage(self, text: str, turns: int | None = None) -> None: ...

    def tick(self) -> None: ...

    def advance(self) -> None: ...

    def round_done(self, round_: Round, speeds: Mapping[str, float]) -> None:
        """Tokens/s of every arm in a round."""


def run_sweep(job: SweepJob, progress: Progress) -> Results:
    """Measure every round of the plan that the result file lacks.

    Raises:
        SweepError, ServerError, RequestError, PromptError, ResultsError
    """
    with ExitStack() as stack:
        servers, skipped, records = _start(job, stack, progress)
        arms = {
            arm.name: (arm, servers[server.name])
            for server in plan_servers(job.plan, str(job.target), str(job.draft))
            if server.name in servers
            for arm in server.arms
        }
        turns = _open(job, skipped, records, list(arms))
        _warm_up(job, arms, progress)
        done = {Round.of(turn) for turn in turns}
        missing = [r for r in all_rounds(job.plan) if r not in done]
        progress.stage("Measuring", turns=job.plan.turns(len(arms)) - len(turns))
        sampling = {w.name: job.plan.sampling_of(w) for w in job.plan.workloads}
        pools = _pools(job, next(iter(servers.values())).client)
        with job.out.open("a", encoding="utf-8") as sink:
            for round_ in missing:
                taking = {name: arms[name] for name in arms_of(job.plan, round_, arms, turns)}
                taken = _take(job.plan, round_, taking, pools, sampling, progress)
                # One write per round: what is in the file is whole rounds, and perhaps a torn one.
                sink.write("".join(turn.model_dump_json() + "\n" for turn in taken))
                sink.flush()
                turns += taken
                progress.round_done(round_, {t.arm: t.tokens_per_s for t in taken})
        progress.stage("Stopping the servers")
    return read_results(job.out)


Arms = Mapping[str, tuple[ArmPlan, ArmServer]]


def _start(
    job: SweepJob, stack: ExitStack, progress: Progress
) -> tuple[dict[str, ArmServer], list[Skipped], list[ServerRecord]]:
    """Every server of the plan; one of another algorithm that does not start skips its arm."""
    plans = plan_servers(job.plan, str(job.target), str(job.draft))
    progress.stage(f"Starting {len(plans)} servers")
    servers: dict[str, ArmServer] = {}
    skipped: list[Skipped] = []
    records: list[ServerRecord] = []
    launched = []
    for plan in plans:
        server = Server(plan.flags, log=job.out.parent / f"{job.out.stem}-{plan.name}.log")
        stack.callback(server.stop)
        server.launch()
        launched.append((plan, server))
    for plan, server in launched:
        try:
            server.wait(START_TIMEOUT_S, progress.tick)
        except ServerError as error:
            if plan.name in (CONTROL, DSPARK):
                raise
            skipped += [Skipped(arm=arm.name, reason=str(error)) for arm in plan.arms]
            server.stop()
            continue
        running = ArmServer(server.url, is_ours=plan.name == DSPARK)
        stack.enter_context(closing(running))
        servers[plan.name] = running
        records.append(_describe(plan, running.client))
    return servers, skipped, records


def _describe(plan: ServerPlan, client: Client) -> ServerRecord:
    if plan.name != DSPARK:
        return ServerRecord(name=plan.name, flags=list(plan.flags))
    try:
        record = client.worker_record()
    except KeyError:
        record = {}
    if not str(record.get("worker", "")).startswith("sglang-dspark"):
        raise SweepError(
            "the DSPARK server does not run our worker; is SGLANG_DSPARK_DISABLE or "
            "SGLANG_PLUGINS set?"
        )
    return ServerRecord(
        name=plan.name,
        flags=list(plan.flags),
        worker=record["worker"],
        gamma=record["gamma"],
        cost_table=record["cost_table"],
        calibration=record["calibration"],
    )


def _pools(job: SweepJob, client: Client) -> dict[str, Pool]:
    size = int(json.loads((job.target / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    return {w.name: make_pool(w, job.prompts, size, job.plan.seed) for w in job.plan.workloads}


def _open(
    job: SweepJob, skipped: list[Skipped], records: list[ServerRecord], arms: list[str]
) -> list[Turn]:
    """Write the header of a new file; of one that exists keep the whole rounds -> their turns.

    Raises:
        SweepError: the file holds another plan.
    """
    header = _header(job, records)
    if not job.out.exists():
        job.out.parent.mkdir(parents=True, exist_ok=True)
        _write(job.out, [header, *skipped])
        return []
    _drop_torn_line(job.out)
    found = read_results(job.out)
    if (found.header.plan, found.header.target, found.header.draft) != (
        header.plan,
        header.target,
        header.draft,
    ):
        raise SweepError(
            f"{job.out} holds the results of another plan or pair: give another --out, or --force"
        )
    done = complete_rounds(job.plan, found.turns, arms)
    kept = [turn for turn in found.turns if Round.of(turn) in done]
    _write(job.out, [found.header, *skipped, *kept])
    return kept


def _drop_torn_line(path: Path) -> None:
    """An interrupted write may have left half a line at the end."""
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")


def _write(path: Path, records: list[Header | Skipped | Turn]) -> None:
    part = path.with_suffix(".part")
    part.write_text("".join(r.model_dump_json() + "\n" for r in records), encoding="utf-8")
    part.replace(path)


def _header(job: SweepJob, records: list[ServerRecord]) -> Header:
    homes = {
        arm.name: server.name
        for server in plan_servers(job.plan, str(job.target), str(job.draft))
        for arm in server.arms
    }
    return Header(
        plan=job.plan.model_dump(mode="json"),
        servers=records,
        arms=[
            ArmRecord(
                name=arm.name,
                server=homes[arm.name],
                control=arm.control if homes[arm.name] == DSPARK else {},
            )
            for arm in job.plan.arms
        ],
        target=str(job.target),
        draft=str(job.draft),
        machine=dict(machine()),
        versions=versions(),
        command=job.command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _warm_up(job: SweepJob, arms: Arms, progress: Progress) -> None:
    """Each arm once at every concurrency: first batches of a size are slow everywhere."""
    progress.stage("Warming up", turns=len(arms) * len(job.plan.concurrency))
    workload = job.plan.workloads[-1]
    pools = _pools(job, next(iter(arms.values()))[1].client)
    unused = sum(job.plan.num_requests(c) for c in job.plan.concurrency)
    unused *= job.plan.rounds * job.plan.repeats  # prompts that no round asks
    for concurrency in job.plan.concurrency:
        prompts = pools[workload.name].take(unused, concurrency)
        for arm, server in arms.values():
            server.steer(arm.control)
            server.take_turn(prompts, job.plan.sampling_of(workload), concurrency)
            progress.advance()


def _take(
    plan: SweepPlan,
    round_: Round,
    arms: Arms,
    pools: Mapping[str, Pool],
    sampling: Mapping[str, Mapping[str, object]],
    progress: Progress,
) -> list[Turn]:
    """One round: the same prompts to every arm, in a random order of the arms."""
    count = plan.num_requests(round_.concurrency)
    prompts = pools[round_.workload].take(first_prompt(plan, round_), count)
    turns = []
    for place, name in enumerate(arm_order(list(arms), round_, plan.seed)):
        arm, server = arms[name]
        server.steer(arm.control)
        asked = sampling[round_.workload]
        result = server.take_turn(prompts, asked, round_.concurrency)
        turns.append(
            Turn(
                round=round_.number,
                repeat=round_.repeat,
                workload=round_.workload,
                concurrency=round_.concurrency,
                arm=name,
                order=place,
                seconds=result.seconds,
                sampling=dict(asked),
                requests=result.requests,
                worker=result.worker,
                draft_lens_by_domain=result.draft_lens_by_domain,
            )
        )
        progress.advance()
    return turns
