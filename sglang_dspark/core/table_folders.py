"""Where cost tables lie on this machine: those that ship, and those that servers have measured."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def shipped_folder() -> Path:
    """`cost_tables/` of the installed package, or of the checkout that it is installed from."""
    installed = _PACKAGE / "cost_tables"
    return installed if installed.is_dir() else _PACKAGE.parent / "cost_tables"


def cache_folder() -> Path:
    """Where measured tables are kept, by the XDG convention."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "sglang-dspark" / "cost_tables"
