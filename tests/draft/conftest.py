import os
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

from sglang_dspark.draft.target import TargetShape
from tests.planted import HIDDEN, NUM_LAYERS, Pair, make_random_pair


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def random_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pair]:
    """Random pairs, written once for each set of options."""
    made: dict[str, Pair] = {}

    def get(**options: object) -> Pair:
        key = repr(sorted(options.items()))
        if key not in made:
            made[key] = make_random_pair(tmp_path_factory.mktemp("pair"), **options)  # type: ignore[arg-type]
        return made[key]

    return get


def tiny_target(path: Path | str = "/target", vocab_size: int = 320) -> TargetShape:
    return TargetShape(
        str(path),
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        num_layers=NUM_LAYERS,
        context_len=64,
    )
