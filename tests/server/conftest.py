from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

from tests.server.grid import SMALL, Control, Workload
from tests.server.servers import SPECS, Pairs, Pool, Running

HERE = Path(__file__).parent
Serve = Callable[[str], Running]


def servers_of(item: pytest.Item) -> tuple[str, ...]:
    mark = item.get_closest_marker("serves")
    return tuple(mark.args) if mark else ()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests of this folder by the last server they need; others keep their place."""
    order = {name: i for i, name in enumerate(SPECS)}
    at = [i for i, item in enumerate(items) if HERE in item.path.parents]
    mine = sorted(
        (items[i] for i in at),
        key=lambda item: max((order[name] for name in servers_of(item)), default=-1),
    )
    for i, item in zip(at, mine, strict=True):
        items[i] = item
        if servers_of(item):
            item.add_marker(pytest.mark.server)


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    return Pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory, pairs: Pairs) -> Iterator[Pool]:
    pool = Pool(tmp_path_factory.mktemp("servers"), pairs)
    yield pool
    pool.close()


@pytest.fixture
def serve(request: pytest.FixtureRequest, pool: Pool) -> Iterator[Serve]:
    """Gives a named server; after the test it must still answer and have logged no error."""
    names = servers_of(request.node)
    items = request.session.items
    later = items[items.index(request.node) :]
    pool.upcoming = list(dict.fromkeys(n for item in later for n in servers_of(item)))
    used: dict[str, Running] = {}

    def get(name: str) -> Running:
        used[name] = pool.get(name, also=names)
        return used[name]

    yield get
    for name, running in used.items():
        assert running.is_alive(), f"{name} ended:\n{running.server.log_tail()}"
        complaints = re.findall(r"Traceback.*|.*leak.*|.*use-after-free.*", running.new_log())
        assert not complaints, f"{name} logged {complaints}; see {running.server.log}"


@pytest.fixture(scope="session")
def workload(pairs: Pairs) -> Workload:
    return Workload(pairs.get("text"), SMALL)


@pytest.fixture(scope="session")
def known_controls() -> dict[str, Control]:
    return {}


@pytest.fixture
def control(serve: Serve, workload: Workload, known_controls: dict[str, Control]) -> Control:
    """The server without speculation; it is started again only if a flip asks for its logits."""
    known = known_controls.setdefault("", Control(lambda: serve("control").client, workload))
    known.client = lambda: serve("control").client
    return known
