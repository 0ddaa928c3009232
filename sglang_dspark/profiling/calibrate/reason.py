"""One sentence on why one temperature leaves an error that is above the target."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

TARGET_ECE = 0.02
SIMILAR = 0.75  # a bound at least this part of the error leaves a temperature little to gain


def explain(
    position: int,
    survival: F64,
    survived: npt.NDArray[np.bool_],
    ece: float,
    monotone_ece: float,
    perfect_ece_95: float,
) -> str:
    """survival, survived: [n] held-out, after the fit."""
    head = f"position {position}: ECE {ece:.1%}, best monotone fit {monotone_ece:.1%}: "
    if ece <= perfect_ece_95:
        return head + (
            f"within what a perfect predictor shows at {len(survival):,} rounds "
            f"(up to {perfect_ece_95:.1%}); more rounds would tell"
        )
    if monotone_ece >= SIMILAR * ece:
        return head + (
            "a map that fits its own half exactly does no better on this one, so the requests of "
            "the two halves differ by that much, and nothing in this confidence tells them apart"
        )
    below, above = _gaps(survival, survived)
    where = f"acceptance minus survival is {below:+.1%} in the lower half and {above:+.1%} above"
    if below * above > 0:
        return (
            head
            + where
            + (
                ": a shift, and a temperature only turns the curve about confidence 0.5, "
                "it has no bias term"
            )
        )
    return (
        head
        + where
        + (
            ": the sign changes, so the curve bends or crosses away from confidence 0.5, the only "
            "point about which a temperature can turn it"
        )
    )


def _gaps(survival: F64, survived: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Mean of (outcome - survival) over the lower and the upper half of the survivals."""
    order = np.argsort(survival, kind="stable")
    gap = (survived - survival)[order]
    middle = len(gap) // 2
    return float(gap[:middle].mean()), float(gap[middle:].mean())
