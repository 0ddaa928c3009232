"""Curves and surfaces through scattered medians: least squares on a grid, then made monotone.

The grid is read as the planner reads it (core/costs.py): linear between nodes, flat below the
first. Squared errors over their scales are minimised, with a slight pull towards straight lines
that decides only where nothing was measured (many rows with little context, say). More requests,
rows or context never cost less, so the nodes are then moved as little as possible until they rise
(isotonic regression).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression

from sglang_dspark.core.cost_table import Curve, Surface

BEND, TWIST = 0.02, 0.005  # weights of bends along an axis and of twists, beside one cell's error
LEAST_MS = 1e-3  # the table asks for times above 0
ROUNDS = 50  # of rows and columns in turn; a few suffice

F64 = npt.NDArray[np.float64]


def fit_curve(sizes: Sequence[int], ms: Sequence[float]) -> Curve:
    """Rising curve through the median at each size."""
    at = sorted(set(sizes))
    values = np.array(ms)
    medians = [np.median(values[np.array(sizes) == size]) for size in at]
    rising = isotonic_regression(np.maximum(medians, 0.0)).x
    return Curve(tuple(at), tuple(rising.tolist()))


def fit_surface(
    at: Sequence[int],
    contexts: Sequence[int],
    points: Sequence[tuple[int, int]],
    ms: Sequence[float],
    scale: Sequence[float],
) -> Surface:
    """Rising surface on the grid at x contexts through measured points.

    Args:
        points: [n] (size, context) of each.
        ms: [n] to be met.
        scale: [n] ms by which each may be off; smaller: it counts more.

    Raises:
        ValueError: no points.
    """
    if not points:
        raise ValueError("no cell was measured that the surface could be fitted to")
    weights = np.array(scale, dtype=float)[:, None]
    rows = np.array([_weights(at, contexts, point) for point in points]) / weights
    wanted = np.array(ms) / weights[:, 0]
    pulls = _pulls(at, contexts) / float(np.median(scale))
    nodes, *_ = np.linalg.lstsq(
        np.concatenate([rows, pulls]), np.concatenate([wanted, np.zeros(len(pulls))]), rcond=None
    )
    grid = rising(nodes.reshape(len(at), len(contexts)))
    return Surface(tuple(at), tuple(contexts), tuple(map(tuple, grid.tolist())))


def rising(grid: F64) -> F64:
    """Near the given grid [n, c], never falling along either axis, above 0."""
    for _ in range(ROUNDS):
        before = grid
        grid = np.apply_along_axis(lambda line: isotonic_regression(line).x, 0, grid)
        grid = np.apply_along_axis(lambda line: isotonic_regression(line).x, 1, grid)
        if np.allclose(before, grid, rtol=1e-9, atol=0):
            break
    grid = np.maximum.accumulate(np.maximum.accumulate(grid, 0), 1)
    return np.maximum(grid, LEAST_MS)


def _weights(at: Sequence[int], contexts: Sequence[int], point: tuple[int, int]) -> F64:
    """[n * c] share of each node in the price at a point."""
    shares = np.kron(_shares(at, point[0]), _shares(contexts, point[1]))
    return shares.astype(np.float64)


def _shares(axis: Sequence[int], size: int) -> F64:
    """[n] linear shares of the nodes; flat below the first, drawn on past the last."""
    shares: F64 = np.zeros(len(axis))
    if len(axis) == 1 or size <= axis[0]:
        shares[0] = 1.0
        return shares
    i = min(int(np.searchsorted(axis, size)), len(axis) - 1)
    share = (size - axis[i - 1]) / (axis[i] - axis[i - 1])
    shares[i - 1], shares[i] = 1.0 - share, share
    return shares


def _pulls(at: Sequence[int], contexts: Sequence[int]) -> F64:
    """[m, n * c] weighted bends along both axes, and twists, each to be near 0."""
    along_at = np.kron(_bends(at), np.eye(len(contexts)))
    along_contexts = np.kron(np.eye(len(at)), _bends(contexts))
    twists = np.kron(_steps(len(at)), _steps(len(contexts)))
    return np.concatenate([BEND * along_at, BEND * along_contexts, TWIST * twists])


def _steps(count: int) -> F64:
    """[count - 1, count] differences of neighbours."""
    return np.diff(np.eye(count), axis=0)


def _bends(axis: Sequence[int]) -> F64:
    """[n - 2, n] how far each inner node lies off the line through its neighbours."""
    bends = np.zeros((max(len(axis) - 2, 0), len(axis)))
    for row, ((a, b), (_, c)) in enumerate(pairwise(pairwise(axis))):
        share = (b - a) / (c - a)
        bends[row, row : row + 3] = share - 1.0, 1.0, -share
    return bends
