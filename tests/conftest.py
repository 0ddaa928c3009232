"""Options of the whole test suite."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run tests marked full (hours)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "serves(*names): servers (tests/server/servers.py) it uses")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    skip = pytest.mark.skip(reason="runs with --full only")
    for item in items:
        if "full" in item.keywords:
            item.add_marker(skip)
