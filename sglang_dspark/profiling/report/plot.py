"""What a figure is once it is drawn, and what stands in its place when it cannot be."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure

NAMES = (
    *("ratios", "frontier", "load", "acceptance"),
    *("threshold", "reliability", "step_time"),
)


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure with its words."""

    name: str  # one of NAMES
    title: str
    caption: str  # what is seen
    source: str  # the data and the command behind it
    figure: Figure

    @property
    def file(self) -> str:
        return file_of(self.name)

    @property
    def width_in(self) -> float:
        """Inches as drawn."""
        return float(self.figure.get_figwidth())


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A figure that these inputs do not allow."""

    title: str
    reason: str


def file_of(name: str) -> str:
    """File name of a figure."""
    return f"{name}.png"
