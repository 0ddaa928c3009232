"""What a profile measures: cells (R requests, B verified rows, C context tokens) in groups.

A group is one batch, R requests with C context tokens in all, and every budget it is pinned to.
Budgets are verified out of whole blocks; at the least context and at the held-out one, narrower
blocks are measured as well, each verified as a whole. Pure planning: nothing here talks to a
server.

Rows are spread over requests in all the ways a scheduler meets them: R requests with 1, 2, 4, ...
rows each. So B rows are measured once as few requests with long windows and once as many with
short ones, and the table's verify(B, C), which does not know R, lies between the two.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt

MIN_PROMPT = 32  # tokens per request; a shorter one would double within a few steps
CAPACITY_SHARE = 0.7  # of the KV pool; the rest is for what the requests generate
HOLD_OUT_EVERY = 3  # groups of which the first gives up one of its inner budgets

# Of one step and of prefill, in ms; bundled pair on two CPU cores. For the dry run only.
GUESS_STEP, GUESS_ROW, GUESS_CONTEXT_TOKEN, GUESS_PROMPT_TOKEN = 16.0, 0.35, 0.001, 0.3
GUESS_PIN = 60.0  # telling the server, reading its trace


class PlanError(ValueError):
    """Nothing can be profiled like this; the text names the option to change."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server can hold."""

    gamma: int  # drafts per block
    max_requests: int  # that run at once
    context_len: int  # tokens of one request
    capacity: int | None  # tokens of all requests; None: not known before it is started


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of step: `budget` drafts verified over the batch, or None for a no-draft step."""

    requests: int  # R
    context: int  # C as planned; what a step really had is in its trace line
    budget: int | None
    width: int | None = None  # drafts proposed per request; None: the whole trained block

    @property
    def rows(self) -> int:
        """B: rows that the target must be given."""
        return self.requests + (self.budget or 0)

    def __str__(self) -> str:
        what = "no draft" if self.budget is None else f"budget {self.budget}"
        what += "" if self.width is None else f" of blocks of {self.width}"
        return f"{self.requests} requests, {self.context} context tokens, {what}"


@dataclass(frozen=True, slots=True)
class Group:
    """One batch and all it is pinned to."""

    requests: int
    context: int
    cells: tuple[Cell, ...]

    @property
    def prompt_len(self) -> int:
        """Tokens per prompt: a little less than the context, for it grows while it is measured."""
        return max(1, int(0.9 * self.context / self.requests))


@dataclass(frozen=True, slots=True)
class Plan:
    """Every group, and which cells the fit must not see."""

    groups: tuple[Group, ...]
    held_out_context: int  # measured, but never fitted
    held_out: frozenset[Cell]  # cells of that context, and some others
    steps: int  # timed steps per cell and repeat
    left_out: tuple[str, ...]  # what was asked for and does not fit this server

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for group in self.groups for cell in group.cells)


def make_plan(limits: Limits, contexts: Sequence[int], *, steps: int, fine: bool) -> Plan:
    """The groups that fit a server.

    Args:
        contexts: context tokens of the whole batch to fit at; between the middle two of them lies
            the one that is held out.
        steps: timed steps per cell and repeat.
        fine: more budgets per group.

    Raises:
        PlanError: fewer than two contexts, or none that fits.
    """
    if len(set(contexts)) < 2 or min(contexts) < 1:
        raise PlanError(f"--contexts {_listed(contexts)}: give at least two, each 1 or more")
    fitted = sorted(set(contexts))
    held_out_context = held_out_between(fitted)
    groups: list[Group] = []
    left_out: list[str] = []
    least = {
        r: c
        for c in reversed(fitted)
        for r in powers(limits.max_requests)
        if misfit(r, c, limits) is None
    }
    for context in sorted({*fitted, held_out_context}):
        for requests in powers(limits.max_requests):
            if reason := misfit(requests, context, limits):
                left_out.append(f"{requests} requests, {context} context tokens: {reason}")
            else:
                narrow = context in (least.get(requests), held_out_context)
                groups.append(_group(requests, context, limits.gamma, fine, narrow))
    usable = {g.context for g in groups}
    if held_out_context not in usable or len(usable) < 3:
        raise PlanError(
            f"--contexts {_listed(fitted)}: at least two of them and {held_out_context} between "
            f"them must fit this server, but {'; '.join(left_out)}"
        )
    held_out = frozenset(_held_out(groups, held_out_context))
    return Plan(tuple(groups), held_out_context, held_out, steps, tuple(left_out))


def held_out_between(contexts: Sequence[int]) -> int:
    """The geometric mean of the middle two."""
    middle = len(contexts) // 2
    return isqrt(contexts[middle - 1] * contexts[middle])


def misfit(requests: int, context: int, limits: Limits) -> str | None:
    """Why that many requests cannot have that much context here; None if they can."""
    each = context // requests
    if each < MIN_PROMPT:
        return f"less than {MIN_PROMPT} tokens each"
    if each > CAPACITY_SHARE * limits.context_len:
        return f"over {CAPACITY_SHARE:.0%} of a request's {limits.context_len} tokens"
    if limits.capacity is not None and context > CAPACITY_SHARE * limits.capacity:
        return f"over {CAPACITY_SHARE:.0%} of the {limits.capacity} tokens of the KV pool"
    return None


def _group(requests: int, context: int, gamma: int, fine: bool, narrow: bool) -> Group:
    cells = [Cell(requests, context, b) for b in budgets(requests, gamma, fine)]
    if narrow:
        cells += [Cell(requests, context, requests * w, w) for w in narrow_widths(gamma, fine)]
    return Group(requests, context, tuple(cells))


def narrow_widths(gamma: int, fine: bool) -> tuple[int, ...]:
    """Blocks below the trained one: the least and a middle one, or a few more."""
    widths = {1, (gamma + 1) // 2, *((2, 3, 5) if fine else ())}
    return tuple(sorted(w for w in widths if w < gamma))


def budgets(requests: int, gamma: int, fine: bool) -> tuple[int | None, ...]:
    """No-draft, then drafts over the batch, from none to all, the same number for each request."""
    levels = {*powers(gamma + 1)}
    if fine:
        levels |= {3 * n for n in powers(gamma + 1) if 3 * n <= gamma + 1}
    return (None, *(requests * (level - 1) for level in sorted(levels)))


def powers(largest: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the largest."""
    return (*(2**k for k in range(largest.bit_length()) if 2**k < largest), largest)


def _held_out(groups: Sequence[Group], context: int) -> Iterator[Cell]:
    """All cells of a context, and an inner budget of every third other group."""
    others = [g for g in groups if g.context != context]
    for group in groups:
        if group.context == context:
            yield from group.cells
    for group in others[::HOLD_OUT_EVERY]:
        inner = [c for c in group.cells if c.budget and c.width is None][:-1]  # nor all
        if inner:
            yield inner[len(inner) // 2]


def order(groups: Sequence[Group], repeat: int) -> list[Group]:
    """The groups of a repeat; every repeat visits them, and their budgets, in another order.

    So what slows the machine for a while does not slow the same cells each time.
    """
    rng = random.Random(repeat)
    shuffled = [
        Group(g.requests, g.context, tuple(rng.sample(g.cells, len(g.cells)))) for g in groups
    ]
    rng.shuffle(shuffled)
    return shuffled


def expected_seconds(group: Group, steps: int) -> float:
    """A guess of what a group takes once, for the bundled pair on two CPU cores."""
    prompt_ms = group.context * GUESS_PROMPT_TOKEN
    step_ms = (
        GUESS_STEP + c.rows * GUESS_ROW + c.context * GUESS_CONTEXT_TOKEN for c in group.cells
    )
    return (prompt_ms + sum(GUESS_PIN + ms * steps * 1.5 for ms in step_ms)) / 1e3


def _listed(contexts: Sequence[int]) -> str:
    return ",".join(map(str, contexts))
