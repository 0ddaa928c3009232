"""A document as one HTML file that needs nothing else: figures inside, no scripts, no network."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined

from sglang_dspark.profiling.report.document import Document


def as_page(document: Document, images: Mapping[str, bytes]) -> str:
    """images: PNG by the plot's file name."""
    environment = Environment(
        loader=PackageLoader("sglang_dspark.profiling.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    embedded = {
        name: "data:image/png;base64," + base64.b64encode(png).decode("ascii")
        for name, png in images.items()
    }
    return environment.get_template("page.html.j2").render(document=document, images=embedded)
