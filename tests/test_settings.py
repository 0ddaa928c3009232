"""The settings file: what is taken, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_dspark.settings import VARIABLE, SettingsError, load_settings


@pytest.fixture(autouse=True)
def no_file_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_without_a_file_the_defaults_hold():
    settings = load_settings()
    assert (settings.cost_table, settings.scheduler, settings.no_draft.mode) == (
        "auto",
        "lagged",
        None,
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.toml", 'scheduler = "algorithm-1"\n[trace]\ndirectory = "traces"\n'),
        ("s.json", '{"scheduler": "algorithm-1", "trace": {"directory": "traces"}}'),
    ],
)
def test_both_formats_say_the_same_and_the_variable_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name, text
):
    (tmp_path / name).write_text(text)
    monkeypatch.setenv(VARIABLE, str(tmp_path / name))
    settings = load_settings()
    assert (settings.scheduler, settings.trace.directory) == ("algorithm-1", Path("traces"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('typo = "x"', "typo"),
        ('[no_draft]\nmode = "sometimes"', "no_draft.mode"),
        ("[no_draft]\nperiod = 0", "no_draft.period"),
        ('cost_table = "table.json"', "cost_table"),
        ('scheduler = "algorithm-1"\n[no_draft]\nmode = "auto"', "always drafts"),
        ('scheduler = "algorithm-1"\ncost_table = "off"', "needs a cost table"),
        ("not toml", "not a .toml file"),
    ],
)
def test_what_is_wrong_is_refused_by_name(tmp_path: Path, text, reason):
    file = tmp_path / "s.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=reason):
        load_settings(str(file))


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"absent\.toml: cannot be read"):
        load_settings(str(tmp_path / "absent.toml"))
