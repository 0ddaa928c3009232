"""What a person sees of the doctor: findings by group, then the verdict."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sglang_dspark.doctor.facts import Probed
from sglang_dspark.doctor.finding import Finding, Verdict
from sglang_dspark.doctor.judge import GROUPS
from sglang_dspark.doctor.server import OUR_WORKER

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
TOPIC_WIDTH = max(len(topic) for topics in GROUPS.values() for topic in topics)
VERDICTS: dict[Verdict, tuple[str, str]] = {
    "will-run": ("Will run", "bold green"),
    "will-run-with-warnings": ("Will run, with warnings", "bold yellow"),
    "will-be-refused": ("Will be refused", "bold red"),
}


def show_report(
    console: Console,
    flags: Sequence[str],
    findings: Sequence[Finding],
    outcome: Verdict,
    probed: Probed | None,
) -> None:
    command = shlex.join(["python", "-m", "sglang.launch_server", *flags])
    console.print(Text.assemble(("doctor  ", "bold"), (command, "dim")))
    for group, topics in GROUPS.items():
        if lines := [finding for finding in findings if finding.topic in topics]:
            console.print(Text(group, style="bold"))
            console.print(_grid(lines))
    words, style = VERDICTS[outcome]
    console.print(Text.assemble((words, style), _summary(findings, outcome, probed)))


def _grid(lines: Sequence[Finding]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=9)
    grid.add_column(width=TOPIC_WIDTH)
    grid.add_column(overflow="fold")
    for finding in lines:
        text = Text(finding.text)
        if finding.advice:
            text.append(f"\n-> {finding.advice}", style="cyan")
        level = Text(f"  {finding.level}", style=STYLES[finding.level])
        grid.add_row(level, Text(finding.topic, style="dim"), text)
    return grid


def _summary(findings: Sequence[Finding], outcome: Verdict, probed: Probed | None) -> str:
    problems = sum(finding.level == "problem" for finding in findings)
    if outcome == "will-be-refused":
        return f": {problems} problem{'s' if problems > 1 else ''} above."
    if probed is None or probed.served is None or probed.draft is None:
        return "."
    ours = probed.worker == OUR_WORKER and probed.plugin_ran
    whose = "sglang-dspark's worker" if ours else "SGLang's own worker, not sglang-dspark's"
    served = probed.served
    return (
        f": DSPARK by {whose} on {served.device}, gamma {probed.draft.gamma}, verify mode "
        f"{served.mode}."
    )
