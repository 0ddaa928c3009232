"""The whole grid's bookkeeping; the grid itself takes hours (`make test-full`)."""

from __future__ import annotations

from itertools import product

import pytest

from sglang_dspark.profiling.equality import Comparison
from tests.server.whole_grid import Record, merge, part_of, whole_grid


def test_rows_have_names_of_their_own_and_hold_every_combination():
    names = [row.name for row in whole_grid()]
    assert len(set(names)) == len(names)
    for gamma, overlap, cache, batch in product(range(1, 8), ("on", "off"), ("on", "off"), (1, 8)):
        assert f"gamma={gamma} overlap={overlap} cache={cache} batch={batch}" in names
    for mode, limit, overlap, batch in product(
        ("compact", "cap-accept"), range(1, 8), ("on", "off"), (1, 8, 32)
    ):
        assert f"mode={mode} limit={limit} overlap={overlap} batch={batch}" in names


@pytest.mark.parametrize("count", [1, 2, 3])
def test_parts_share_the_rows_by_whole_servers(count):
    parts = [part_of(whole_grid(), f"{k}/{count}") for k in range(count)]
    assert sorted(r.name for p in parts for r in p) == sorted(r.name for r in whole_grid())
    servers = [{row.spec for row in part} for part in parts]
    assert sum(map(len, servers)) == len(set().union(*servers))


def test_files_of_parts_add_up(tmp_path):
    rows = whole_grid()
    for k in range(2):
        Record(tmp_path / f"{k}.json").add(rows[k], Comparison(prompts=1, tokens=5))
    merge(Record(tmp_path / "all.json"), [tmp_path / "0.json", tmp_path / "1.json"])
    merged = Record(tmp_path / "all.json").rows
    assert set(merged) == {rows[0].name, rows[1].name}
    assert merged[rows[0].name]["identical"] and merged[rows[0].name]["tokens"] == 5
