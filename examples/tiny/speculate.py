"""Reference DSpark decoding of a batch: draft a block, verify it, accept left to right.

Written for reading and for measuring accept length, not for speed. Exact at every temperature:
argmax match at 0, rejection sampling otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from draft import Draft
from model import KVCache, Target
from tokenizer import EOS_ID
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one prompt produced."""

    output: list[int]  # generated tokens, the first one from prefill
    rounds: int  # verifications
    accepted: list[int]  # [G] rounds in which draft k was accepted
    confidence: list[float]  # [G] sums over rounds of the predicted survival of draft k

    @property
    def num_accepted(self) -> int:
        return sum(self.accepted)


def probabilities(logits: Tensor, temperature: float) -> Tensor:
    """[..., V] -> [..., V] in fp32; one-hot at temperature 0."""
    if temperature == 0:
        return torch.zeros(logits.shape).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    return (logits.float() / temperature).softmax(-1)


def pick(probs: Tensor) -> Tensor:
    """Sample [..., V] -> [...]; a one-hot row gives its one."""
    return (probs / torch.empty_like(probs).exponential_().clamp_min_(1e-10)).argmax(-1)


def propose(
    draft: Draft, cache: KVCache, anchors: Tensor, positions: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors [B] at `positions` [B] -> drafts [B, G], their distributions [B, G, V], survival."""
    hidden = draft.block_hidden(cache, anchors, positions)
    previous, tokens, probs, confidence = anchors, [], [], []
    for k in range(draft.cfg.block_size):
        markov = draft.markov_features(previous)
        confidence.append(draft.confidence_logits(hidden[:, k], markov).float().sigmoid())
        probs.append(probabilities(draft.logits(hidden[:, k], markov), temperature))
        previous = pick(probs[-1])
        tokens.append(previous)
    survival = torch.stack(confidence, 1).cumprod(1)
    return torch.stack(tokens, 1), torch.stack(probs, 1), survival


def accept(tokens: Tensor, draft_probs: Tensor, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Drafts [B, G], draft_probs [B, G, V], target_probs [B, G + 1, V].

    -> accepted drafts [B] and the next token [B]: bonus, or correction from the residual.
    """
    chosen = tokens[..., None]
    p_target = target_probs[:, :-1].gather(-1, chosen).squeeze(-1)
    p_draft = draft_probs.gather(-1, chosen).squeeze(-1)
    keep = torch.rand(tokens.shape) * p_draft < p_target  # [B, G]
    accepted = keep.long().cumprod(1).sum(1)
    rows = torch.arange(len(tokens))
    residual = target_probs[rows, accepted]
    # Past the last draft nothing was rejected: subtract nothing there.
    padded = torch.cat((draft_probs, torch.zeros_like(draft_probs[:, :1])), dim=1)
    residual = (residual - padded[rows, accepted]).clamp_min(0)
    return accepted, pick(residual)


@torch.inference_mode()
def decode(
    target: Target, draft: Draft, prompts: list[list[int]], max_new: int, temperature: float
) -> list[Decoded]:
    """Decode until the eos token or `max_new` tokens; the last round may overshoot."""
    batch, gamma = len(prompts), draft.cfg.block_size
    base = target.cfg
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    capacity = int(lengths.max()) + max_new + 2 * gamma + 2
    tokens = torch.zeros(batch, capacity, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)
    target_cache = KVCache(target.model, base, batch, capacity)
    draft_cache = KVCache(draft, base, batch, capacity)
    rows, capture = torch.arange(batch), draft.cfg.target_layer_ids

    positions = torch.arange(int(lengths.max())).expand(batch, -1)
    hidden, features = target(tokens[:, : positions.shape[1]], capture, target_cache, positions)
    draft.extend_context(draft_cache, features, positions)
    logits = target.logits(hidden[rows, lengths - 1])
    anchor_at = lengths.clone()  # [B] position of the last committed token
    tokens[rows, anchor_at] = pick(probabilities(logits, temperature))
    active = tokens[rows, anchor_at] != EOS_ID
    rounds = torch.zeros(batch, dtype=torch.long)
    histogram = torch.zeros(batch, gamma, dtype=torch.long)
    predicted = torch.zeros(batch, gamma)

    while active.any():
        anchors = tokens[rows, anchor_at]
        block, draft_probs, survival = propose(draft, draft_cache, anchors, anchor_at, temperature)
        at = anchor_at[:, None] + torch.arange(gamma + 1)  # [B, G + 1]
        verify = torch.cat((anchors[:, None], block), dim=1)
        hidden, features = target(verify, capture, target_cache, at)
        draft.extend_context(draft_cache, features, at)
        target_probs = probabilities(target.logits(hidden), temperature)
        accepted, following = accept(block, draft_probs, target_probs)

        # An accepted eos token ends the request: what lies behind it was never verified.
        ends = (block == EOS_ID).long().argmax(1) + 1
        has_end = (block == EOS_ID).any(1) & (ends <= accepted)
        accepted = torch.where(has_end, ends, accepted)
        new = torch.cat((block, torch.zeros_like(block[:, :1])), dim=1)
        new[rows, accepted] = torch.where(has_end, EOS_ID, following)
        tokens[rows[active, None], at[active] + 1] = new[active]
        rounds += active
        histogram += (torch.arange(gamma) < accepted[:, None]) & active[:, None]
        predicted += survival * active[:, None]
        anchor_at = torch.where(active, anchor_at + accepted + (~has_end).long(), anchor_at)
        active &= (tokens[rows, anchor_at] != EOS_ID) & (anchor_at - lengths + 1 < max_new)
    return [
        Decoded(
            output=tokens[row, lengths[row] : anchor_at[row] + 1].tolist(),
            rounds=int(rounds[row]),
            accepted=histogram[row].tolist(),
            confidence=predicted[row].tolist(),
        )
        for row in range(batch)
    ]
