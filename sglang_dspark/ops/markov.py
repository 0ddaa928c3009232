"""Left-to-right sampling of one block with the Markov bias (paper.md, "One round", step 3).

The loop runs gamma times a step and at batch 1 each operation costs its dispatch, so how to
choose a token is an object picked when the batch is made up, not a flag looked at inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sglang_dspark.ops.draw import best_token, inverse_cdf, race


class SequentialHead(Protocol):
    """A Markov head (checkpoints.md 1.8): vanilla and gated carry no state, RNN does."""

    def start(self, num_reqs: int, /) -> Any:
        """The state before the first position."""

    def bias(self, state: Any, prev_tokens: Tensor, hidden: Tensor, /) -> tuple[Tensor, Any]:
        """([bs] int64, [bs, H]) -> (float32 bias [bs, V], next state)."""


class Chooser(Protocol):
    """Turns the corrected logits of position k (0-based) into tokens; keeps what it drew from."""

    def choose(self, k: int, logits: Tensor) -> Tensor:
        """[bs, V] float32 -> [bs] int64. May overwrite `logits`."""

    @property
    def probs(self) -> Tensor | None:
        """[bs, gamma, V] float32: the exact law of each draft; None if all are deterministic."""


@dataclass(frozen=True, slots=True)
class DraftBlock:
    tokens: Tensor  # [bs, gamma] int64: x_1..x_gamma
    probs: Tensor | None  # [bs, gamma, V] float32; None if every row is deterministic


class Greedy:
    """Every row takes the argmax; the lowest id wins a tie."""

    probs = None

    def choose(self, k: int, logits: Tensor) -> Tensor:
        return best_token(logits)


class Coupled:
    """Every row shares the target's noise (seeded requests): argmax(p_d / E)."""

    probs = None

    def __init__(self, temperature: Tensor, exponentials: Tensor) -> None:
        """temperature [bs] float32; exponentials [bs, >= gamma, V] of `CoupledNoise`."""
        self._temperature = temperature.unsqueeze(1)
        self._exponentials = exponentials.unbind(1)

    def choose(self, k: int, logits: Tensor) -> Tensor:
        probs = torch.softmax(logits / self._temperature, -1)
        return race(probs, self._exponentials[k])


class Sampled:
    """Every row draws from softmax(Z_k / T), the law it hands to acceptance."""

    def __init__(self, temperature: Tensor, uniforms: Tensor, vocab_size: int) -> None:
        """temperature [bs] float32; uniforms [bs, gamma] float64, the draft stream."""
        bs, gamma = uniforms.shape
        self._temperature = temperature.unsqueeze(1)
        self._uniforms = uniforms.unbind(1)
        self._by_row = temperature.new_empty((gamma, bs, vocab_size))

    @property
    def probs(self) -> Tensor:
        return self._by_row.transpose(0, 1)

    def choose(self, k: int, logits: Tensor) -> Tensor:
        return inverse_cdf(self._softmax(k, logits), self._uniforms[k])

    def _softmax(self, k: int, logits: Tensor) -> Tensor:
        return torch.softmax(logits / self._temperature, -1, out=self._by_row[k])


class Mixed(Sampled):
    """Sampled rows beside greedy and coupled ones."""

    def __init__(
        self,
        temperature: Tensor,
        uniforms: Tensor,
        vocab_size: int,
        sampled: Tensor,
        greedy: Tensor,
        exponentials: Tensor | None,
    ) -> None:
        """sampled, greedy [bs] bool; a row that is neither is coupled, and takes its noise from
        exponentials [bs, >= gamma, V], which is None only in a batch without such a row.
        """
        super().__init__(temperature, uniforms, vocab_size)
        self._sampled = sampled
        self._greedy = greedy.unsqueeze(1)
        self._exponentials = None if exponentials is None else exponentials.unbind(1)

    def choose(self, k: int, logits: Tensor) -> Tensor:
        probs = self._softmax(k, logits)
        scores = logits
        if self._exponentials is not None:
            scores = torch.where(self._greedy, logits, probs / self._exponentials[k])
        drawn = inverse_cdf(probs, self._uniforms[k])
        return torch.where(self._sampled, drawn, best_token(scores))


def sample_block(
    base_logits: Tensor,
    hidden: Tensor,
    anchors: Tensor,
    head: SequentialHead | None,
    chooser: Chooser,
) -> DraftBlock:
    """Draw x_1..x_gamma, each from its base logits plus the head's bias given the token before.

    base_logits [bs, gamma, V] float32; hidden [bs, gamma, H]; anchors [bs] int64. `head` None
    (Markov rank 0) means no bias. `chooser` serves one block.
    """
    prev, tokens = anchors, []
    state = None if head is None else head.start(anchors.shape[0])
    for k, (logits, h) in enumerate(zip(base_logits.unbind(1), hidden.unbind(1), strict=True)):
        if head is not None:
            bias, state = head.bias(state, prev, h)
            logits = logits + bias
        prev = chooser.choose(k, logits)
        tokens.append(prev)
    return DraftBlock(torch.stack(tokens, 1), chooser.probs)
