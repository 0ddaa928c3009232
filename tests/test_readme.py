"""The README keeps up with the code: every setting, refusal, option and file that it promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from sglang_dspark import settings

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
DOCUMENTS = [
    ROOT / n for n in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md")
]


def keys_of(model: type[BaseModel]) -> set[str]:
    names = set()
    for name, field in model.model_fields.items():
        kind = field.annotation
        nested = isinstance(kind, type) and issubclass(kind, BaseModel)
        names |= {f"{name}.{key}" for key in keys_of(kind)} if nested else {name}
    return names


def test_every_setting_is_explained():
    missing = {key for key in keys_of(settings.Settings) if f"`{key}`" not in README}
    assert not missing


def string_keys(file: str) -> set[str]:
    """What the argument and request checks call the things they refuse."""
    found = re.findall(r'^        "([^"]+)":', (ROOT / "sglang_dspark" / file).read_text(), re.M)
    assert len(found) > 10
    return set(found)


@pytest.mark.parametrize("file", ["seam/arguments.py", "seam/requests.py"])
def test_every_refusal_has_a_row(file):
    names = {
        word
        for key in string_keys(file)
        for word in re.findall(r"--[\w-]+|\b[a-z]+_[a-z_]+\b|^\w+$", key)
    }
    derived = {"speculative_draft_model_path", "speculative_num_draft_tokens"}
    derived |= {"speculative_num_steps", "speculative_eagle_topk"}
    missing = {name for name in names - derived if f"`{name}`" not in README}
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_and_files_that_are_named_exist(document):
    text = document.read_text()
    for target in re.findall(r"\]\((?!https?:|#)([^)]+)\)", text):
        assert (document.parent / target).exists(), target
    for target in re.findall(r"\bmake ([a-z-]+)`", text):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), target
