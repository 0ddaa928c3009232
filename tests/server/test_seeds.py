"""`sampling_seed`: the same tokens whatever the batch, the window, the schedule or the mode."""

from __future__ import annotations

import pytest

from tests.server.ask import many
from tests.server.conftest import Serve
from tests.server.grid import load_prompts
from tests.server.servers import Pairs, Running

REFERENCE = "text-7"
OTHERS = ("text-3", "text-1", "text-7-plain", "text-no-draft")
NEW = 48
FILTERS = ({}, {"top_k": 20, "top_p": 0.9}, {"min_p": 0.05}, {"temperature": 0.7})

Ids = list[int]


@pytest.fixture(scope="session")
def prompts(pairs: Pairs) -> list[Ids]:
    return load_prompts(pairs.get("text"), 8)


@pytest.fixture(scope="session")
def kept() -> dict[str, list[Ids]]:
    return {}


def seeded(i: int) -> dict[str, object]:
    parameters = {"temperature": 1, "sampling_seed": 1000 + i, "max_new_tokens": NEW}
    return parameters | FILTERS[i % len(FILTERS)] | {"ignore_eos": True}


def alone(server: Running, prompts: list[Ids]) -> list[Ids]:
    return [list(server.client.generate(p, **seeded(i)).tokens) for i, p in enumerate(prompts)]


def in_company(server: Running, prompts: list[Ids]) -> list[Ids]:
    """The seeded requests between as many without a seed."""
    free = {"temperature": 1, "max_new_tokens": NEW // 2, "ignore_eos": True}
    body = {
        "input_ids": [p for prompt in prompts for p in (prompt, prompt)],
        "sampling_params": [s for i in range(len(prompts)) for s in (free, seeded(i))],
    }
    return [a["output_ids"] for a in server.client.post("/generate", body)[1::2]]


@pytest.mark.serves(REFERENCE)
def test_the_same_alone_and_in_company(
    serve: Serve, prompts: list[Ids], kept: dict[str, list[Ids]]
) -> None:
    server = serve(REFERENCE)
    kept["alone"] = alone(server, prompts)
    assert in_company(server, prompts) == kept["alone"]
    # The seed decides: without it the same prompts give other tokens.
    free = [server.client.generate(p, temperature=1, max_new_tokens=NEW).tokens for p in prompts]
    assert [list(tokens) for tokens in free] != kept["alone"]


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.serves(n)) for n in OTHERS])
def test_the_same_on_another_server(
    name: str, serve: Serve, prompts: list[Ids], kept: dict[str, list[Ids]]
) -> None:
    if "alone" not in kept:
        kept["alone"] = alone(serve(REFERENCE), prompts)
    assert in_company(serve(name), prompts) == kept["alone"]


def by_rid(server: Running, prompts: list[Ids], batch: int) -> list[Ids]:
    """Samples without a seed: their noise is keyed by (--random-seed, rid, anchor)."""
    sampling = {"temperature": 1, "top_p": 0.9, "max_new_tokens": NEW, "ignore_eos": True}
    out: list[Ids] = []
    for start in range(0, len(prompts), batch):
        rids = [f"rid-{start + i}" for i in range(batch)]
        answers = many(server.client, prompts[start : start + batch], rids=rids, **sampling)
        out += [list(a.tokens) for a in answers]
    return out


@pytest.mark.serves(REFERENCE)
def test_a_rid_repeats_its_samples_in_any_company(
    serve: Serve, prompts: list[Ids], kept: dict[str, list[Ids]]
) -> None:
    kept["by rid"] = by_rid(serve(REFERENCE), prompts, batch=8)
    assert by_rid(serve(REFERENCE), prompts, batch=1) == kept["by rid"]


@pytest.mark.serves("text-7-plain")
def test_the_schedule_and_the_cache_do_not_change_unseeded_samples(
    serve: Serve, prompts: list[Ids], kept: dict[str, list[Ids]]
) -> None:
    if "by rid" not in kept:
        kept["by rid"] = by_rid(serve(REFERENCE), prompts, batch=8)
    assert by_rid(serve("text-7-plain"), prompts, batch=4) == kept["by rid"]
