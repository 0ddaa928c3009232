"""Progress of a command on a terminal; plain lines where there is none."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich import progress as bars
from rich.console import Console, RenderableType


class _WhenCounted(bars.ProgressColumn):
    """A column that only a stage of known length shows."""

    def __init__(self, column: bars.ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: bars.Task) -> RenderableType:
        return self._column(task) if task.total is not None else ""


class StageProgress:
    """Stages one after another, each with a bar where its length is known."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar = bars.Progress(
            bars.SpinnerColumn(),
            bars.TextColumn("{task.description}"),
            bars.TimeElapsedColumn(),
            _WhenCounted(bars.BarColumn(bar_width=24)),
            _WhenCounted(bars.MofNCompleteColumn()),
            _WhenCounted(bars.TimeRemainingColumn()),
            _WhenCounted(bars.TextColumn("left")),
            console=console,
            transient=True,
        )
        self._task: bars.TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def stage(self, text: str, turns: int | None = None) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self.console.print(f"[bold]{text}[/bold]" + (f": {turns} turns" if turns else ""))
        self._task = self._bar.add_task(text.partition(" (")[0], total=turns)

    def tick(self) -> None:
        self._bar.refresh()

    def advance(self) -> None:
        if self._task is not None:
            self._bar.advance(self._task)
