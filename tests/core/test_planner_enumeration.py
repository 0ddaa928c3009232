"""Losslessness of the scheduler by enumeration in float64 (paper.md, "What keeps it lossless").

The real planner, relay and allocation; 2 requests over 4 rounds, then one request with the
noise shared wherever its keys are equal.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from itertools import product

import numpy as np
import pytest

from sglang_dspark.core.accept import transition_law
from sglang_dspark.core.allocate import allocate
from sglang_dspark.core.arms import ArmRules
from sglang_dspark.core.budget import expected_tokens, search
from sglang_dspark.core.draw import inverse_cdf
from sglang_dspark.core.noise import Stream, keyed_bits
from sglang_dspark.core.plan import Batch, Pin
from sglang_dspark.core.planner import NeverDraft, Pinned, Searching, Synchronous, VerifyAll
from sglang_dspark.core.widths import WidthRules
from tests.core.lossless import deviation
from tests.core.planned import LevelModel, PlannedLaw, Scheduler, staircase

# Rows 1..6 of two requests with gamma 2: stairs with a dip at 5.
STAIRS = staircase([1.0, 1.5, 2.2, 2.25, 2.2, 2.9])
WITH_PLAIN = staircase([1.0, 1.5, 2.2, 2.25, 2.2, 2.9], no_draft_ms=[0.8, 1.2])
GENTLE = staircase([1.5, 2.0, 2.5, 3.2, 3.9, 4.6])  # Algorithm 1 stops at the first stair
ALL_OR_NOTHING = staircase([1.0, 1.5, 4.0, 4.0, 4.0, 3.8])
# One draft per request is cheap, the second one is not worth its price but now and then.
DEAR_BLOCKS = staircase([1.0, 1.5, 1.6, 1.7, 1.8, 1.9], no_draft_ms=[1.2, 2.0], draft_ms=[0.1, 0.6])
NIMBLE = WidthRules(margin=0.0, inertia=0.0, look_share=0.2)
EAGER = ArmRules(margin=0.0, inertia=0.0, probe_share=0.5, first_wait=1, longest_wait=2)


def searching(costs, arms=None, widths=None, least_gain=0.0):
    return lambda outlook: Searching(
        outlook, costs, arms=arms, widths=widths, least_gain=least_gain
    )


PLANNERS = {
    "search": (searching(STAIRS), STAIRS, 2),
    "search, all or nothing": (searching(ALL_OR_NOTHING), ALL_OR_NOTHING, 1),
    "search, least gain": (searching(STAIRS, least_gain=0.2), STAIRS, 2),
    "search, no-draft switching": (searching(WITH_PLAIN, EAGER), WITH_PLAIN, 3),
    "search, widths": (searching(DEAR_BLOCKS, widths=NIMBLE), DEAR_BLOCKS, 4),
    "search, widths and no-draft": (searching(DEAR_BLOCKS, EAGER, NIMBLE), DEAR_BLOCKS, 4),
    "algorithm 1": (lambda outlook: Synchronous(GENTLE), GENTLE, 3),
    "pinned": (lambda outlook: Pinned(outlook, Pin(drafts=3)), STAIRS, 1),
    "never draft": (lambda outlook: NeverDraft(outlook), WITH_PLAIN, 1),
}


def law_of(build, costs, *, lag, mode, vocab=2, seed=3, peek=False, num_tokens=4):
    model = LevelModel(vocab=vocab, gamma=2, seed=seed)
    scheduler = Scheduler(build, costs, lag, gamma=2, num_slots=2, peek=peek)
    law = PlannedLaw(model, scheduler, mode=mode, num_tokens=num_tokens)
    return model, law.run(num_reqs=2, num_rounds=4), scheduler.seen


@pytest.mark.parametrize("mode", ["compact", "cap-accept"])
@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize(("build", "costs", "kinds"), PLANNERS.values(), ids=PLANNERS)
def test_two_requests_are_lossless(build, costs, kinds, lag, mode):
    model, joint, seen = law_of(build, costs, lag=lag, mode=mode)
    assert abs(sum(joint.values()) - 1) < 1e-9
    assert deviation(model, joint) < 1e-9
    assert len(seen) >= kinds  # the decisions are not secretly a constant


@pytest.mark.parametrize("lag", [1, 2])
def test_static_is_lossless(lag):
    model, joint, seen = law_of(VerifyAll, STAIRS, lag=lag, mode="static")
    assert deviation(model, joint) < 1e-9
    assert {reason for reason, *_ in seen} == {"verify-all"}


@pytest.mark.parametrize("lag", [1, 2])
def test_three_tokens_are_lossless(lag):
    build, costs, _ = PLANNERS["search, no-draft switching"]
    model, joint, seen = law_of(build, costs, lag=lag, mode="compact", vocab=3, num_tokens=3)
    assert deviation(model, joint) < 1e-9
    assert {"no-draft", "search"} <= {reason for reason, *_ in seen}


def test_a_relay_that_lends_the_current_step_is_seen():
    """The control: the same planner, shown the confidences of its own step."""
    build, costs, _ = PLANNERS["search, all or nothing"]
    model, joint, _ = law_of(build, costs, lag=1, mode="compact", peek=True)
    assert deviation(model, joint) > 1e-3


def test_appendix_a_a_lag_0_global_search_gives_085_for_070():
    """paper.md, "Why a global search ...": x_1 = A raises c_2 to 0.9, x_1 = B makes it 0."""
    step_ms = 1.0 / np.array([1.0, 0.5, 0.45])
    p, q = np.array([[0.7, 0.3]]), np.array([[0.5, 0.5]])
    first_is_a, windows = 0.0, []
    for drafts in product((0, 1), repeat=2):
        survival = np.array([[0.8, 0.8 * (0.9 if drafts[0] == 0 else 0.0)]])
        choice = search(expected_tokens(survival), step_ms)
        (window,) = allocate(survival, choice.budget)
        law = transition_law(np.array(drafts), q.repeat(2, 0), p.repeat(3, 0), window)
        windows.append(int(window))
        first_is_a += 0.25 * (law[0, 0] + (law[1:].sum() if drafts[0] == 0 else 0.0))
    assert windows == [2, 2, 0, 0]
    assert first_is_a == pytest.approx(0.85, abs=1e-12)


GAMMA, TOKENS, SEED = 4, 5, 11
P, Q = np.array([0.7, 0.3]), np.array([0.5, 0.5])
# Worth four drafts when c_4 is high, none when it is low or unknown.
ALL_OR_NONE = staircase([1.0, 9.0, 9.0, 9.0, 3.2], max_requests=1, gamma=GAMMA)


def by_anchor(anchor):
    """The keys of a block's draft noise as `core/noise.py` makes them."""
    return keyed_bits(SEED, anchor, Stream.DRAFT, np.arange(GAMMA)).tolist()


def by_position(anchor):
    """Wrong: a draft's noise depends on the position it is drawn for, and on nothing else."""
    return keyed_bits(SEED, anchor + np.arange(GAMMA), Stream.DRAFT, 0).tolist()


def survival_of(drafts):
    """c_4 depends on x_3 only; the others on nothing."""
    c = np.array([0.8, 0.8, 0.8, 0.9 if drafts[2] == 0 else 0.01], dtype=np.float32)
    return np.cumprod(c, dtype=np.float32)[None]


def blocks_of(keys, known):
    """[(probability, drafts, noise after)]: one fair coin per key, tossed once."""
    free = [k for k in dict.fromkeys(keys) if k not in known]
    for coins in product((0, 1), repeat=len(free)):
        noise = known | dict(zip(free, coins, strict=True))
        yield 0.5 ** len(free), tuple(DRAWN[noise[k]] for k in keys), noise


DRAWN = [inverse_cdf(Q, (coin + 0.5) / 2) for coin in (0, 1)]


@cache
def ends_of(drafts, window):
    """[(tokens committed by the block, probability)]"""
    q, p = Q[None].repeat(GAMMA, 0), P[None].repeat(GAMMA + 1, 0)
    law = transition_law(np.array(drafts), q, p, window)
    return [((*drafts[:n], t), float(w)) for (n, t), w in np.ndenumerate(law) if w]


def keyed_law(keying, lag, num_rounds=TOKENS):
    """Joint law of the first TOKENS tokens of one request; accept, residual and bonus noise is
    keyed by the anchor, which never comes back, so it may be summed over block by block."""
    scheduler = Scheduler(searching(ALL_OR_NONE), ALL_OR_NONE, lag, gamma=GAMMA, num_slots=1)
    slots = np.zeros(1, dtype=np.int64)
    keys = [keying(anchor) for anchor in range(TOKENS)]
    future = [set().union(*keys[anchor:]) for anchor in range(TOKENS + 1)]
    states = {((), frozenset(), scheduler.start()): 1.0}
    for step in range(num_rounds):
        after = defaultdict(float)
        batch = Batch(step, slots, slots + 1, 0, GAMMA)
        for (tokens, known, memory), prob in states.items():
            if len(tokens) == TOKENS:
                after[tokens, known, memory] += prob
                continue
            plan, _, relay, state = scheduler.plan(memory, batch)
            kept = {}
            for chance, drafts, noise in blocks_of(keys[len(tokens)], dict(known)):
                if drafts[2] not in kept:
                    survival = survival_of(drafts)
                    (window,) = allocate(survival, plan.budget).tolist()
                    kept[drafts[2]] = window, scheduler.after(relay, state, batch, survival)
                window, remembered = kept[drafts[2]]
                for committed, weight in ends_of(drafts, window):
                    end = (*tokens, *committed)[:TOKENS]
                    shared = noise.keys() & future[len(end)]
                    still = frozenset((k, noise[k]) for k in shared)
                    after[end, still, remembered] += prob * chance * weight
        states = dict(after)
    joint = defaultdict(float)
    for (tokens, _, _), prob in states.items():
        joint[tokens] += prob
    return joint, scheduler.seen


def keyed_deviation(joint):
    return max(
        abs(joint[tokens] - float(np.prod(P[list(tokens)])))
        for tokens in product((0, 1), repeat=TOKENS)
    )


@pytest.mark.parametrize("lag", [1, 2])
def test_noise_as_it_is_keyed_is_lossless(lag):
    joint, seen = keyed_law(by_anchor, lag)
    assert seen == {("search", 4, 0), ("search", 4, 4)}
    assert keyed_deviation(joint) < 1e-9


@pytest.mark.parametrize("lag", [1, 2])
def test_noise_keyed_by_absolute_position_is_not(lag):
    """A draft thrown away comes back in a later block, whose budget has seen it."""
    joint, _ = keyed_law(by_position, lag)
    assert abs(sum(joint.values()) - 1) < 1e-9
    assert keyed_deviation(joint) > 1e-3
