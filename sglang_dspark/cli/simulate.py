"""`sglang-dspark simulate`: what another policy, table or concurrency would have done."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sglang_dspark.cli.common import Json, fail, print_json, screen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sglang_dspark.core.cost_table import CostTable
    from sglang_dspark.profiling.simulate.histories import Workload
    from sglang_dspark.profiling.simulate.replay import Outcome
    from sglang_dspark.profiling.traces import Trace

STATIC_SHOWN = (1, 3, 5, 7)  # gamma limits that are replayed without --policy


def simulate(
    traces: Annotated[
        list[str],
        typer.Argument(
            help="Traces recorded in cap-accept: FILE or NAME=FILE. Several are replayed as one "
            "mixture."
        ),
    ],
    table: Annotated[Path, typer.Option(help="Cost table that prices the steps.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="compact, static-<gamma>, no-draft, pinned-<drafts or share of all>, "
            "algorithm-1, oracle; may be repeated. Without it compact, some static ones, no-draft "
            "and oracle."
        ),
    ] = None,
    concurrency: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Requests at once; may be repeated. Without it as recorded."),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            min=1, help="Requests to replay; without it all up to 256, at least 8 per slot."
        ),
    ] = None,
    host_gap: Annotated[
        bool,
        typer.Option(help="Add the engine's own time between steps, as the trace shows it."),
    ] = True,
    compare: Annotated[
        Path | None,
        typer.Option(help="Results of a sweep: does the replay predict who was faster?"),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="With --compare: the arm that compact is compared with."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the order of requests.")] = 0,
    as_json: Json = False,
) -> None:
    """Replay recorded traffic with the planner's own code: no GPU, no server.

    Each request goes through its recorded blocks in order, whatever was
    committed, until it has as many tokens as in the trace; all slots are kept
    busy. Time is the cost table's. Regret: the share of tokens that an oracle,
    which knows the outcomes and takes the best step every time, had more.
    """
    from sglang_dspark.cli.simulate_screen import show_comparison, show_outcomes
    from sglang_dspark.core.cost_table import CostTableError
    from sglang_dspark.profiling.results import ResultsError
    from sglang_dspark.profiling.simulate.compare import CompareError
    from sglang_dspark.profiling.simulate.histories import workload_of
    from sglang_dspark.profiling.simulate.policies import PolicyError
    from sglang_dspark.profiling.simulate.table import read_table, table_notes
    from sglang_dspark.profiling.traces import TraceError, read_named_traces

    if against is not None and compare is None:
        fail("--against is for --compare: name a result file too")
    if compare is not None and (policy or concurrency or requests):
        fail("--compare takes policies, concurrency and requests from the results: leave them out")
    talk = screen(as_json)
    try:
        found, prices = read_named_traces(traces), read_table(table)
        workload = workload_of(list(found.values()))
        notes = [*_workload_notes(workload, found), *table_notes(prices, list(found.values()))]
        if compare is not None:
            against = against or f"static-{workload.gamma}"
            comparison = _compare(compare, found, prices, (against, host_gap, seed))
            show_comparison(talk, comparison, notes)
            record: dict[str, Any] = comparison.as_record() | {"notes": notes}
        else:
            outcomes = _replay(
                workload, prices, policy, concurrency or [workload.most_requests],
                (requests, host_gap, seed),
            )  # fmt: skip
            show_outcomes(talk, outcomes, notes)
            record = {"outcomes": [o.as_record() for o in outcomes], "notes": notes}
    except (TraceError, CostTableError, PolicyError, ResultsError, CompareError) as error:
        fail(str(error))
    if as_json:
        print_json(record)


def _replay(
    workload: Workload,
    prices: CostTable,
    names: list[str] | None,
    concurrencies: Sequence[int],
    choices: tuple[int | None, bool, int],
) -> list[Outcome]:
    """choices: --requests, --host-gap, --seed. Raises PolicyError."""
    from sglang_dspark.profiling.simulate.policies import parse_policy
    from sglang_dspark.profiling.simulate.replay import run_policy
    from sglang_dspark.profiling.simulate.table import price_steps

    requests, host_gap, seed = choices
    policies = [
        parse_policy(name, workload.gamma) for name in names or _usual_policies(workload, prices)
    ]
    outcomes = []
    for number in concurrencies:
        costs, host = price_steps(prices, number, workload, host_gap=host_gap)
        histories = workload.choose(number, requests, seed)
        outcomes += [run_policy(workload, costs, p, number, histories, host) for p in policies]
    return outcomes


def _usual_policies(workload: Workload, prices: CostTable) -> list[str]:
    limits = sorted({g for g in STATIC_SHOWN if g < workload.gamma} | {workload.gamma})
    plain = ["no-draft"] if prices.no_draft is not None else []
    return ["compact", *(f"static-{g}" for g in limits), *plain, "oracle"]


def _compare(
    file: Path,
    traces: Mapping[str, Trace],
    prices: CostTable,
    choices: tuple[str, bool, int],
) -> Any:
    """choices: --against, --host-gap, --seed."""
    from sglang_dspark.profiling.results import read_results
    from sglang_dspark.profiling.simulate.compare import compare

    against, host_gap, seed = choices
    return compare(read_results(file), traces, prices, against, host_gap=host_gap, seed=seed)


def _workload_notes(workload: Workload, traces: Mapping[str, Trace]) -> list[str]:
    notes = [f"{name}: the trace was cut off" for name, t in traces.items() if t.truncated]
    if workload.dropped:
        notes.append(f"requests left out because nothing was drafted for them: {workload.dropped}")
    return notes
