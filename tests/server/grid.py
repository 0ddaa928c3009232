"""Equality at temperature 0 against no speculation, over gamma x overlap x prefix cache x batch.

    python -m tests.server.grid --full --out out/grid.json

runs the whole grid (hours) and writes each row as soon as it is known; a second call goes on where
the first one stopped. Exit status 0 when every row is identical by the rule of
`sglang_dspark.profiling.equality`. Without --full: the covering array that the tests run.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from sglang_dspark.profiling.client import Client
from sglang_dspark.profiling.equality import Comparison, compare
from sglang_dspark.profiling.server import Server
from tests.planted import Pair
from tests.server.ask import in_batches, tokens_of
from tests.server.servers import BUNDLED, SPECS, STRICT, Pairs, Spec, bundled_pair

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


# --------------------------------------------------------------------------------------- the driver


def full_grid() -> Iterator[tuple[str, Spec]]:
    for gamma, overlap, radix in product(range(1, 8), (True, False), (True, False)):
        name = (
            f"gamma={gamma} overlap={'on' if overlap else 'off'} cache={'on' if radix else 'off'}"
        )
        yield name, Spec("text", gamma=gamma, overlap=overlap, radix=radix)


class Record:
    """The result file: rows by name, rewritten after each."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._path, self._data = path, {**header, "rows": {}}
        if path.exists():
            old = json.loads(path.read_text())
            if {k: old.get(k) for k in header} == dict(header):
                self._data = old

    @property
    def rows(self) -> dict[str, Any]:
        rows: dict[str, Any] = self._data["rows"]
        return rows

    def add(self, name: str, result: Comparison) -> None:
        self.rows[name] = {
            "identical": result.identical,
            "prompts": result.prompts,
            "tokens": result.tokens,
            "excused_flips": result.excused_flips,
            "flips": [asdict(flip) | {"excused": flip.excused} for flip in result.flips],
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._data, indent=1))


def serve(spec: Spec, pair: Pair, folder: Path, name: str) -> Server:
    log = folder / f"{name.replace(' ', '_')}.log"
    return Server(spec.command(pair), log=log, environment=STRICT)


def run(grid: Mapping[str, Spec], scale: Scale, pair: Pair, record: Record, folder: Path) -> bool:
    """Run the rows that the record lacks; whether every row is identical."""
    names = {f"{name} batch={batch}" for name in grid for batch in BATCHES}
    if names <= record.rows.keys():
        return all(record.rows[name]["identical"] for name in names)
    workload = Workload(pair, scale)
    with serve(SPECS["control"], pair, folder, "control") as without:
        client = Client(without.url)
        control = Control(lambda: client, workload)
        for name, spec in grid.items():
            missing = [b for b in BATCHES if f"{name} batch={b}" not in record.rows]
            if not missing:
                continue
            with serve(spec, pair, folder, name) as server:
                for batch in missing:
                    result = compare_with(control, workload, Client(server.url), batch)
                    record.add(f"{name} batch={batch}", result)
                    print(f"{name} batch={batch}: {result}", flush=True)
    return all(record.rows[name]["identical"] for name in names)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="every gamma and combination; hours")
    parser.add_argument("--out", type=Path, default=Path("out/grid.json"))
    arguments = parser.parse_args(argv)
    grid = dict(full_grid()) if arguments.full else {name: SPECS[name] for name in COVERING}
    scale = FULL if arguments.full else SMALL
    with tempfile.TemporaryDirectory() as folder:
        pair = Pairs(Path(folder)).get("text")
        trained = pair == bundled_pair()
        header = {"pair": "examples/tiny" if trained else "planted", "scale": asdict(scale)}
        record = Record(arguments.out, header)
        identical = run(grid, scale, pair, record, Path(folder))
    print(f"{'identical' if identical else 'DIFFERENT'}: {len(record.rows)} rows")
    return 0 if identical else 1


if __name__ == "__main__":
    raise SystemExit(main())
