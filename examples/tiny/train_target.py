"""Train the tiny Qwen3 target for a number of minutes on CPU; resumable.

The learning rate follows the clock: `--minutes` of training time, counted over all resumed runs.
Needs the token arrays that `data.py` and `tokenizer.py` wrote to `--work`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from model import ModelConfig, Target, load_target, save_model
from tokenizer import EOS
from tokenizers import Tokenizer
from torch import Tensor, nn

CODE_SHARE = 0.6
STEP_TOKENS = 4096
SHORT, LONG, LONGEST = 256, 2048, 8192  # window lengths in tokens
MUON_LR, ADAM_LR = 5e-3, 3e-3


def window_length(step: int) -> int:
    """Mostly short windows, and a few up to the position limit."""
    if step % 160 == 80:
        return LONGEST
    return LONG if step % 12 == 0 else SHORT


def sample_windows(tokens: dict[str, np.ndarray], seed: tuple[int, int], length: int) -> Tensor:
    """[B, length + 1] random windows, about CODE_SHARE of them code; depends on the seed only."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(max(1, STEP_TOKENS // length)):
        source = tokens["code" if rng.random() < CODE_SHARE else "text"]
        start = rng.integers(len(source) - length)
        rows.append(source[start : start + length + 1])
    return torch.from_numpy(np.stack(rows).astype(np.int64))


def next_token_loss(target: Target, ids: Tensor) -> Tensor:
    """ids [B, T + 1] -> mean cross entropy in nats per token."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden, _ = target(ids[:, :-1])
        logits = target.logits(hidden)
    return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def build_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms."""
    matrices, others = [], []
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            inside = "layers." in name and weight.ndim == 2
            (matrices if inside else others).append(weight)
    return [
        torch.optim.Muon(matrices, lr=MUON_LR, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=ADAM_LR, betas=(0.9, 0.97), weight_decay=0.0, fused=True),
    ]


def rate_factor(step: int, progress: float, warmup: int = 60) -> float:
    """Linear warm-up by step, cosine by clock down to 2 %."""
    cosine = 0.51 + 0.49 * math.cos(math.pi * min(progress, 1.0))
    return min(1.0, (step + 1) / warmup) * cosine


def apply_step(optimizers: list[torch.optim.Optimizer], factor: float) -> None:
    for optimizer, base in zip(optimizers, (MUON_LR, ADAM_LR), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = base * factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def heldout_losses(
    target: Target, tokens: dict[str, np.ndarray], rows: int = 16, length: int = 512
) -> dict[str, float]:
    """Mean nats per token on evenly spaced held-out windows of each domain."""
    losses = {}
    for domain, source in tokens.items():
        starts = np.linspace(0, len(source) - length - 1, rows).astype(int)
        ids = np.stack([source[s : s + length + 1] for s in starts]).astype(np.int64)
        losses[domain] = round(next_token_loss(target, torch.from_numpy(ids)).item(), 4)
    return losses


def export(target: Target, tokenizer_folder: Path, folder: Path) -> None:
    """A complete Hugging Face folder: weights, configs and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tokenizer_folder / name).read_bytes())
    eos = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(EOS)
    save_model(target.state_dict(), target.cfg.to_hf(eos), folder)
    generation = {"eos_token_id": eos, "pad_token_id": eos, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


class Run:
    """Model, optimizers and clock: what a resumed run needs, in one file.

    `start` is a trained checkpoint to go on from, with a new clock and new optimizers.
    """

    def __init__(self, path: Path, start: Path | None = None) -> None:
        self.path = path
        self.target = Target(ModelConfig())
        for weight in self.target.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02)
        if start:
            self.target.load_state_dict(load_target(start).state_dict())
            self.target.requires_grad_(True)
        self.optimizers = build_optimizers(self.target)
        self.seed = 1 if start else 0  # a run that goes on sees other windows
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
        if path.exists():
            self.load()

    def load(self) -> None:
        state = torch.load(self.path, weights_only=True)
        self.target.load_state_dict(state["target"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        self.seed = state["seed"]

    def save(self) -> None:
        state = {
            "target": self.target.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "seed": self.seed,
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
        }
        partial = self.path.with_suffix(".partial")
        torch.save(state, partial)
        partial.rename(self.path)


def train_steps(run: Run, tokens: dict[str, np.ndarray], minutes: float) -> Iterator[float]:
    """Train until the clock runs out, yielding the loss of every step."""
    fast_loss = torch.compile(next_token_loss, dynamic=False)
    while run.seconds < 60 * minutes:
        begun = time.monotonic()
        progress = run.seconds / (60 * minutes)
        length = window_length(run.step)
        ids = sample_windows(tokens, (run.seed, run.step), length)
        loss = (fast_loss if length == SHORT else next_token_loss)(run.target, ids)
        loss.backward()
        nn.utils.clip_grad_norm_(run.target.parameters(), 1.0)
        apply_step(run.optimizers, rate_factor(run.step, progress))
        run.step += 1
        run.tokens += ids.numel() - len(ids)
        run.seconds += time.monotonic() - begun
        yield loss.item()


def main() -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=45, help="training time, at most 90")
    parser.add_argument("--work", type=Path, default=Path("build/tiny"), help="scratch folder")
    parser.add_argument("--out", type=Path, default=here / "target", help="final checkpoint")
    parser.add_argument("--tokenizer", type=Path, default=here / "target")
    parser.add_argument("--start", type=Path, help="go on from this checkpoint, with a new clock")
    parser.add_argument("--snapshot", type=Path, help="also export here every 5 minutes")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if not 0 < args.minutes <= 90:
        parser.error(f"--minutes {args.minutes}: give a time budget in (0, 90]")

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    tokens = {
        split: {d: np.load(args.work / f"{d}.{split}.npy") for d in ("code", "text")}
        for split in ("train", "heldout")
    }
    run = Run(args.work / "target.pt", args.start)
    print(f"{sum(w.numel() for w in run.target.parameters()) / 1e6:.2f} M parameters", flush=True)
    mean, saved = 0.0, run.seconds
    for loss in train_steps(run, tokens["train"], args.minutes):
        mean = loss if mean == 0.0 else 0.98 * mean + 0.02 * loss
        if run.step % 10 == 0:
            print(
                f"step {run.step} min {run.seconds / 60:.1f} tokens {run.tokens / 1e6:.2f}M "
                f"loss {mean:.3f}",
                flush=True,
            )
        if run.seconds - saved > 300:
            saved = run.seconds
            run.save()
            print("held-out nats per token:", heldout_losses(run.target, tokens["heldout"]))
            if args.snapshot:
                export(run.target, args.tokenizer, args.snapshot)
    run.save()
    print("held-out nats per token:", heldout_losses(run.target, tokens["heldout"]), flush=True)
    export(run.target, args.tokenizer, args.out)


if __name__ == "__main__":
    main()
