"""Prompts of a workload: fresh ones in every round, the same for every arm of a round."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sglang_dspark.profiling.prompts import PromptError
from sglang_dspark.profiling.sweep.plan import WorkloadPlan

LEAST_WORDS = 8  # that a shortened prompt keeps
CUT_WORDS = 2  # fewer, at one end or the other, in each pass over the prompts


@dataclass(frozen=True, slots=True)
class Prompt:
    content: str | tuple[int, ...]  # a text or token ids
    domain: str  # file or domain that it comes from


class PromptPool:
    """Takes turns over its sources; used-up prompts come again cut shorter, so as new texts."""

    def __init__(self, sources: dict[str, Sequence[str]]) -> None:
        rows = zip(*sources.values(), strict=False)  # as long as every source has one
        self._all = [
            Prompt(text, name) for row in rows for name, text in zip(sources, row, strict=True)
        ]

    def take(self, first: int, count: int) -> list[Prompt]:
        """`count` prompts from number `first` on."""
        return [self._at(number) for number in range(first, first + count)]

    def _at(self, number: int) -> Prompt:
        passes, index = divmod(number, len(self._all))
        found = self._all[index]
        return Prompt(_shortened(str(found.content), passes), found.domain)


def _shortened(text: str, passes: int) -> str:
    """The text without some first and last words, others in every pass; about half of it stays."""
    words = list(re.finditer(r"\S+", text))
    spare = max(0, len(words) - LEAST_WORDS) // 4  # at either end
    front, back = (CUT_WORDS * n for n in divmod(passes, spare // CUT_WORDS + 1))
    front = min(front, spare)
    return text[words[front].start() : words[-1 - back].end()] if passes else text


class RandomPool:
    """Random token ids: nothing to predict, nothing in any cache."""

    def __init__(self, lengths: tuple[int, int], vocab_size: int, seed: int) -> None:
        self._lengths, self._vocab_size, self._seed = lengths, vocab_size, seed

    def take(self, first: int, count: int) -> list[Prompt]:
        return [self._at(number) for number in range(first, first + count)]

    def _at(self, number: int) -> Prompt:
        rng = np.random.default_rng((self._seed, number))
        length = int(rng.integers(self._lengths[0], self._lengths[1] + 1))
        return Prompt(tuple(rng.integers(0, self._vocab_size, length).tolist()), "random")


Pool = PromptPool | RandomPool


def make_pool(workload: WorkloadPlan, folder: Path, vocab_size: int, seed: int) -> Pool:
    """The pool of a workload; domains are files of `folder`.

    Raises:
        PromptError: a file is missing, empty or malformed.
    """
    if workload.random_tokens:
        return RandomPool(workload.random_tokens, vocab_size, seed)
    files = workload.files or [folder / f"{domain}.jsonl" for domain in workload.domains]
    return PromptPool({file.stem: read_texts(file) for file in files})


def read_texts(path: Path) -> list[str]:
    """Every prompt of a JSONL file: `text`, or the first of its `turns`.

    Raises:
        PromptError
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PromptError(f"{path}: cannot be read ({error.strerror})") from None
    texts = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            text = record["text"] if "text" in record else record["turns"][0]
        except (json.JSONDecodeError, KeyError, TypeError, IndexError):
            text = None
        if not isinstance(text, str) or not text:
            raise PromptError(
                f'{path}, line {number}: expected a JSON object with "text" or "turns"'
            )
        texts.append(text)
    if not texts:
        raise PromptError(f"{path}: no prompts")
    return texts
