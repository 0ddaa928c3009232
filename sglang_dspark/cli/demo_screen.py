"""What a person sees of the demo: progress while it runs, then answers, a table and a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping

import psutil
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sglang_dspark.cli.progress import StageProgress
from sglang_dspark.profiling.demo import DemoPlan, DemoResult
from sglang_dspark.profiling.demo_record import DomainNumbers

BUSY_LOAD = 0.5  # runnable processes per core before the demo has started any
ANSWERS_SHOWN = 2  # per domain
PROMPT_LINES, PROMPT_CHARS = 4, 240  # the end of it
ANSWER_LINES, ANSWER_CHARS = 14, 800


class DemoProgress(StageProgress):
    """The `Progress` of the demo."""

    def round_done(self, number: int, speeds: Mapping[str, tuple[float, float]]) -> None:
        cells = (
            f"{domain} {control:6.1f} -> {dspark:6.1f} tok/s ({dspark / control:.2f}x)"
            for domain, (control, dspark) in speeds.items()
        )
        self.console.print(f"  round {number:2d}   " + "   ".join(cells), highlight=False)


def show_plan(console: Console, plan: DemoPlan) -> None:
    per_domain = plan.rounds * plan.prompts_per_turn
    console.print(
        f"[bold]sglang-dspark demo[/bold]: target {plan.target}, draft {plan.draft}\n"
        f"fp32, temperature 0, one request at a time; {per_domain} prompts per domain, "
        f"up to {plan.max_new_tokens} tokens each, {plan.rounds} interleaved rounds.\n"
        f"Server logs are in {plan.out}.",
        highlight=False,
    )
    if (load := psutil.getloadavg()[0]) > BUSY_LOAD * (psutil.cpu_count() or 1):
        console.print(
            f"[yellow]Others keep this machine busy (load {load:.1f}): "
            "expect wide intervals and a long wait.[/]",
            highlight=False,
        )


def show_result(console: Console, result: DemoResult, numbers: Mapping[str, DomainNumbers]) -> None:
    """A few answers, the table and the verdict."""
    _show_answers(console, result)
    console.print(_table(numbers))
    _show_verdict(console, result)


def _show_answers(console: Console, result: DemoResult) -> None:
    for name, domain in result.domains.items():
        differing = {flip.prompt for flip in domain.comparison.flips}
        samples = [s for turn in domain.dspark for s in turn.items]
        for number, sample in enumerate(samples[:ANSWERS_SHOWN]):
            body = Text(_end_of(sample.prompt), style="dim") + Text(_start_of(sample.answer.text))
            same = "DIFFERENT from" if number in differing else "same as"
            title = (
                f"{name} {number + 1}: end of the prompt, then the answer ({same} no speculation)"
            )
            console.print(Panel(body, title=title, title_align="left"))


def _end_of(prompt: str) -> str:
    shown = "\n".join(prompt.splitlines()[-PROMPT_LINES:])[-PROMPT_CHARS:]
    return shown if shown == prompt else "[...] " + shown.lstrip()


def _start_of(answer: str) -> str:
    shown = "\n".join(answer.splitlines()[:ANSWER_LINES])[:ANSWER_CHARS]
    return shown if len(shown) >= len(answer.rstrip()) else shown + " [...]"


def _table(numbers: Mapping[str, DomainNumbers]) -> Table:
    rows: dict[str, list[str]] = {}
    for domain in numbers.values():
        for label, cell in _cells(domain).items():
            rows.setdefault(label, []).append(cell)
    table = Table(title="batch 1, temperature 0, fp32", title_justify="left")
    table.add_column("")
    for name in numbers:
        table.add_column(name, justify="right")
    for label, cells in rows.items():
        style = "bold" if label.startswith("speed ratio") else None
        table.add_row(label, *cells, style=style)
    return table


def _cells(n: DomainNumbers) -> dict[str, str]:
    ratio = n.speedup
    return {
        "tokens/s, no speculation": f"{n.no_spec_tok_s:.1f}",
        "tokens/s, DSPARK": f"{n.dspark_tok_s:.1f}",
        "speed ratio (95 % interval)": f"{ratio.value:.2f} ({ratio.low:.2f} .. {ratio.high:.2f})",
        "ms per output token, no speculation": _number(n.no_spec_tpot_ms),
        "ms per output token, DSPARK": _number(n.dspark_tpot_ms),
        "accept length": _number(n.accept_length),
        "  without answers that loop": (
            f"{_number(n.accept_length_without_loops)} ({n.looping_answers} of {n.answers} loop)"
        ),
        "  as SGLang counts it": _number(n.sglang_accept_length),
        "worker overhead per step, ms": f"{n.overhead_ms:.2f} of {n.step_ms:.2f}",
    }


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _show_verdict(console: Console, result: DemoResult) -> None:
    comparison = result.comparison
    for name, domain in result.domains.items():
        for flip in domain.comparison.flips:
            console.print(f"  {name}: {flip}", style="yellow" if flip.excused else "red")
    console.print(
        f"Served by {result.worker}, gamma {result.gamma}, on {result.device}; "
        f"its memory (PSS) after the load: {result.memory_pss_mb:,.0f} MB.",
        highlight=False,
    )
    amount = f"{comparison.prompts} prompts, {comparison.tokens:,} tokens"
    excused = f"{comparison.excused_flips} excused flips"
    if comparison.identical:
        console.print(f"[bold green]Token-identical to no speculation[/]: {amount}, {excused}.")
    else:
        different = sum(not f.excused for f in comparison.flips)
        console.print(f"[bold red]NOT token-identical[/]: {different} flips, {excused}; {amount}.")
