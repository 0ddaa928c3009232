"""One file of stock SGLang, loaded on its own: importing the package takes half a minute."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = "srt/speculative/dspark_components"


def stock_file(name: str) -> ModuleType:
    """`name`.py of SGLang's DSPARK folder; it must import nothing of SGLang itself."""
    sglang = importlib.util.find_spec("sglang")
    if sglang is None or not sglang.submodule_search_locations:
        pytest.skip("SGLang is not installed")
    path = Path(sglang.submodule_search_locations[0], FOLDER, f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"stock_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # msgspec resolves annotations there
    spec.loader.exec_module(module)
    return module
