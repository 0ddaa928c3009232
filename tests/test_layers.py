"""Imports point up only (design "Layers"): who may import whom, read from the source.

core <- ops <- draft <- seam <- engine, cpu <- plugin      profiling: core, draft.checkpoint
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sglang_dspark

PACKAGE = Path(sglang_dspark.__file__).parent
NUMPY, TORCH = {"numpy"}, {"numpy", "torch", "safetensors"}

# unit -> (our units it may import, third-party modules it may import; None = any but sglang)
RULES: dict[str, tuple[set[str], set[str] | None]] = {
    "core": (set(), NUMPY),
    "settings": (set(), {"pydantic"}),
    "ops": ({"core"}, TORCH | {"triton"}),
    "draft": ({"core", "ops"}, TORCH),
    "seam": ({"core", "ops", "draft", "settings"}, None),
    "engine": ({"core", "ops", "draft", "seam", "settings"}, TORCH),
    # sgl_kernel is tried, to stand aside where SGLang's own CPU build works.
    "cpu": ({"core", "ops", "seam", "settings"}, TORCH | {"psutil", "sgl_kernel"}),
    "doctor": (
        {"core", "draft", "seam", "engine", "cpu", "settings"},
        TORCH | {"psutil", "pydantic", "packaging"},
    ),
    "profiling": (
        {"core", "draft.checkpoint", "settings"},
        {"numpy", "scipy", "httpx", "aiohttp", "psutil", "pydantic", "matplotlib", "jinja2"},
    ),
}
MAY_NAME_SGLANG = {"seam"}
# Checkpoints are parsed where there is no torch (profiling, argument checks).
NO_TORCH = ("draft/checkpoint.py", "settings.py", "plugin.py", "__init__.py")
PRIVATE_NAME = re.compile(r"sglang\.(srt|kernels)(\.\w+)+(:\w+)?")


def unit_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(tree: ast.AST) -> Iterator[str]:
    """Every dotted name imported anywhere in the file, functions and TYPE_CHECKING included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(path: Path, tree: ast.AST) -> list[str]:
    unit, found = unit_of(path), []
    ours, others = RULES.get(unit, (set(RULES) | {"draft.checkpoint"}, None))
    for name in imports(tree):
        top, _, rest = name.partition(".")
        if top == "sglang_dspark":
            allowed = any(rest == u or rest.startswith(f"{u}.") for u in ours | {unit})
            if not allowed and rest != "__version__":
                found.append(f"{unit} may not import {name}")
        elif top == "sglang" and unit not in MAY_NAME_SGLANG:
            found.append(f"{unit} may not import {name}; only {MAY_NAME_SGLANG} may")
        elif top in ("torch", "sglang") and str(path.relative_to(PACKAGE)) in NO_TORCH:
            found.append(f"{path.name} must import without {top}")
        elif (
            others is not None
            and top not in others | {"sglang"}
            and top not in sys.stdlib_module_names
        ):
            found.append(f"{unit} may not import {name}")
    return found


def dotted_sglang_strings(tree: ast.AST) -> list[str]:
    """String constants that are a path into SGLang, as a hook or a lazy import would use."""
    found = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    return [v for v in found if isinstance(v, str) and PRIVATE_NAME.fullmatch(v)]


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_up_only(path):
    tree = ast.parse(path.read_text())
    assert violations(path, tree) == []
    if unit_of(path) not in MAY_NAME_SGLANG:
        assert dotted_sglang_strings(tree) == []


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("core/x.py", "import torch"),
        ("core/x.py", "from sglang_dspark.ops.draw import race"),
        ("ops/x.py", "def f():\n    import sglang"),
        ("ops/x.py", "from sglang_dspark import engine"),
        ("draft/x.py", "from sglang_dspark.seam import hooks"),
        ("draft/checkpoint.py", "import torch"),
        ("seam/x.py", "from sglang_dspark.engine.worker import DSparkWorker"),
        ("seam/x.py", "from sglang_dspark.cpu.plan import AttentionPlan"),
        ("engine/x.py", "import sglang.srt.managers.utils"),
        ("engine/x.py", "from sglang_dspark.cpu.plan import AttentionPlan"),
        ("profiling/x.py", "from sglang_dspark.draft.heads import MarkovHead"),
    ],
)
def test_the_walk_would_notice(where, line):
    assert violations(PACKAGE / where, ast.parse(line))


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("core/x.py", "import numpy as np, math"),
        ("ops/x.py", "from sglang_dspark.core import noise"),
        ("seam/x.py", "from sglang.srt.environ import envs"),
        ("profiling/x.py", "from sglang_dspark.draft.checkpoint import DraftConfig"),
        ("cli/x.py", "from sglang_dspark.profiling.client import Client"),
    ],
)
def test_the_walk_lets_the_rest_pass(where, line):
    assert violations(PACKAGE / where, ast.parse(line)) == []
