"""Exact output law of speculative decoding, by enumeration over what `core/accept` exposes.

Small vocabularies and blocks; requests share a step, so a planner may let one request's draft
decide another's window. A planner is any object with

    windows(memory, blocks) -> [(probability, draft_len per request)]    # this step
    remember(blocks) -> hashable memory                                   # for the next step

and the law of a block comes from a `transition_law`, the real one or a wrong one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Protocol

import numpy as np

from sglang_dspark.core.accept import transition_law

Tokens = tuple[int, ...]
BlockLaw = Callable[[np.ndarray, np.ndarray | None, np.ndarray, int], np.ndarray]


@dataclass(frozen=True)
class Block:
    prob: float
    drafts: Tokens  # [gamma]
    survival: tuple[float, ...]  # [gamma], s_k depends on drafts before k only; () when finished


KINDS = ("target", "draft", "confidence")


class Planner(Protocol):
    def windows(
        self, memory: Hashable, blocks: Sequence[Block]
    ) -> list[tuple[float, tuple[int, ...]]]: ...

    def remember(self, blocks: Sequence[Block]) -> Hashable: ...


@dataclass
class Model:
    """Random laws of target and draft, different after every prefix."""

    vocab: int
    gamma: int
    seed: int
    greedy_drafts: bool = False  # drafts are the argmax of the draft law
    claim_sampled: bool = False  # hand that law to acceptance all the same (wrong: faults.md B1)
    tables: dict[tuple[str, Tokens], np.ndarray] = field(default_factory=dict)

    def _law(self, kind: str, prefix: Tokens) -> np.ndarray:
        key = (kind, prefix)
        if key not in self.tables:
            code = int.from_bytes(bytes([self.seed, KINDS.index(kind), *prefix, 255]), "little")
            raw = np.random.default_rng(code).exponential(size=self.vocab) + 0.05
            self.tables[key] = raw / raw.sum()
        return self.tables[key]

    def target(self, prefix: Tokens) -> np.ndarray:
        return self._law("target", prefix)

    def draft(self, prefix: Tokens) -> np.ndarray:
        """Half the target's law, half its own: some drafts are taken, some are not."""
        return (self._law("target", prefix) + self._law("draft", prefix)) / 2

    def blocks(self, prefix: Tokens) -> list[Block]:
        found = []
        for drafts in product(range(self.vocab), repeat=self.gamma):
            prob, alive, survival = 1.0, 1.0, []
            for k, x in enumerate(drafts):
                context = prefix + drafts[:k]
                q = self.draft(context)
                prob *= float(x == q.argmax()) if self.greedy_drafts else q[x]
                # Not the true acceptance; what counts is that it depends on the drafts before k.
                alive *= self._law("confidence", context)[0]
                survival.append(alive)
            if prob:
                found.append(Block(prob, drafts, tuple(survival)))
        return found

    def block_law(self, law: BlockLaw, prefix: Tokens, drafts: Tokens, draft_len: int):
        """[draft_len + 1, V] of (accepted, next token); all gamma + 1 target rows are given."""
        contexts = [prefix + drafts[:k] for k in range(self.gamma + 1)]
        target = np.stack([self.target(c) for c in contexts])
        draft = np.stack([self.draft(c) for c in contexts[:-1]])
        point_mass = self.greedy_drafts and not self.claim_sampled
        return law(np.array(drafts), None if point_mass else draft, target, draft_len)


class _Enumerator:
    def __init__(self, model: Model, law: BlockLaw, num_tokens: int) -> None:
        self._model, self._law, self._limit = model, law, num_tokens
        self._blocks: dict[Tokens, list[Block]] = {}
        self._outcomes: dict[tuple[Tokens, Tokens, int], list[tuple[Tokens, float]]] = {}

    def blocks(self, prefix: Tokens) -> list[Block]:
        if len(prefix) >= self._limit:
            return [Block(1.0, (), ())]  # finished: no drafts, no confidence
        if prefix not in self._blocks:
            self._blocks[prefix] = self._model.blocks(prefix)
        return self._blocks[prefix]

    def outcomes(self, prefix: Tokens, drafts: Tokens, draft_len: int):
        """[(prefix after the block, cut at the limit, probability)]."""
        if len(prefix) >= self._limit:
            return [(prefix, 1.0)]
        key = (prefix, drafts, draft_len)
        if key not in self._outcomes:
            law = self._model.block_law(self._law, prefix, drafts, draft_len)
            merged: dict[Tokens, float] = defaultdict(float)
            for (kept, token), prob in np.ndenumerate(law):
                merged[(*prefix, *drafts[:kept], token)[: self._limit]] += float(prob)
            self._outcomes[key] = [(p, w) for p, w in merged.items() if w]
        return self._outcomes[key]


def output_law(
    model: Model,
    planner: Planner,
    *,
    num_reqs: int,
    num_rounds: int,
    num_tokens: int,
    law: BlockLaw = transition_law,
) -> dict[tuple[Tokens, ...], float]:
    """Joint law of the first `num_tokens` tokens of every request; request r starts at (r,)."""
    enum = _Enumerator(model, law, num_tokens + 1)
    start = tuple((r % model.vocab,) for r in range(num_reqs))
    states: dict[tuple[tuple[Tokens, ...], Hashable], float] = {(start, None): 1.0}
    for _ in range(num_rounds):
        after: dict[tuple[tuple[Tokens, ...], Hashable], float] = defaultdict(float)
        for (prefixes, memory), prob in states.items():
            for blocks in product(*(enum.blocks(p) for p in prefixes)):
                chance = prob * float(np.prod([b.prob for b in blocks]))
                kept = planner.remember(blocks)
                for share, lens in planner.windows(memory, blocks):
                    ends = [
                        enum.outcomes(p, b.drafts, length)
                        for p, b, length in zip(prefixes, blocks, lens, strict=True)
                    ]
                    for combo in product(*ends):
                        weight = chance * share
                        for _, w in combo:
                            weight *= w
                        after[tuple(p for p, _ in combo), kept] += weight
        states = dict(after)
    joint: dict[tuple[Tokens, ...], float] = defaultdict(float)
    for (prefixes, _), prob in states.items():
        joint[prefixes] += prob
    return dict(joint)


def deviation(model: Model, joint: dict[tuple[Tokens, ...], float]) -> float:
    """Largest difference of any joint probability from the target's own decoding."""
    num_reqs = len(next(iter(joint)))
    length = len(next(iter(joint))[0])
    worst = 0.0
    for tails in product(product(range(model.vocab), repeat=length - 1), repeat=num_reqs):
        prefixes = tuple((r % model.vocab, *tail) for r, tail in enumerate(tails))
        exact = 1.0
        for prefix in prefixes:
            for k in range(1, length):
                exact *= model.target(prefix[:k])[prefix[k]]
        worst = max(worst, abs(joint.get(prefixes, 0.0) - exact))
    return worst
