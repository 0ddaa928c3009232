"""What a server's samples must look like: the exact law of the first tokens, and its test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy.stats import chisquare
from transformers import Qwen3ForCausalLM

from tests.draft.reference import ReferenceDraft, target_forward
from tests.planted import LAYER_IDS, LETTERS

Probs = np.ndarray  # [V] float64
Word = tuple[int, ...]
Law = Mapping[Word, float]  # what it leaves out is one more category
MIN_EXPECTED = 5.0


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of a request, and the same filter in plain words.

    As SGLang's pytorch sampler filters: rank i stays when i < top_k and the mass before it is at
    most top_p, both on probabilities as they are; then p >= min_p * max p.
    """

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0

    def filter(self, logits: np.ndarray) -> Probs:
        probs = np.exp((logits - logits.max()) / self.temperature)
        probs /= probs.sum()
        order = np.argsort(-probs, kind="stable")
        ranked = probs[order]
        keep = np.cumsum(ranked) - ranked <= self.top_p
        if self.top_k > 0:
            keep &= np.arange(len(probs)) < self.top_k
        keep &= ranked >= self.min_p * ranked[0]
        out = np.zeros_like(probs)
        out[order[keep]] = ranked[keep]
        return out / out.sum()

    def parameters(self) -> dict[str, Any]:
        out: dict[str, Any] = {"temperature": self.temperature, "top_p": self.top_p}
        return out | {"top_k": self.top_k, "min_p": self.min_p}


@torch.inference_mode()
def next_logits(target: Qwen3ForCausalLM, sequences: Sequence[Sequence[int]]) -> np.ndarray:
    """[n, V] logits of the token after each sequence, all of one length."""
    return target(torch.tensor([list(s) for s in sequences])).logits[:, -1].double().numpy()


def law_of_words(
    target: Qwen3ForCausalLM, prompt: Sequence[int], sampling: Sampling, length: int
) -> dict[Word, float]:
    """P(first `length` output tokens = word), for words of LETTERS."""
    law: dict[Word, float] = {(): 1.0}
    for _ in range(length):
        words = list(law)
        logits = next_logits(target, [[*prompt, *word] for word in words])
        rows = dict(zip(words, map(sampling.filter, logits), strict=True))
        law = {
            (*word, letter): law[word] * rows[word][letter]
            for word, letter in product(words, LETTERS)
            if law[word] * rows[word][letter] > 0
        }
    return law


def without_first(law: Law) -> dict[Word, float]:
    """The joint law of tokens 2.. (and of the first one being a letter)."""
    out: dict[Word, float] = {}
    for word, p in law.items():
        out[word[1:]] = out.get(word[1:], 0.0) + p
    return out


def p_value(samples: Iterable[Word], law: Law) -> float:
    """Chi-square of samples against a law; rare categories, and all outside, are pooled."""
    counts = Counter(samples)
    n = counts.total()
    common = {word: n * p for word, p in law.items() if n * p >= MIN_EXPECTED}
    observed = [float(counts[word]) for word in common]
    expected = list(common.values())
    rest = n - sum(expected)
    if rest >= MIN_EXPECTED:
        observed.append(n - sum(observed))
        expected.append(rest)
    elif n - sum(observed) > 0:  # too rare for a category of its own: to the rarest one
        i = int(np.argmin(expected))
        observed[i] += n - sum(observed)
        expected[i] += rest
    expected = [e * sum(observed) / sum(expected) for e in expected]
    return float(chisquare(observed, expected).pvalue)


Rule = Callable[[Probs, Probs], Probs]  # (target's p, draft's q) -> law of the token


def argmax_draft_judged_as_sampled(p: Probs, q: Probs) -> Probs:
    """A wrong rule: the draft is argmax q, but accepted with min(1, p / q) as if drawn from q."""
    best = int(q.argmax())
    accept = min(1.0, p[best] / q[best])
    residual = np.maximum(p - q, 0)
    out = (1 - accept) * residual / residual.sum()
    out[best] += accept
    return out


def draft_alone(p: Probs, q: Probs) -> Probs:
    """A wrong rule: every draft is kept."""
    return q


def second_token_under(
    rule: Rule, target: Qwen3ForCausalLM, draft: ReferenceDraft, prompt: Sequence[int]
) -> dict[Word, float]:
    """Law of (first, second) token when the first is right and a rule decides the second."""
    plain, law = Sampling(), {}
    logits, features = target_forward(target, prompt, LAYER_IDS)
    first = plain.filter(logits[-1].double().numpy())
    for letter in LETTERS:
        p = plain.filter(next_logits(target, [[*prompt, letter]])[0])
        q = plain.filter(draft.propose(features, letter, 1).logits[0].double().numpy())
        second = rule(p, q)
        law.update({(letter, other): first[letter] * second[other] for other in LETTERS})
    return law


def draw(law: Law, n: int, seed: int) -> list[Word]:
    """Samples of a law; () stands for everything it leaves out."""
    words = [*law, ()]
    weights = np.array([*law.values(), max(0.0, 1.0 - sum(law.values()))])
    rng = np.random.default_rng(seed)
    return [words[i] for i in rng.choice(len(words), size=n, p=weights / weights.sum())]
