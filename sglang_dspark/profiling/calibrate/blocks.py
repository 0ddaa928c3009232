"""Judged blocks as arrays, and the two halves that a fit needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.survival import confidences, survivals
from sglang_dspark.profiling.traces import Owner, Trace, TraceError

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """n whole blocks whose every position was judged."""

    logits: F64  # [n, gamma] raw confidence logits
    num_survived: I64  # [n] drafts that the target would have accepted, 0..gamma
    request: I64  # [n] number of the request
    domain: I64  # [n] index into `domains`
    domains: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.num_survived)

    @property
    def gamma(self) -> int:
        return int(self.logits.shape[1])

    @property
    def num_requests(self) -> int:
        return len(np.unique(self.request))

    @property
    def survived(self) -> Bools:
        """[n, gamma] whether the prefix up to each position was accepted."""
        return np.arange(self.gamma) < self.num_survived[:, None]

    def survival(self, temperatures: tuple[float, ...] | None = None) -> F64:
        """[n, gamma] predicted; None: as the head says."""
        return survivals(confidences(self.logits, temperatures)).astype(np.float64)

    def only(self, which: Bools) -> Blocks:
        """which: [n]."""
        return Blocks(
            self.logits[which],
            self.num_survived[which],
            self.request[which],
            self.domain[which],
            self.domains,
        )

    def of_domain(self, name: str) -> Blocks:
        return self.only(self.domain == self.domains.index(name))


def blocks_of(traces: Mapping[str, Trace]) -> Blocks:
    """All judged whole blocks of the traces; each trace is a domain.

    Raises:
        TraceError: a trace has none, and why.
    """
    logits: list[list[float]] = []
    outcome: list[tuple[int, int, int]] = []  # survived, request, domain
    for index, trace in enumerate(traces.values()):
        before = len(logits)
        requests: dict[Owner, int] = {}
        for step in trace.steps:
            whole = step.width == trace.header.gamma
            if not whole or step.ceiling is None or step.confidence_logits is None:
                continue
            for row, kept, owner in zip(
                step.confidence_logits, step.ceiling, step.owners, strict=True
            ):
                number = requests.setdefault(owner, len(requests))
                logits.append(row)
                outcome.append((kept, number, index))
        if len(logits) == before:
            raise TraceError(
                f"{trace.name}: no block of gamma {trace.header.gamma} was judged as a whole; "
                "record in verify mode cap-accept without a gamma limit "
                "(dspark_verify_mode, dspark_gamma_limit), or use --record"
            )
    numbers = np.array(outcome, dtype=np.int64)
    # Requests of different traces are different: number them apart.
    apart = numbers[:, 1] + numbers[:, 2] * (numbers[:, 1].max() + 1)
    return Blocks(np.array(logits), numbers[:, 0], apart, numbers[:, 2], tuple(traces))


def split_halves(blocks: Blocks, seed: int = 0) -> tuple[Blocks, Blocks]:
    """(to fit on, held out), equal in every domain up to one request.

    Whole requests go to one side: neighbouring blocks are alike, and would give the answer away.
    """
    rng = np.random.default_rng(seed)
    held_out = np.zeros(len(blocks), dtype=np.bool_)
    for index in range(len(blocks.domains)):
        inside = blocks.domain == index
        requests, sizes = np.unique(blocks.request[inside], return_counts=True)
        chosen, fit, held = [], 0, 0
        for i in rng.permutation(len(requests)):
            if held <= fit:
                chosen.append(requests[i])
                held += int(sizes[i])
            else:
                fit += int(sizes[i])
        held_out |= inside & np.isin(blocks.request, chosen)
    return blocks.only(~held_out), blocks.only(held_out)
