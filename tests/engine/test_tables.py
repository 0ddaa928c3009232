"""Where cost tables come from, and that none is used in silence or lost."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from sglang_dspark.core.cost_schema import dump_table
from sglang_dspark.core.cost_table import BlockCost, CostTable, Provenance, Surface
from sglang_dspark.core.cost_verdict import Server
from sglang_dspark.engine.tables import TableRefused, cache_folder, find_table, store

SERVER = Server(
    device="Test CPU", isa="avx2", cores=2, threads=1, dtype="float32", target="t", draft="d",
    gamma=7, tp=1, engine="sglang 0.5.23", attention_backend="dspark_cpu",
)  # fmt: skip


def table(server: Server = SERVER) -> CostTable:
    origin = Provenance(
        kind="start-up", samples_per_point=5, date="2026-01-01T00:00:00+00:00", command="serve",
        **asdict(server),
    )  # fmt: skip
    return CostTable(
        draft=BlockCost.of_any_width((1, 4), (1.0, 2.0)),
        verify=Surface((1, 32), (128, 1024), ((2.0, 3.0), (9.0, 12.0))),
        rest=BlockCost.of_any_width((1, 4), (0.5, 0.6)),
        no_draft=Surface((1, 4), (128, 1024), ((2.5, 3.5), (4.0, 6.0))),
        provenance=origin,
    )


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sglang_dspark.core.table_folders._PACKAGE", tmp_path / "package")


def must_not_measure() -> CostTable:
    raise AssertionError("a table was there")


def test_a_measured_table_is_stored_and_found_by_the_next_server():
    first = find_table(SERVER, None, table)
    assert first.table == table()
    again = find_table(SERVER, None, must_not_measure)
    assert (again.name, again.table) == (first.name, first.table)


@pytest.mark.parametrize(
    "change",
    [{"device": "Other CPU"}, {"target": "x"}, {"draft": "x"}, {"gamma": 3}, {"threads": 2}],
)
def test_a_table_of_another_server_is_never_picked(change):
    store(table(replace(SERVER, **change)), replace(SERVER, **change))
    measured = []
    find_table(SERVER, None, lambda: measured.append(1) or table())
    assert measured


def test_a_named_table_that_does_not_fit_stops_the_start(tmp_path):
    path = tmp_path / "other.json"
    path.write_text(dump_table(table(replace(SERVER, device="Other CPU"))))
    with pytest.raises(TableRefused, match=r"device.*sps-table-path"):
        find_table(SERVER, str(path), must_not_measure)


@pytest.mark.parametrize("text", ["", "{", dump_table(table())[:-30]])
def test_a_truncated_file_is_named_and_refused(tmp_path, text):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(TableRefused, match=r"broken\.json"):
        find_table(SERVER, str(path), must_not_measure)


def test_a_server_may_ask_for_a_new_one_though_one_fits():
    store(table(), SERVER)
    measured = []
    find_table(SERVER, None, lambda: measured.append(1) or table(), known=False)
    assert measured == [1]
    named = find_table(SERVER, str(next(cache_folder().iterdir())), must_not_measure, known=False)
    assert named.table == table()


def test_a_broken_file_in_the_cache_is_passed_over():
    cache_folder().mkdir(parents=True)
    (cache_folder() / "a.json").write_text("{")
    assert find_table(SERVER, None, table).verdict == "use"


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    loaded = find_table(SERVER, None, table)
    assert loaded.name == "start-up (not stored)" and loaded.table == table()


def test_nothing_half_written_is_left_behind():
    store(table(), SERVER)
    assert [path.suffix for path in cache_folder().iterdir()] == [".json"]
