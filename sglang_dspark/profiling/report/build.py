"""From a sweep's results, and what else there is, to a document with its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglang_dspark.profiling.calibrate.report import Report
from sglang_dspark.profiling.report import (
    figures_draft,
    figures_load,
    figures_steps,
    origin,
    tables,
    words,
)
from sglang_dspark.profiling.report.acceptance import acceptance_by_position
from sglang_dspark.profiling.report.document import Document
from sglang_dspark.profiling.report.plot import LeftOut, Plot
from sglang_dspark.profiling.report.points import PointSummary, summarize_points
from sglang_dspark.profiling.report.profile import ProfileSummary
from sglang_dspark.profiling.report.rounds import COMPACT, ArmKinds, ReportError
from sglang_dspark.profiling.report.style import arm_styles
from sglang_dspark.profiling.report.trace import step_times, threshold_sweep
from sglang_dspark.profiling.results import Results
from sglang_dspark.profiling.traces import Trace


@dataclass(frozen=True, slots=True)
class Inputs:
    results: Results
    results_name: str
    command: str  # of this report
    traces: tuple[Trace, ...] = ()
    calibration: Report | None = None
    calibration_name: str = ""
    profile: ProfileSummary | None = None
    profile_name: str = ""

    def __post_init__(self) -> None:
        names = [t.name for t in self.traces]
        if twice := {n for n in names if names.count(n) > 1}:
            raise ReportError(f"--trace: two files are named {sorted(twice)[0]}; rename one")
        for trace in self.traces:
            gamma = trace.header.gamma
            if self.calibration is not None and self.calibration.gamma != gamma:
                raise ReportError(
                    f"--calibration is of gamma {self.calibration.gamma}, --trace {trace.name} of "
                    f"gamma {gamma}: give those of one draft"
                )


class Builder:
    """Draws what the inputs allow; every figure is a method that gives it or says why not."""

    def __init__(self, inputs: Inputs) -> None:
        """Raises ReportError where the results contradict themselves."""
        self._in = inputs
        self.points: Sequence[PointSummary] = summarize_points(inputs.results)
        self._kinds = ArmKinds.of(inputs.results.header)
        self._styles = arm_styles(self._kinds.kinds)

    def build(self) -> Document:
        results = self._in.results
        drawn = [figure() for figure in self._figures()]
        numbers = [tables.throughput(self.points), tables.latency(self.points)]
        numbers += [t for t in (tables.drafting(self.points), tables.domains(self.points)) if t]
        if self._in.calibration is not None:
            numbers.append(tables.calibration(self._in.calibration))
            remarks = tables.calibration_remarks(self._in.calibration)
            numbers += [remarks] if remarks else []
        errors = sum(p.errors for p in self.points)
        return Document(
            title="DSpark speculative decoding: sweep report",
            facts=origin.facts(results, self._in.results_name, self._in.command),
            findings=tuple(words.findings(self.points, self._kinds)),
            notes=tuple(words.notes(self.points, self._kinds, errors)),
            plots=tuple(d for d in drawn if isinstance(d, Plot)),
            left_out=tuple(d for d in drawn if isinstance(d, LeftOut)),
            numbers=tuple(numbers),
            origin=origin.tables(results),
        )

    def _figures(self) -> list[Callable[[], Plot | LeftOut]]:
        return [
            self._ratios, self._frontier, self._load, self._acceptance, self._threshold,
            self._reliability, self._step_time,
        ]  # fmt: skip

    @property
    def _sweep(self) -> str:
        return f"{self._in.results_name}, made by: {self._in.results.header.command}"

    def _ratios(self) -> Plot | LeftOut:
        title = "Speed against no speculation and against the best fixed arm"
        if not any(p.vs_no_speculation for p in self.points):
            return LeftOut(title, "no round has both an arm and no speculation with answers")
        figure = figures_load.ratios(self.points, self._styles)
        return Plot("ratios", title, words.ratios(self.points), self._sweep, figure)

    def _frontier(self) -> Plot | LeftOut:
        title = "Throughput against speed per user (paper, figure 7)"
        if not any(p.user_tokens_per_s for p in self.points):
            return LeftOut(title, "no request was answered")
        arms = list(dict.fromkeys(p.arm for p in self.points))
        numbered = next((a for a in arms if self._kinds.kinds[a] == COMPACT), arms[-1])
        figure = figures_load.frontier(self.points, self._styles, numbered)
        caption = words.frontier(self.points, numbered)
        return Plot("frontier", title, caption, self._sweep, figure)

    def _load(self) -> Plot:
        title = "Throughput and draft_len against load (paper, figure 8)"
        figure = figures_load.load(self.points, self._styles)
        return Plot("load", title, words.load(self.points, self._kinds), self._sweep, figure)

    def _acceptance(self) -> Plot | LeftOut:
        title = "Acceptance by draft position (paper, figure 2)"
        found = acceptance_by_position(self._in.results)
        if not found:
            return LeftOut(
                title,
                "no arm verified windows of one size, so the histograms do not tell how often a "
                "position was tried; add a static arm to the sweep",
            )
        figure = figures_draft.acceptance(found, self._styles)
        return Plot("acceptance", title, words.acceptance(found), self._sweep, figure)

    def _threshold(self) -> Plot | LeftOut:
        title = "Confidence threshold in place of the scheduler (paper, figure 5)"
        if not self._in.traces:
            return LeftOut(title, "give --trace with a trace recorded in cap-accept")
        report = self._in.calibration
        temperatures = None if report is None else tuple(report.temperatures)
        sweeps, pairs = {}, 0
        for trace in self._in.traces:
            sweep, count = threshold_sweep(trace, temperatures=temperatures)
            if sweep:
                sweeps[trace.name] = sweep
                pairs += count
        if not sweeps:
            return LeftOut(
                title,
                "the trace has no ceiling, so what lay beyond the windows was never judged; "
                "record one in cap-accept",
            )
        caption = words.threshold(sweeps, pairs, temperatures is not None)
        source = "traces " + ", ".join(sweeps)
        return Plot("threshold", title, caption, source, figures_draft.threshold(sweeps))

    def _reliability(self) -> Plot | LeftOut:
        title = "Reliability of the confidences (paper, figure 6)"
        report = self._in.calibration
        if report is None:
            return LeftOut(title, "give --calibration with the folder of sglang-dspark calibrate")
        group = report.groups[0]
        made = report.provenance.get("command", "sglang-dspark calibrate")
        return Plot(
            "reliability",
            title,
            words.reliability(group),
            f"{self._in.calibration_name}, made by: {made}",
            figures_draft.reliability(group.positions),
        )

    def _step_time(self) -> Plot | LeftOut:
        title = "Step time, predicted against measured"
        profile = self._in.profile
        traced = {t.name: pairs for t in self._in.traces if len(pairs := step_times(t))}
        means = figures_steps.point_pairs(self.points)
        if not len(means) and not traced and profile is None:
            return LeftOut(title, "no step was predicted: the servers ran without a cost table")
        compared = {
            "the cells that the fit used": figures_steps.profile_pairs(profile, held_out=False),
            "the cells that were held out": figures_steps.profile_pairs(profile, held_out=True),
            "the means of the sweep's points": means,
            **{f"the steps of {name}": pairs for name, pairs in traced.items()},
        }
        errors = {
            k: figures_steps.median_error(pairs) for k, pairs in compared.items() if len(pairs)
        }
        sources = [self._sweep] if len(means) else []
        sources += ["traces " + ", ".join(traced)] if traced else []
        if profile is not None:
            sources.append(f"{self._in.profile_name}, made by: {profile.provenance.command}")
        figure = figures_steps.step_time(self.points, self._styles, traced, profile)
        return Plot("step_time", title, words.step_time(errors), "; ".join(sources), figure)
