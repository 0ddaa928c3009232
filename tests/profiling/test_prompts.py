from __future__ import annotations

import pytest

from sglang_dspark.profiling.prompts import PromptError, read_prompts


def test_the_first_prompts_are_read(tmp_path):
    file = tmp_path / "code.jsonl"
    file.write_text('{"text": "a", "source": "x"}\n\n{"text": "b"}\n{"text": "c"}\n')
    assert read_prompts(file, 2) == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"text": "a"}\n', "1 prompts, 2 are needed"),
        ('{"text": "a"}\n{"prompt": "b"}\n', "line 2"),
        ('{"text": "a"}\nnot json\n', "line 2"),
        ('{"text": "a"}\n"text"\n', "line 2"),
        ('{"text": "a"}\n{"text": ""}\n', "line 2"),
    ],
)
def test_a_bad_file_is_named(tmp_path, content, reason):
    file = tmp_path / "code.jsonl"
    file.write_text(content)
    with pytest.raises(PromptError, match=reason) as error:
        read_prompts(file, 2)
    assert str(file) in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PromptError, match="cannot be read"):
        read_prompts(tmp_path / "code.jsonl", 1)
