"""`sglang-dspark tables` on files: what is shown, judged, compared and written."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sglang_dspark.cli.tables import tables
from sglang_dspark.core import table_folders
from sglang_dspark.core.cost_schema import (
    dump_additive,
    dump_diagonal,
    dump_table,
    parse_table,
)
from sglang_dspark.core.cost_table import CostTable, TierCost
from sglang_dspark.core.tiers import Tier
from sglang_dspark.profiling.tables.compare import compare
from sglang_dspark.profiling.tables.convert import lost
from tests.core.made_up import PROVENANCE, SERVER, linear_table


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sglang_dspark.core.table_folders._PACKAGE", tmp_path / "package")
    monkeypatch.setenv("COLUMNS", "120")


def call(*arguments: object) -> Any:
    return CliRunner().invoke(tables, [str(a) for a in arguments])


def wrong_use(*arguments: object) -> str:
    """The message of a command that ends with status 2."""
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.split())


def write(path: Path, table: CostTable | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table if isinstance(table, str) else dump_table(table), encoding="utf-8")
    return path


def identity(path: Path, **changes: Any) -> Path:
    return write(path, json.dumps(asdict(replace(SERVER, **changes))))


def test_list_shows_both_folders_and_names_what_is_broken(tmp_path: Path) -> None:
    assert "No table in either folder" in call("list").stdout
    write(table_folders.shipped_folder() / "a.json", linear_table())
    write(table_folders.cache_folder() / "b.json", linear_table())
    write(table_folders.cache_folder() / "broken.json", "{")
    shown = call("list")
    assert shown.exit_code == 0
    for text in ("a  shipped", "b  cache", "Made-up CPU 9000", "t-1", "gamma 7", "20 samples"):
        assert text in shown.stdout
    assert "perhaps truncated" in shown.stdout
    found = json.loads(call("list", "--json").stdout)["tables"]
    assert [(e["name"], e["origin"], e["problem"] is None) for e in found] == [
        ("a", "shipped", True),
        ("b", "cache", True),
        ("broken", "cache", False),
    ]
    assert found[0]["provenance"]["dtype"] == "float32"


def test_show_gives_provenance_curves_and_speed(tmp_path: Path) -> None:
    write(table_folders.cache_folder() / "mine.json", linear_table())
    shown = call("show", "mine").stdout
    assert len(shown.splitlines()) <= 40, "one screen"
    for text in ("profiled, 20 samples", "Made-up CPU 9000", "verify 2.0%", "full blocks of 1 + 7"):
        assert text in shown
    record = json.loads(call("show", "mine", "--json").stdout)
    assert record["schema"] == "ours" and record["gamma"] == 7
    speed = record["speeds"][1]  # 8 requests, 64 rows: 3 + 20 + 0.5 ms
    assert (speed["requests"], speed["rows"], speed["measured"]) == (8, 64, True)
    assert speed["sps"] == pytest.approx(1e3 / 23.5)
    assert speed["no_draft_sps"] == pytest.approx(1e3 / 6.5)
    assert not record["speeds"][2]["measured"]  # 32 requests: 256 rows, 64 are in the table


def test_show_reads_sglangs_schemas_too(tmp_path: Path) -> None:
    file = write(tmp_path / "d.json", dump_diagonal(linear_table(), 3, (1, 4, 8)))
    shown = call("show", file, "--gamma", 3).stdout
    assert "sglang-diagonal" in shown and "No provenance" in shown
    record = json.loads(call("show", file, "--gamma", 3, "--json").stdout)
    assert [s["requests"] for s in record["speeds"]] == [1, 4, 8]


def test_a_name_that_is_nowhere_is_wrong_use(tmp_path: Path) -> None:
    assert "`sglang-dspark tables list`" in wrong_use("show", "nothing")
    assert "perhaps truncated" in wrong_use("show", write(tmp_path / "x.json", "{"))
    assert "not a cost table" in wrong_use("compare", tmp_path / "x.json", tmp_path / "x.json")


@pytest.mark.parametrize(
    ("changes", "status", "word", "field"),
    [
        ({}, 0, "use", ""),
        ({"engine": "sglang 0.5.24"}, 1, "warning", "engine"),
        ({"gamma": 5}, 3, "refused", "gamma"),
        ({"device": "Another", "cores": 64}, 3, "refused", "device"),
    ],
)
def test_validate_says_why_and_how_by_its_status(
    changes: dict[str, Any], status: int, word: str, field: str, tmp_path: Path
) -> None:
    table, server = write(tmp_path / "t.json", linear_table()), tmp_path / "s.json"
    identity(server, **changes)
    result = call("validate", table, "--against", server)
    assert result.exit_code == status
    assert word in result.stdout and field in result.stdout
    record = json.loads(call("validate", table, "--against", server, "--json").stdout)
    assert {f["field"] for f in record["findings"]} == changes.keys()


def test_validate_tells_when_a_table_is_only_used_by_name(tmp_path: Path) -> None:
    made_up = linear_table(replace(PROVENANCE, kind="made-up"))
    table, server = write(tmp_path / "t.json", made_up), identity(tmp_path / "s.json")
    result = call("validate", table, "--against", server)
    assert result.exit_code == 1
    assert "only when named" in result.stdout
    record = json.loads(call("validate", table, "--against", server, "--json").stdout)
    assert record["picked_up_by_itself"] is False


def test_validate_without_a_server_judges_the_table_by_itself(tmp_path: Path) -> None:
    assert call("validate", write(tmp_path / "t.json", linear_table())).exit_code == 0
    few = linear_table(replace(PROVENANCE, samples_per_point=1))
    assert call("validate", write(tmp_path / "few.json", few)).exit_code == 1
    stock = call("validate", write(tmp_path / "stock.json", dump_additive(linear_table())))
    assert stock.exit_code == 1 and "provenance: none" in stock.stdout
    broken = call("validate", write(tmp_path / "x.json", "{"), "--json")
    assert broken.exit_code == 3
    assert json.loads(broken.stdout)["findings"][0]["field"] == "file"


@contextmanager
def answering(record: Any) -> Iterator[str]:
    """The URL of a server that shows `record` in /server_info."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(record).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def server_info(**changes: Any) -> dict[str, Any]:
    server = asdict(replace(SERVER, **changes))
    return {"internal_states": [{"dspark_info_record": {"gamma": 7, "server": server}}]}


def test_validate_asks_a_running_server(tmp_path: Path) -> None:
    table = write(tmp_path / "t.json", linear_table())
    with answering(server_info(threads=16)) as url:
        result = call("validate", table, "--url", url)
    assert result.exit_code == 3 and "threads" in result.stdout
    saved = write(tmp_path / "saved.json", json.dumps(server_info()))
    assert call("validate", table, "--against", saved).exit_code == 0
    with answering({"internal_states": [{}]}) as url:
        assert "no DSpark identity" in wrong_use("validate", table, "--url", url)
    assert "no /server_info" in wrong_use("validate", table, "--url", url)


def test_validate_refuses_a_server_that_is_none(tmp_path: Path) -> None:
    table = write(tmp_path / "t.json", linear_table())
    half = write(tmp_path / "half.json", '{"device": "x"}')
    assert "missing attention_backend" in wrong_use("validate", table, "--against", half)
    wrong = write(tmp_path / "w.json", json.dumps(asdict(SERVER) | {"gamma": "7"}))
    assert "gamma is '7', expected int" in wrong_use("validate", table, "--against", wrong)
    absent = tmp_path / "absent.json"
    assert "not a readable JSON file" in wrong_use("validate", table, "--against", absent)
    both = ("validate", table, "--against", half, "--url", "http://127.0.0.1:1")
    assert "give one of them" in wrong_use(*both)
    # A table stands for the server that it was measured on.
    assert call("validate", table, "--against", table).exit_code == 0


def test_compare_finds_the_part_that_moved_and_the_step_that_moved_most(tmp_path: Path) -> None:
    before = linear_table()
    slower = replace(before.draft, ms=tuple((2 * ms,) for (ms,) in before.draft.ms))
    after = replace(before, draft=slower)
    result = compare(before, after)
    moved = {part.part for part in result.parts if part.relative}
    assert moved == {"draft"}
    assert all(p.relative == pytest.approx(1.0) for p in result.parts if p.part == "draft")
    largest = result.largest  # draft weighs most in the cheapest verification of most requests
    assert (largest.draft_len, largest.context) == (0, 0)
    assert largest.relative == pytest.approx((largest.b_ms - largest.a_ms) / largest.a_ms)
    for step in result.steps:
        if step.draft_len is None:
            assert step.relative == 0.0
    a, b = write(tmp_path / "a.json", before), write(tmp_path / "b.json", after)
    shown = call("compare", a, b)
    assert "+100.0%" in shown.stdout and "draft_len 0" in shown.stdout
    record = json.loads(call("compare", a, b, "--json").stdout)
    assert record["largest"]["relative"] == pytest.approx(largest.relative)


def test_compare_tells_what_only_one_has_and_where_parts_cannot_be_told_apart(
    tmp_path: Path,
) -> None:
    ours = replace(linear_table(), tiers=(TierCost(Tier(64, 8), (9.0, 10.0, 13.0)),))
    stock = parse_table(dump_additive(ours))
    result = compare(ours, stock)
    assert result.only_in == ("no_draft only in A", "captured sizes: 1 in A, 0 in B")
    assert {p.part for p in result.parts} == {"draft+rest", "verify"}
    assert max(abs(p.relative) for p in result.parts) == pytest.approx(0, abs=1e-9)
    assert abs(compare(replace(ours, tiers=()), stock).largest.relative) < 1e-9


def test_a_difference_from_nothing_is_null_in_json(tmp_path: Path) -> None:
    free = linear_table()
    free = replace(free, rest=replace(free.rest, ms=((0.0,), (0.0,))))
    a, b = write(tmp_path / "a.json", free), write(tmp_path / "b.json", linear_table())
    record = json.loads(call("compare", a, b, "--json").stdout)
    assert {p["relative"] for p in record["parts"] if p["part"] == "rest"} == {None}


@pytest.mark.parametrize("schema", ["sglang-additive", "sglang-diagonal"])
def test_convert_writes_what_sglang_reads_and_names_what_it_cannot_hold(
    schema: str, tmp_path: Path
) -> None:
    table, out = write(tmp_path / "t.json", linear_table()), tmp_path / "new" / "out.json"
    result = call("convert", table, "--to", schema, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert (record["from"], record["to"]) == ("ours", schema)
    assert any(line.startswith("no_draft") for line in record["left_out"])
    assert "left out: provenance" in result.stderr
    converted = parse_table(out.read_text())
    for n in (1, 8):  # requests whose full blocks the table covers
        full = [s for s in compare(linear_table(), converted).steps if s.draft_len == 7]
        at_zero = [s for s in full if s.requests == n and s.context == 0]
        assert at_zero and abs(at_zero[0].relative) < 1e-9


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    table, out = write(tmp_path / "t.json", linear_table()), write(tmp_path / "o.json", "mine")
    command = ("convert", table, "--to", "sglang-additive", "--out", out)
    assert "give --force" in wrong_use(*command)
    assert out.read_text() == "mine"
    assert call(*command, "--force").exit_code == 0
    assert "theta_seconds" in out.read_text()


def test_ours_is_not_written_without_provenance(tmp_path: Path) -> None:
    stock, out = write(tmp_path / "s.json", dump_additive(linear_table())), tmp_path / "o.json"
    command = ("convert", stock, "--to", "ours", "--out", out)
    said = wrong_use(*command, "--set", "kind=profiled")
    assert "missing: device, isa, cores" in said and "--provenance FILE" in said
    server = identity(tmp_path / "server.json")
    assert "missing: kind, samples_per_point, date, command" in wrong_use(
        *command, "--provenance", server
    )
    rest = ("kind=profiled", "samples_per_point=9", "date=2026-01-01", "command=x")
    sets = [part for assignment in rest for part in ("--set", assignment)]
    for wrong, text in {
        "samples_per_point=many": "expected a whole number",
        "kind=guess": "'guess' is none of",
        "colour=red": "no such field",
        "kind": "expected FIELD=VALUE",
    }.items():
        said = wrong_use(*command, "--provenance", server, *sets, "--set", wrong)
        assert text in said
        assert not out.exists()
    assert call(*command, "--provenance", server, *sets).exit_code == 0
    written = parse_table(out.read_text())
    assert written.provenance is not None
    assert (written.provenance.device, written.provenance.samples_per_point) == (SERVER.device, 9)
    assert call("validate", out, "--against", server).exit_code == 1  # no no_draft, one context


def test_a_table_lends_its_provenance(tmp_path: Path) -> None:
    ours = write(tmp_path / "t.json", linear_table())
    stock, out = write(tmp_path / "s.json", dump_additive(linear_table())), tmp_path / "o.json"
    assert call("convert", stock, "--to", "ours", "--out", out, "--provenance", ours).exit_code == 0
    assert parse_table(out.read_text()).provenance == PROVENANCE


def test_wrong_combinations_are_named(tmp_path: Path) -> None:
    ours, out = write(tmp_path / "t.json", linear_table()), tmp_path / "o.json"
    stock = write(tmp_path / "s.json", dump_additive(linear_table()))

    def convert(table: Path, to: str, *more: object) -> str:
        return wrong_use("convert", table, "--to", to, "--out", out, *more)

    assert "expected one of ours, sglang-additive" in convert(ours, "yaml")
    assert "in the schema ours already" in convert(ours, "ours")
    assert "no place for provenance" in convert(ours, "sglang-additive", "--set", "tp=1")
    assert "--gamma: only sglang-diagonal" in convert(ours, "sglang-additive", "--gamma", 3)
    assert "give --gamma" in convert(stock, "sglang-diagonal")
    assert "one size of full blocks" in convert(stock, "sglang-diagonal", "--gamma", 40)
    assert not out.exists()


def test_what_a_conversion_loses_includes_timed_sizes() -> None:
    table = replace(linear_table(), tiers=(TierCost(Tier(64, 8), (9.0, 10.0, 13.0)),))
    assert any("captured sizes" in line for line in lost(table, "sglang-additive"))
    assert lost(table, "ours") == []
