"""A document as Markdown."""

from __future__ import annotations

from sglang_dspark.profiling.report.document import Document, Table


def as_markdown(document: Document) -> str:
    lines = [f"# {document.title}", ""]
    lines += _bullets([f"**{name}**: {_text(value)}" for name, value in document.facts])
    if document.findings:
        lines += ["## Findings", "", *_bullets([_text(f) for f in document.findings])]
    if document.notes:
        lines += ["## Note", "", *_bullets([_text(n) for n in document.notes])]
    lines += ["## Figures", ""]
    for plot in document.plots:
        lines += [f"### {plot.title}", "", f"![{plot.title}]({plot.file})", ""]
        lines += [_text(plot.caption), "", f"Data: {_text(plot.source)}", ""]
    if document.left_out:
        lines += ["### Left out", ""]
        lines += _bullets([f"{out.title}: {_text(out.reason)}." for out in document.left_out])
    lines += ["## Numbers", ""]
    for table in document.numbers:
        lines += _table(table)
    lines += ["## Origin", ""]
    for table in document.origin:
        lines += _table(table)
    return "\n".join(lines)


def _table(table: Table) -> list[str]:
    lines = [f"### {table.title}", ""]
    if table.note:
        lines += [table.note, ""]
    if table.rows:
        right = [i >= table.words for i in range(len(table.header))]
        lines += [_row(table.header), _row(["---:" if r else "---" for r in right])]
        lines += [_row([_text(cell).replace("|", "\\|") for cell in row]) for row in table.rows]
        lines.append("")
    return lines


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _bullets(texts: list[str]) -> list[str]:
    return [*(f"* {text}" for text in texts), ""]


def _text(text: str) -> str:
    """Nothing in a measured text may act as markup."""
    for sign in "\\`*<[":
        text = text.replace(sign, f"\\{sign}")
    return text
