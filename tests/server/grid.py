"""Equality at temperature 0 against no speculation: what is asked, and of whom.

The tests run a covering array of gamma x overlap x prefix cache x batch; `whole_grid.py` runs all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from transformers import AutoTokenizer

from sglang_dspark.profiling.client import Client
from sglang_dspark.profiling.equality import Comparison, compare
from tests.planted import Pair
from tests.server.ask import in_batches, tokens_of
from tests.server.servers import BUNDLED, bundled_pair

Ids = list[int]
BATCHES = (1, 8)
# gamma 1, 3, 7 and every pair of (overlap, prefix cache, batch); each row runs both batch sizes.
COVERING = ("text-7", "text-3", "text-1", "text-7-plain")


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts of one output length."""

    prompts: Sequence[Ids]
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Scale:
    """How much a row runs."""

    prompts: int
    tokens: int
    long_prompts: int
    long_tokens: int
    tail: int  # tokens left to the context end for the one prompt that goes there; 0: no such one


FULL = Scale(prompts=64, tokens=128, long_prompts=8, long_tokens=512, tail=256)
MODES = Scale(prompts=64, tokens=64, long_prompts=0, long_tokens=1, tail=0)
SMALL = Scale(prompts=8, tokens=40, long_prompts=2, long_tokens=96, tail=0)
END = Scale(prompts=8, tokens=1, long_prompts=0, long_tokens=1, tail=48)


def load_prompts(pair: Pair, count: int) -> list[Ids]:
    """`count` prompts, both domains in turn where the trained pair serves, else random ids."""
    if pair != bundled_pair():
        rng = random.Random(5)
        return [[rng.randrange(3, 259) for _ in range(rng.randint(4, 60))] for _ in range(count)]
    tokenizer = AutoTokenizer.from_pretrained(pair.target)
    domains = [
        [json.loads(line)["text"] for line in (BUNDLED / "prompts" / name).open()][: count // 2]
        for name in ("code.jsonl", "text.jsonl")
    ]
    return [tokenizer(text).input_ids for two in zip(*domains, strict=True) for text in two]


def context_length(pair: Pair) -> int:
    config = json.loads((pair.target / "config.json").read_text())
    return int(config["max_position_embeddings"])


class Workload:
    """What every row answers: many prompts, a few long answers, one to the context end."""

    def __init__(self, pair: Pair, scale: Scale) -> None:
        prompts = load_prompts(pair, scale.prompts)
        works = [
            Work(prompts, scale.tokens),
            Work(prompts[: scale.long_prompts], scale.long_tokens),
        ]
        if scale.tail:
            length = context_length(pair) - scale.tail
            works.append(Work([_fill(prompts, length)], scale.tail))
        self.works = tuple(works)

    @cached_property
    def prompts(self) -> list[Ids]:
        return [prompt for work in self.works for prompt in work.prompts]

    def answers(self, client: Client, batch: int) -> list[Ids]:
        """Outputs of every prompt, in the order of `prompts`, from an empty prefix cache."""
        client.flush_cache()
        out = []
        for work in self.works:
            sampling = {"temperature": 0, "max_new_tokens": work.new_tokens, "ignore_eos": True}
            out += tokens_of(in_batches(client, work.prompts, batch, **sampling))
        return [list(tokens) for tokens in out]


def _fill(prompts: Sequence[Ids], length: int) -> Ids:
    ids = [token for prompt in prompts for token in prompt]
    return (ids * (length // len(ids) + 1))[:length]


class Control:
    """The server without speculation: its answers, and how near to a tie it was."""

    def __init__(self, client: Callable[[], Client], workload: Workload) -> None:
        self.client, self._workload = client, workload

    @cached_property
    def answers(self) -> list[Ids]:
        return self._workload.answers(self.client(), batch=8)

    def gap_at(self, prompt: int, position: int) -> float:
        """Top-2 logit gap after the prompt and the first `position` output tokens."""
        ids = self._workload.prompts[prompt] + self.answers[prompt][:position]
        return top_two_gap(self.client(), ids)


def top_two_gap(client: Client, ids: Ids) -> float:
    """Difference of the two best logits of the token after `ids`."""
    body = {
        "input_ids": ids,
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    best, second = client.post("/generate", body)["meta_info"]["output_top_logprobs"][0][:2]
    return float(best[0] - second[0])


def compare_with(control: Control, workload: Workload, client: Client, batch: int) -> Comparison:
    return compare(control.answers, workload.answers(client, batch), control.gap_at)
