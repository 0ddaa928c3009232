"""Writing a document: its figures, `report.md` and `report.html`."""

from __future__ import annotations

from pathlib import Path

from sglang_dspark.profiling.report.document import Document
from sglang_dspark.profiling.report.markdown import as_markdown
from sglang_dspark.profiling.report.page import as_page
from sglang_dspark.profiling.report.plot import NAMES, file_of
from sglang_dspark.profiling.report.style import save

MARKDOWN, PAGE = "report.md", "report.html"


def possible_files(out: Path) -> list[Path]:
    """Everything that a report may write into `out`."""
    return [out / name for name in (PAGE, MARKDOWN, *map(file_of, NAMES))]


def write_report(document: Document, out: Path) -> list[Path]:
    """Into the folder `out`, which is made if need be; the files, the page first.

    Files that exist are replaced, and figures of an earlier report that this one lacks removed.
    """
    out.mkdir(parents=True, exist_ok=True)
    for file in possible_files(out):
        file.unlink(missing_ok=True)
    for plot in document.plots:
        save(plot.figure, out / plot.file)
    images = {plot.file: (out / plot.file).read_bytes() for plot in document.plots}
    (out / MARKDOWN).write_text(as_markdown(document), encoding="utf-8")
    (out / PAGE).write_text(as_page(document, images), encoding="utf-8")
    return [file for file in possible_files(out) if file.exists()]
