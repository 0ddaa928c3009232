"""Train DSpark drafts for the tiny target for a number of minutes on CPU.

First the target writes continuations of held-in prompts, greedily and at temperature 1: serving
drafts on the target's own text. Then every requested draft trains on the same batches of these
and of real windows, so `--markov-rank 64 0` gives a draft and its Markov-less twin with equal
data, losses and steps. Draft r is written to `--work`/draft-r<r>, the first one also to `--out`.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from data import DOMAINS
from draft import Draft, DraftConfig, load_draft
from model import KVCache, Target, load_target, save_model
from tokenizer import EOS_ID, MASK_ID
from torch import Tensor, nn
from train_target import CODE_SHARE, apply_step, build_optimizers

PROMPT, WINDOW = 48, 256  # tokens
ROWS = 16  # windows per training step
REAL_SHARE = 0.2  # of the windows of a step
CE_WEIGHT, L1_WEIGHT, CONFIDENCE_WEIGHT = 0.1, 0.9, 1.0
POSITION_DECAY = 4.0  # weight of the k-th draft: exp(-(k - 1) / 4)
SNAPSHOT_SECONDS = 180


# ---- the target's own text -------------------------------------------------------------------


def sample(logits: Tensor, temperature: float) -> Tensor:
    """[B, V] -> [B]; temperature 0 is argmax."""
    if temperature == 0:
        return logits.argmax(-1)
    noise = torch.empty_like(logits, dtype=torch.float32).exponential_()
    return ((logits.float() / temperature).softmax(-1) / noise).argmax(-1)


@torch.inference_mode()
def generate(target: Target, prompts: Tensor, length: int, temperature: float) -> Tensor:
    """prompts [B, P] -> [B, length], prompts included; does not stop at the eos token."""
    batch, start = prompts.shape
    cache = KVCache(target.model, target.cfg, batch, length)
    positions = torch.arange(start).expand(batch, -1)
    tokens, new = [prompts], prompts
    for at in range(start, length):
        hidden, _ = target(new, cache=cache, positions=positions)
        new = sample(target.logits(hidden[:, -1]), temperature)[:, None]
        positions = torch.full((batch, 1), at)
        tokens.append(new)
    return torch.cat(tokens, dim=1)


def random_windows(
    tokens: dict[str, np.ndarray], rows: int, length: int, rng: np.random.Generator
) -> Tensor:
    """[rows, length] real windows, CODE_SHARE of them code."""
    windows = []
    for _ in range(rows):
        source = tokens["code" if rng.random() < CODE_SHARE else "text"]
        start = rng.integers(len(source) - length)
        windows.append(source[start : start + length])
    return torch.from_numpy(np.stack(windows).astype(np.int64))


def own_text(
    target: Target, tokens: dict[str, np.ndarray], minutes: float, path: Path, batch: int = 128
) -> Tensor:
    """[n, WINDOW] windows written by the target, half greedy, half at temperature 1; kept in path.

    A greedy continuation that repeats itself teaches little, so each window starts from its own
    prompt and is short.
    """
    if path.exists():
        return torch.from_numpy(np.load(path).astype(np.int64))
    rng = np.random.default_rng(1)
    windows: list[Tensor] = []
    deadline = time.monotonic() + 60 * minutes
    while time.monotonic() < deadline:
        prompts = random_windows(tokens, batch, PROMPT, rng)
        windows.append(generate(target, prompts, WINDOW, temperature=len(windows) % 2))
    own = torch.cat(windows)
    np.save(path, own.numpy().astype(np.uint16))
    return own


# ---- training --------------------------------------------------------------------------------


def block_mask(anchors: Tensor, context: int, block: int) -> Tensor:
    """Anchor positions [B, N] -> [B, 1, N * G, S + N * G]: context before the anchor, own block."""
    seen = torch.arange(context) < anchors[..., None]  # [B, N, S]
    seen = seen.repeat_interleave(block, dim=1)
    owner = torch.arange(anchors.shape[1]).repeat_interleave(block)
    own = (owner[:, None] == owner).expand(len(anchors), -1, -1)
    return torch.cat((seen, own), dim=2)[:, None]


def position_weights(labels: Tensor) -> Tensor:
    """labels [B, N, G] -> loss weight of each draft; nothing counts after an eos token."""
    ended = (labels == EOS_ID).cumsum(-1) - (labels == EOS_ID).long()
    decay = torch.exp(-torch.arange(labels.shape[-1]) / POSITION_DECAY)
    return (ended == 0) * decay


@torch.compile(dynamic=False)
def draft_losses(
    logits: Tensor, target_logits: Tensor, labels: Tensor, confidence: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows [n, V], [n, V], [n], [n], [n] -> weighted mean loss, acceptance 1 - L1 / 2 per row."""
    log_draft = logits.float().log_softmax(-1)
    ce = -log_draft.gather(-1, labels[:, None]).squeeze(-1)
    l1 = (log_draft.exp() - target_logits.float().softmax(-1)).abs().sum(-1)
    accept = (1 - 0.5 * l1.detach()).clamp(0, 1)
    bce = F.binary_cross_entropy_with_logits(confidence.float(), accept, reduction="none")
    total = CE_WEIGHT * ce + L1_WEIGHT * l1 + CONFIDENCE_WEIGHT * bce
    return (weights * total).sum() / weights.sum(), accept


def teacher(target: Target, ids: Tensor, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The target's captured features [B, T, m * H] and final hidden [B, T, H]."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        hidden, features = target(ids, capture=layers)
    return features, hidden


def draft_step(
    draft: Draft, target: Target, ids: Tensor, anchors: Tensor, taught: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Loss of all blocks of the windows ids [B, T], and acceptance [B, N, G] given the prefix."""
    features, hidden = taught
    block = draft.cfg.block_size
    rows = anchors[..., None] + torch.arange(block)  # [B, N, G]: where x_{k-1} stands
    flat = rows.flatten(1)
    previous, labels = ids.gather(1, flat), ids.gather(1, flat + 1)
    weights = position_weights(labels.view_as(rows))
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            wide = flat[..., None].expand(-1, -1, hidden.shape[-1])
            target_logits = target.logits(hidden.gather(1, wide))
        mask = block_mask(anchors, ids.shape[1], block)
        out = draft(features, ids.gather(1, anchors), anchors, mask)
        markov = draft.markov_features(previous)
        logits, confidence = draft.logits(out, markov), draft.confidence_logits(out, markov)
    loss, accept = draft_losses(
        logits.flatten(0, 1),
        target_logits.flatten(0, 1),
        labels.flatten(),
        confidence.flatten(),
        weights.flatten(),
    )
    return loss, accept.view_as(rows)


def rate_factor(step: int, progress: float, warmup: int = 40) -> float:
    cosine = 0.51 + 0.49 * math.cos(math.pi * min(progress, 1.0))
    return min(1.0, (step + 1) / warmup) * cosine


def sample_anchors(ids: Tensor, cfg: DraftConfig, rng: np.random.Generator) -> Tensor:
    """[B, num_anchors] distinct positions with a whole block of labels behind them."""
    free = ids.shape[1] - cfg.block_size - 1
    picks = [rng.choice(free, cfg.num_anchors, replace=False) + 1 for _ in ids]
    return torch.from_numpy(np.sort(np.stack(picks), axis=1))


class Run:
    """One draft in training, with its optimizers and running means of its metrics."""

    def __init__(self, rank: int, target: Target, start: Path | None = None) -> None:
        cfg = DraftConfig(target=target.cfg, mask_token_id=MASK_ID, markov_rank=rank)
        self.draft = Draft(cfg)
        for name, weight in self.draft.named_parameters():
            if weight.ndim == 2 and "markov" not in name:
                nn.init.normal_(weight, std=0.02)
        if start:
            self.draft.load_state_dict(load_draft(start).state_dict())
        self.draft.share_target(target)
        self.optimizers = build_optimizers(self.draft)
        self.loss = 0.0
        self.accept = torch.zeros(cfg.block_size)  # mean acceptance of draft k given its prefix

    def update(
        self, target: Target, ids: Tensor, anchors: Tensor, taught: tuple, factor: float
    ) -> None:
        loss, accept = draft_step(self.draft, target, ids, anchors, taught)
        loss.backward()
        nn.utils.clip_grad_norm_(self.draft.parameters(), 1.0)
        apply_step(self.optimizers, factor)
        keep = 0.98 if self.loss else 0.0
        self.loss = keep * self.loss + (1 - keep) * loss.item()
        self.accept = keep * self.accept + (1 - keep) * accept.mean((0, 1))

    def report(self) -> str:
        rates = " ".join(f"{a:.2f}" for a in self.accept)
        expected = 1 + self.accept.cumprod(0).sum()
        return f"r{self.draft.cfg.markov_rank} loss {self.loss:.3f} [{rates}] {expected:.2f}"

    def export(self, folder: Path) -> None:
        save_model(self.draft.state_dict(), self.draft.cfg.to_hf(EOS_ID), folder)


def train(
    runs: list[Run],
    target: Target,
    sources: tuple[dict[str, np.ndarray], Tensor],
    minutes: float,
    work: Path,
) -> int:
    """All drafts on the same batches until the clock runs out -> number of steps."""
    real, own = sources
    rng = np.random.default_rng(2)
    num_real = round(REAL_SHARE * ROWS)
    begun, saved, step = time.monotonic(), time.monotonic(), 0
    while (elapsed := time.monotonic() - begun) < 60 * minutes:
        picks = torch.from_numpy(rng.integers(len(own), size=ROWS - num_real))
        ids = torch.cat((random_windows(real, num_real, WINDOW, rng), own[picks]))
        taught = teacher(target, ids, runs[0].draft.cfg.target_layer_ids)
        anchors = sample_anchors(ids, runs[0].draft.cfg, rng)
        for run in runs:
            run.update(target, ids, anchors, taught, rate_factor(step, elapsed / (60 * minutes)))
        step += 1
        if step % 10 == 0:
            reports = " | ".join(run.report() for run in runs)
            print(f"step {step} min {elapsed / 60:.1f} {reports}", flush=True)
        if time.monotonic() - saved > SNAPSHOT_SECONDS:
            saved = time.monotonic()
            for run in runs:
                run.export(work / f"draft-r{run.draft.cfg.markov_rank}")
    return step


def main() -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20, help="training time, at most 45")
    parser.add_argument("--own-minutes", type=float, default=6, help="time to write own text")
    parser.add_argument("--markov-rank", type=int, nargs="+", default=[64], help="0: no head")
    parser.add_argument("--resume", action="store_true", help="start from the drafts in --work")
    parser.add_argument("--target", type=Path, default=here / "target")
    parser.add_argument("--work", type=Path, default=Path("build/tiny"), help="scratch folder")
    parser.add_argument("--out", type=Path, default=here / "draft", help="first draft's folder")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if not 0 < args.minutes <= 45:
        parser.error(f"--minutes {args.minutes}: give a time budget in (0, 45]")

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    real = {domain: np.load(args.work / f"{domain}.train.npy") for domain in DOMAINS}
    writer = load_target(args.target, torch.bfloat16)
    own = own_text(writer, real, args.own_minutes, args.work / "own.npy")
    print(f"{len(own)} windows written by the target", flush=True)
    target = load_target(args.target)
    folders = [args.work / f"draft-r{rank}" for rank in args.markov_rank]
    starts = folders if args.resume else [None] * len(folders)
    runs = [Run(r, target, start) for r, start in zip(args.markov_rank, starts, strict=True)]
    steps = train(runs, target, (real, own), args.minutes, args.work)
    print(f"{steps} steps of {ROWS} windows of {WINDOW} tokens")
    for run, folder in zip(runs, folders, strict=True):
        run.export(folder)
    runs[0].export(args.out)


if __name__ == "__main__":
    main()
