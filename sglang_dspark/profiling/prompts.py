"""Prompt files: one JSON object a line, the prompt under `text`."""

from __future__ import annotations

import json
from pathlib import Path


class PromptError(ValueError):
    """A prompt file is missing, malformed or too short; the text says which."""


def read_prompts(path: Path, count: int) -> list[str]:
    """The first `count` prompts of a file.

    Raises:
        PromptError: the file cannot be read, a line is not such an object, or there are too few.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PromptError(f"{path}: cannot be read ({error.strerror})") from None
    prompts: list[str] = []
    for number, line in enumerate(lines, start=1):
        if len(prompts) == count:
            break
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
        except (json.JSONDecodeError, KeyError, TypeError):
            text = None
        if not isinstance(text, str) or not text:
            raise PromptError(f'{path}, line {number}: expected a JSON object with "text"')
        prompts.append(text)
    if len(prompts) < count:
        raise PromptError(f"{path}: {len(prompts)} prompts, {count} are needed")
    return prompts
