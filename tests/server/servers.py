"""Every server that the tests use, by name, and a pool that keeps a few of them running.

A start costs half a minute, mostly imports. So tests name the servers they need
(`@pytest.mark.serves(...)`), the run is ordered by this table, and the next server starts in the
background while the tests of the present one run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from sglang_dspark.core.cost_schema import dump_additive
from sglang_dspark.profiling.client import Client
from sglang_dspark.profiling.server import Server
from tests.core.made_up import dear_rows, linear_table
from tests.planted import Pair, make_copy_pair, make_garbage_pair, make_noisy_pair

MAX_LIVE = 4  # starting ones included
MAX_STARTING = 2  # one a core; a start is mostly imports
START_TIMEOUT_S = 400  # half a minute on quiet cores
BUNDLED = Path(__file__).parents[2] / "examples" / "tiny"
PAGE = 16
SMALL_CONTEXT = 512
SMALL_POOL = 1536  # tokens: three full contexts, for up to 16 running requests
RANDOM_SEED = 20

# SGLang's own bookkeeping, checked after every scheduler step; a leak ends the server.
STRICT = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
    "OMP_NUM_THREADS": "1",
    "SGLANG_RAGGED_VERIFY_MODE": "static",  # so that no table is measured where none is needed
}


@dataclass(frozen=True, slots=True)
class Spec:
    """How to start one server. gamma None: without speculation."""

    pair: str
    gamma: int | None = 7
    overlap: bool = True
    radix: bool = True
    flags: tuple[str, ...] = ()  # {tables}: the folder of made-up cost tables
    settings: str = ""  # of the file that SGLANG_DSPARK_CONFIG names, TOML; {tables}, {traces}
    environment: tuple[tuple[str, str], ...] = ()

    def command(self, pair: Pair) -> list[str]:
        out = ["--model-path", str(pair.target), "--dtype", "float32", "--sleep-on-idle"]
        out += ["--random-seed", str(RANDOM_SEED), "--max-running-requests", "16"]
        if self.gamma is not None:
            out += ["--speculative-algorithm", "DSPARK"]
            out += ["--speculative-draft-model-path", str(pair.draft)]
            out += ["--speculative-dspark-block-size", str(self.gamma)]
        if not self.overlap:
            out.append("--disable-overlap-schedule")
        if not self.radix:
            out.append("--disable-radix-cache")
        return [*out, *self.flags]


# A pool too small for what is admitted: the scheduler must retract.
CROWDED = ("--max-total-tokens", str(SMALL_POOL), "--schedule-conservativeness", "0.1")
HOPEFUL = (("SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION", "8"),)  # tokens a request is admitted for

# Compact without a cost table: every budget is pinned by the tests.
NO_TABLE = 'cost_table = "off"'
ALGORITHM_1 = 'scheduler = "algorithm-1"\n'
# The file with the trace and the tables that run-time control may choose.
# A table is measured at its start, whatever ships for this machine.
STEERED = """\
cost_table = "measure"
[trace]
directory = "{traces}"
reference = true
[control]
cost_tables = "{tables}"
"""
# Prices that no machine decides, so that what is chosen by them is the same everywhere.
PRICED = ("--speculative-dspark-sps-table-path", "{tables}/linear.json")
COMPACT = (("SGLANG_RAGGED_VERIFY_MODE", "compact"),)

# In the order of the run.
SPECS: Mapping[str, Spec] = {
    "control": Spec("text", gamma=None),
    "text-7": Spec("text", gamma=7),
    "text-3": Spec("text", gamma=3, radix=False),
    "text-1": Spec("text", gamma=1, overlap=False),
    "text-7-plain": Spec("text", gamma=7, overlap=False, radix=False),
    "text-no-draft": Spec("text", settings='[no_draft]\nmode = "on"'),
    "scheduled": Spec("text", environment=COMPACT, settings=STEERED),
    "law": Spec("noisy", gamma=2, flags=("--max-total-tokens", "4096")),
    "garbage": Spec("garbage"),
    "copy": Spec("copy"),
    "copy-alternate": Spec("copy", settings='[no_draft]\nmode = "alternate"\nperiod = 3'),
    "modes": Spec("noisy", settings=NO_TABLE, environment=COMPACT, flags=("--enable-metrics",)),
    "modes-sync": Spec(
        "noisy", overlap=False, settings=ALGORITHM_1, environment=COMPACT, flags=PRICED
    ),
    "small": Spec("small", flags=CROWDED, environment=HOPEFUL),
    "small-paged": Spec(
        "small-gated",
        flags=(*CROWDED, "--page-size", str(PAGE), "--chunked-prefill-size", "64"),
        environment=HOPEFUL,
    ),
}

PLANTED: Mapping[str, Callable[[Path], Pair]] = {
    "noisy": partial(make_noisy_pair, max_positions=2048),
    "copy": partial(make_copy_pair, max_positions=16384),
    "garbage": partial(make_garbage_pair, max_positions=2048),
    "small": partial(make_copy_pair, max_positions=SMALL_CONTEXT, head_type="rnn"),
    "small-gated": partial(make_copy_pair, max_positions=SMALL_CONTEXT, head_type="gated"),
}


def bundled_pair() -> Pair | None:
    """The trained pair, where its weights are in place."""
    pair = Pair(BUNDLED / "target", BUNDLED / "draft")
    folders = (pair.target, pair.draft)
    complete = all(list(f.glob("*.safetensors")) and (f / "config.json").exists() for f in folders)
    return pair if complete else None


class Pairs:
    """Checkpoints by name, planted ones written once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, {}  # type: ignore[var-annotated]

    def get(self, name: str) -> Pair:
        if name == "text":
            return bundled_pair() or self.get("noisy")
        if name not in self._made:
            self._made[name] = PLANTED[name](self._folder / name)
        return self._made[name]


@dataclass
class Running:
    """A server that answers, with a client."""

    server: Server
    client: Client
    log_read: int = field(default=0)  # bytes of the log that tests have seen

    @property
    def url(self) -> str:
        return self.server.url

    def is_alive(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/health", timeout=30).status_code == 200
        return False

    def new_log(self) -> str:
        """What was logged since the last call."""
        text = self.server.log.read_bytes()
        fresh, self.log_read = text[self.log_read :], len(text)
        return fresh.decode(errors="replace")

    def stop(self) -> None:
        self.client.close()
        self.server.stop()


class Pool:
    """Servers by name: started when asked for or when they come next, a few at a time."""

    def __init__(self, folder: Path, pairs: Pairs) -> None:
        self._folder, self._pairs = folder, pairs
        self._starting: dict[str, Server] = {}
        self._running: dict[str, Running] = {}
        self.upcoming: Sequence[str] = ()  # names in the order of the coming tests

    @property
    def traces(self) -> Path:
        """The folder that settings name as {traces}."""
        return self._folder / "traces"

    @property
    def _tables(self) -> Path:
        """The folder that flags and settings name as {tables}: SGLang's schema, no provenance."""
        folder = self._folder / "tables"
        if not folder.exists():
            folder.mkdir()
            for name, table in {"linear": linear_table(None), "dear": dear_rows()}.items():
                (folder / f"{name}.json").write_text(dump_additive(table))
        return folder

    def get(self, name: str, also: Iterable[str] = ()) -> Running:
        """The server of that name, ready. `also`: names that must stay up beside it."""
        running = self._running.get(name)
        if running is not None and not running.is_alive():
            self._running.pop(name).stop()  # the test that ended it has failed already
            running = None
        if running is None:
            if name not in self._starting:
                self._launch(name, keep={name, *also})
            server = self._starting.pop(name)
            try:
                server.wait(timeout_s=START_TIMEOUT_S)
            except BaseException:
                server.stop()
                raise
            running = self._running[name] = Running(server, Client(server.url))
            running.new_log()
        self._prefetch(keep={name, *also})
        return running

    def close(self) -> None:
        for server in self._starting.values():
            server.stop()
        for running in self._running.values():
            running.stop()

    def _prefetch(self, keep: set[str]) -> None:
        """Start what comes next, unless that would end what is needed before it."""
        for name in self.upcoming:
            if name in self._running or name in self._starting:
                continue
            idle = [n for n in self._running if n not in keep]
            has_room = len(self._running) + len(self._starting) < MAX_LIVE
            spare = any(self._next_use(n) > self._next_use(name) for n in idle)
            if len(self._starting) >= MAX_STARTING or not (has_room or spare):
                return
            self._launch(name, keep)

    def _launch(self, name: str, keep: set[str]) -> None:
        """Start without waiting; whoever is needed last makes room."""
        while len(self._running) + len(self._starting) >= MAX_LIVE:
            idle = [n for n in self._running if n not in keep]
            if not idle:
                break
            self._running.pop(max(idle, key=self._next_use)).stop()
        spec = SPECS[name]
        # Cost tables of the user's cache must not decide what a test sees.
        environment = STRICT | {"XDG_CACHE_HOME": str(self._folder)} | dict(spec.environment)
        if spec.settings:
            file = self._folder / f"{name}.toml"
            self.traces.mkdir(exist_ok=True)
            file.write_text(self._with_folders(spec.settings))
            environment["SGLANG_DSPARK_CONFIG"] = str(file)
        log = self._folder / f"{name}-{os.getpid()}.log"
        command = [self._with_folders(w) for w in spec.command(self._pairs.get(spec.pair))]
        server = Server(command, log=log, environment=environment)
        server.launch()
        self._starting[name] = server

    def _with_folders(self, text: str) -> str:
        folders = {"{traces}": self.traces, "{tables}": self._tables}
        for name, folder in folders.items():
            text = text.replace(name, str(folder))
        return text

    def _next_use(self, name: str) -> int:
        return self.upcoming.index(name) if name in self.upcoming else len(self.upcoming)
