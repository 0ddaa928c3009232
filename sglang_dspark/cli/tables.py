"""`sglang-dspark tables`: list, show, validate, compare and convert cost tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sglang_dspark.cli.common import Force, Json, fail, print_json, refuse_to_overwrite, screen

if TYPE_CHECKING:
    from sglang_dspark.core.cost_table import CostTable
    from sglang_dspark.core.cost_verdict import Server

STATUS = {"use": 0, "warn": 1, "refuse": 3}

Gamma = Annotated[
    int | None,
    typer.Option(min=1, help="Drafts per block; without it what the table was measured with."),
]

tables = typer.Typer(
    help="Cost tables: list, show, validate, compare, convert.", no_args_is_help=True
)


@tables.command("list", epilog="Example: sglang-dspark tables list")
def list_tables(as_json: Json = False) -> None:
    """The tables that ship with the package and those that servers left in the cache."""
    from sglang_dspark.cli.tables_screen import show_list
    from sglang_dspark.core.table_folders import cache_folder, shipped_folder
    from sglang_dspark.profiling.tables.folders import entries
    from sglang_dspark.profiling.tables.summary import entry_record

    found = entries()
    show_list(screen(as_json), found, (shipped_folder(), cache_folder()))
    if as_json:
        print_json({"tables": [entry_record(entry) for entry in found]})


@tables.command(epilog="Example: sglang-dspark tables show my_table.json")
def show(
    table: Annotated[str, typer.Argument(help="A file, or a name that `list` shows.")],
    gamma: Gamma = None,
    as_json: Json = False,
) -> None:
    """One table on one screen: where it is from, its curves, steps per second, its residuals."""
    from sglang_dspark.cli.tables_screen import show_table
    from sglang_dspark.core.cost_schema import parse_table
    from sglang_dspark.profiling.tables.compare import common_gamma
    from sglang_dspark.profiling.tables.convert import schema_of
    from sglang_dspark.profiling.tables.folders import find, read
    from sglang_dspark.profiling.tables.summary import speed_record, speeds

    try:
        path = find(table)
        text = read(path)
        found = parse_table(text)
    except ValueError as error:
        fail(f"{table}: {error}" if table not in str(error) else str(error))
    block = common_gamma(found) if gamma is None else gamma
    rows = speeds(found, block)
    show_table(screen(as_json), path, schema_of(text), found, rows, block)
    if as_json:
        record = {
            "path": str(path),
            "schema": schema_of(text),
            "table": json.loads(text),
            "gamma": block,
            "speeds": [speed_record(row) for row in rows],
        }
        print_json(record)


@tables.command(
    epilog="Example: sglang-dspark tables validate my_table.json --url http://127.0.0.1:30000"
)
def validate(
    table: Annotated[str, typer.Argument(help="A file, or a name that `list` shows.")],
    against: Annotated[
        Path | None,
        typer.Option(
            help="JSON that says which server: a saved /server_info, or the JSON of `doctor`."
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="A running DSPARK server of this package.")
    ] = None,
    as_json: Json = False,
) -> None:
    """May this table steer that server? Every reason; without a server, the table by itself.

    The exit status is 0 for use, 1 for use with a warning, 3 for refused, 2 for wrong use.
    """
    from sglang_dspark.cli.tables_screen import show_verdict
    from sglang_dspark.profiling.tables.folders import TableFileError, find, read
    from sglang_dspark.profiling.tables.identity import verdicts

    server = _server(against, url)
    try:
        path = find(table)
        text = read(path)
    except TableFileError as error:
        fail(str(error))
    verdict, unasked = verdicts(text, server)
    show_verdict(screen(as_json), path, verdict, unasked, server)
    if as_json:
        record = {
            "path": str(path),
            "verdict": verdict.level,
            "findings": [asdict(finding) for finding in verdict.findings],
            "picked_up_by_itself": unasked.level != "refuse" if unasked else None,
            "server": asdict(server) if server else None,
        }
        print_json(record)
    raise typer.Exit(STATUS[verdict.level])


@tables.command(epilog="Example: sglang-dspark tables compare before.json after.json")
def compare(
    a: Annotated[str, typer.Argument(help="A file, or a name that `list` shows.")],
    b: Annotated[str, typer.Argument(help="The other one; differences are relative to the first.")],
    gamma: Gamma = None,
    as_json: Json = False,
) -> None:
    """Differences of draft, verify, rest and no-draft at every size, and of whole steps."""
    from sglang_dspark.cli.tables_screen import show_comparison
    from sglang_dspark.profiling.tables.compare import compare as compare_tables
    from sglang_dspark.profiling.tables.compare import comparison_record

    result = compare_tables(_load(a), _load(b), gamma)
    show_comparison(screen(as_json), a, b, result)
    if as_json:
        print_json({"a": a, "b": b} | comparison_record(result))


@tables.command(
    epilog="Example: sglang-dspark tables convert my_table.json --to sglang-additive "
    "--out sps_table.json"
)
def convert(
    table: Annotated[str, typer.Argument(help="A file, or a name that `list` shows.")],
    to: Annotated[str, typer.Option(help="ours, sglang-additive or sglang-diagonal.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    gamma: Gamma = None,
    provenance: Annotated[
        Path | None,
        typer.Option(help="For `ours`: JSON with provenance fields, or a table that has them."),
    ] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="For `ours`: one provenance field."),
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Between our schema and SGLang's two; says what the other schema cannot hold."""
    from sglang_dspark.core.cost_schema import parse_table
    from sglang_dspark.profiling.tables.convert import (
        SCHEMAS,
        gather_provenance,
        lost,
        schema_of,
        to_ours,
        to_sglang,
    )
    from sglang_dspark.profiling.tables.folders import find, read

    refuse_to_overwrite(force, out)
    schema = next((known for known in SCHEMAS if known == to), None)
    if schema is None:
        fail(f"--to {to}: expected one of {', '.join(SCHEMAS)}")
    if schema != "ours" and (provenance or assign):
        fail(f"--provenance and --set: {schema} has no place for provenance; leave them out")
    if gamma is not None and schema != "sglang-diagonal":
        fail(f"--gamma: only sglang-diagonal holds full blocks; leave it out with {schema}")
    try:
        text = read(find(table))
        found = parse_table(text)
        if (given := schema_of(text)) == schema:
            fail(f"{table} is in the schema {given} already")
        if schema == "ours":
            converted = to_ours(found, gather_provenance(provenance, assign or []))
        else:
            converted = to_sglang(found, schema, gamma)
    except ValueError as error:
        fail(f"{table}: {error}" if table not in str(error) else str(error))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(converted, encoding="utf-8")
    talk, left_out = screen(as_json), lost(found, schema)
    talk.print(f"{table} ({given}) -> {out} ({schema})", markup=False, highlight=False)
    for line in left_out:
        talk.print(f"  left out: {line}", style="yellow", markup=False, highlight=False)
    if as_json:
        print_json({"out": str(out), "from": given, "to": schema, "left_out": left_out})


def _load(name: str) -> CostTable:
    from sglang_dspark.profiling.tables.folders import TableFileError, load

    try:
        return load(name)
    except TableFileError as error:
        fail(str(error))


def _server(against: Path | None, url: str | None) -> Server | None:
    """The server to judge for, if the user names one."""
    from sglang_dspark.profiling.tables.identity import (
        IdentityError,
        server_from_file,
        server_from_url,
    )

    if against is not None and url is not None:
        fail("--against and --url: give one of them")
    try:
        if against is not None:
            return server_from_file(against)
        return server_from_url(url) if url is not None else None
    except IdentityError as error:
        fail(str(error))
