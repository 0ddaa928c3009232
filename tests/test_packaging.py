"""What a user installs: the built wheel's content and entry points, and a cheap console command."""

from __future__ import annotations

import configparser
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from sglang_dspark import __version__

ROOT = Path(__file__).parents[1]
INFO = f"sglang_dspark-{__version__}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from this tree with the tools of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        yield archive


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel):
    names = {n for n in wheel.namelist() if not n.startswith(INFO)}
    here = {str(p.relative_to(ROOT)) for p in (ROOT / "sglang_dspark").rglob("*.py")}
    assert here <= names
    assert "sglang_dspark/py.typed" in names
    assert "sglang_dspark/profiling/report/page.html.j2" in names
    assert "sglang_dspark/cost_tables/README.md" in names
    assert all(n.startswith("sglang_dspark/") and "__pycache__" not in n for n in names)


def test_the_wheel_carries_its_licence_and_requirements(wheel):
    assert b"Apache License" in wheel.read(f"{INFO}/licenses/LICENSE")
    head = Parser().parsestr(wheel.read(f"{INFO}/METADATA").decode())
    assert (head["Name"], head["Version"]) == ("sglang-dspark", __version__)
    assert head["License-Expression"] == "Apache-2.0"
    assert head["Requires-Python"] == ">=3.11"
    assert "sglang==0.5.23" in head.get_all("Requires-Dist", [])


def test_the_wheel_registers_plugin_platform_and_command(wheel):
    entries = configparser.ConfigParser()
    entries.read_string(wheel.read(f"{INFO}/entry_points.txt").decode())
    assert dict(entries["sglang.srt.plugins"]) == {"sglang_dspark": "sglang_dspark.plugin:register"}
    assert dict(entries["sglang.srt.platforms"]) == {
        "sglang_dspark": "sglang_dspark.plugin:activate_platform"
    }
    assert dict(entries["console_scripts"]) == {"sglang-dspark": "sglang_dspark.cli:main"}


def test_the_console_command_imports_neither_torch_nor_sglang():
    code = (
        "import sys; import sglang_dspark.cli; "
        "heavy = {'torch', 'sglang', 'transformers', 'scipy', 'numpy'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sglang_dspark.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, **options)


COMMANDS = [
    "demo",
    "serve",
    "doctor",
    "profile",
    "calibrate",
    "simulate",
    "sweep",
    "report",
    "tables",
]


@pytest.mark.parametrize("command", [*COMMANDS, "tables"])
def test_help_of_every_command_has_an_example(command):
    shown = run(command, "--help")
    assert shown.returncode == 0
    assert f"Example: sglang-dspark {command}" in " ".join(shown.stdout.split())


def test_without_a_checkout_the_demo_asks_for_the_folders(tmp_path):
    """As an installed wheel sees it: the package alone, away from the repository."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sglang_dspark").symlink_to(ROOT / "sglang_dspark")
    code = (
        "import sys; sys.path.insert(0, 'site'); import sglang_dspark.cli as cli; "
        "assert 'site' in cli.__file__; sys.argv[1:] = ['demo']; cli.main()"
    )
    shown = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    text = " ".join(shown.stderr.split())
    assert shown.returncode == 2
    assert "comes with the repository" in text and "--target" in text


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    shown = run("demo", "--target", str(tmp_path / "absent"))
    assert shown.returncode == 2
    assert "--target" in shown.stderr and "no such folder" in " ".join(shown.stderr.split())


def test_serve_wants_both_models_or_neither():
    shown = run("serve", "--target", "somewhere")
    assert shown.returncode == 2
    assert "give both --target and --draft" in " ".join(shown.stderr.split())
