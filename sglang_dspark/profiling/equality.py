"""Are two servers' answers at temperature 0 the same text? The rule, without the servers.

Per prompt the first difference is a *flip* and comparison ends there: what follows it follows a
different prefix. A flip is excused only where the control itself was at a near-tie, its two best
logits less than `NEAR_TIE` apart, since rounding (a batch of another size, a prefix from the cache)
may then decide. More than one excused flip in `TOKENS_PER_EXCUSE` compared tokens fails all the
same: near-ties of fp32 logits are far rarer than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

NEAR_TIE = 1e-5  # of logits
TOKENS_PER_EXCUSE = 10_000

Tokens = Sequence[int]
GapAt = Callable[[int, int], float]  # (prompt, output position) -> the control's top-2 logit gap


@dataclass(frozen=True, slots=True)
class Flip:
    """The first difference of one prompt."""

    prompt: int  # index
    position: int  # output position, from 0
    expected: int | None  # the control's token; None where its answer had ended
    got: int | None
    gap: float  # between the control's two best logits there; infinite where an answer just ended

    @property
    def excused(self) -> bool:
        return self.gap < NEAR_TIE

    def __str__(self) -> str:
        verdict = "excused" if self.excused else "NOT excused"
        return (
            f"prompt {self.prompt}, output token {self.position}: {self.expected} became "
            f"{self.got}, the control's top-2 gap is {self.gap:.3g} ({verdict})"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outcome over all prompts."""

    prompts: int
    tokens: int  # compared, flips included
    flips: tuple[Flip, ...] = ()

    @property
    def excused_flips(self) -> int:
        return sum(flip.excused for flip in self.flips)

    @property
    def identical(self) -> bool:
        """No flip but excused ones, and no more of them than near-ties can explain."""
        allowed = max(1.0, self.tokens / TOKENS_PER_EXCUSE)
        return self.excused_flips == len(self.flips) and self.excused_flips <= allowed

    def __add__(self, other: Comparison) -> Comparison:
        """Both sets of prompts as one; flips keep their prompt numbers."""
        return Comparison(
            self.prompts + other.prompts, self.tokens + other.tokens, self.flips + other.flips
        )

    def __str__(self) -> str:
        verdict = "identical" if self.identical else "DIFFERENT"
        head = f"{verdict}: {self.prompts} prompts, {self.tokens} tokens, {len(self.flips)} flips"
        return "\n  ".join([head, *map(str, self.flips)])


def first_difference(expected: Tokens, got: Tokens) -> int | None:
    """Position of the first token that differs or that only one side has; None when equal."""
    for position, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return position
    return None if len(expected) == len(got) else min(len(expected), len(got))


def compare(expected: Sequence[Tokens], got: Sequence[Tokens], gap_at: GapAt) -> Comparison:
    """Compare the answers to the same prompts, in the same order.

    Args:
        expected: the control's answers, without speculation.
        gap_at: asked only where both sides have a token and the tokens differ.
    """
    flips, tokens = [], 0
    for prompt, (a, b) in enumerate(zip(expected, got, strict=True)):
        position = first_difference(a, b)
        if position is None:
            tokens += len(a)
            continue
        tokens += position + 1
        ended = position == min(len(a), len(b))
        flips.append(
            Flip(
                prompt,
                position,
                expected=a[position] if position < len(a) else None,
                got=b[position] if position < len(b) else None,
                gap=inf if ended else gap_at(prompt, position),
            )
        )
    return Comparison(len(expected), tokens, tuple(flips))
