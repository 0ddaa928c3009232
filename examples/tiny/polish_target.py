"""Teach the trained target not to loop, by sequence-level unlikelihood; resumes its run.

Small models answer greedily with endless repetitions. Here the target writes greedy continuations
of held-in prompts, and every token that completes an n-gram already in that continuation is pushed
down with -log(1 - p), next to ordinary language-model steps (Welleck et al., arXiv 1908.04319).
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from data import DOMAINS
from model import Target
from torch import Tensor, nn
from train_draft import PROMPT, generate, random_windows
from train_target import (
    SHORT,
    Run,
    apply_step,
    export,
    heldout_losses,
    next_token_loss,
    rate_factor,
)

NGRAM = 6
ROWS = 8  # real windows and own windows in a step
REFRESH_STEPS, OWN_ROWS = 24, 48  # new greedy text every so many steps
PEAK_RATE = 0.4  # of the main training's peak learning rates


def repeats(ids: Tensor, start: int, n: int = NGRAM) -> Tensor:
    """ids [B, T] -> [B, T] bool: the n-gram ending here already occurred after `start`."""
    marks = torch.zeros(ids.shape, dtype=torch.bool)
    for row, tokens in enumerate(ids.tolist()):
        seen: set[tuple[int, ...]] = set()
        for end in range(start + n, len(tokens) + 1):
            gram = tuple(tokens[end - n : end])
            marks[row, end - 1] = gram in seen
            seen.add(gram)
    return marks


def unlikelihood(target: Target, ids: Tensor, marks: Tensor) -> Tensor:
    """-log(1 - p) of the marked tokens, averaged over all tokens of the windows."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden, _ = target(ids[:, :-1])
        logits = target.logits(hidden)
    log_p = -F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    penalty = -torch.log1p(-log_p.exp().clamp_max(0.999))
    return (penalty * marks[:, 1:].flatten()).mean()


def greedy_text(target: Target, tokens: dict[str, np.ndarray], rng: np.random.Generator) -> Tensor:
    """[OWN_ROWS, SHORT] held-in prompts and the target's greedy continuations."""
    writer = copy.deepcopy(target).to(torch.bfloat16)
    return generate(writer, random_windows(tokens, OWN_ROWS, PROMPT, rng), SHORT, 0.0)


def polish(run: Run, tokens: dict[str, np.ndarray], minutes: float) -> None:
    rng = np.random.default_rng(3)
    begun, step = time.monotonic(), 0
    while (elapsed := time.monotonic() - begun) < 60 * minutes:
        if step % REFRESH_STEPS == 0:
            own = greedy_text(run.target, tokens, rng).clone()
            marks = repeats(own, PROMPT)
            share = marks[:, PROMPT:].float().mean()
            print(f"step {step} min {elapsed / 60:.1f} repeated {share:.3f}", flush=True)
        picks = torch.from_numpy(rng.integers(len(own), size=ROWS))
        real = random_windows(tokens, ROWS, SHORT + 1, rng)
        loss = next_token_loss(run.target, real)
        loss = loss + unlikelihood(run.target, own[picks], marks[picks])
        loss.backward()
        nn.utils.clip_grad_norm_(run.target.parameters(), 1.0)
        factor = rate_factor(step, elapsed / (60 * minutes), warmup=20)
        apply_step(run.optimizers, PEAK_RATE * factor)
        run.tokens += ROWS * SHORT
        step += 1


def main() -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--work", type=Path, default=Path("build/tiny"), help="scratch folder")
    parser.add_argument("--out", type=Path, default=here / "target", help="final checkpoint")
    parser.add_argument("--tokenizer", type=Path, default=here / "target")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    run = Run(args.work / "target.pt")
    tokens, heldout = (
        {d: np.load(args.work / f"{d}.{split}.npy") for d in DOMAINS}
        for split in ("train", "heldout")
    )
    polish(run, tokens, args.minutes)
    print(f"held-out nats per token: {heldout_losses(run.target, heldout)}", flush=True)
    run.path = args.work / "polished.pt"
    run.save()
    export(run.target, args.tokenizer, args.out)


if __name__ == "__main__":
    main()
