"""Measure the tiny pair on held-out data and write the numbers as JSON.

Per domain: bits per byte of the target, how much its greedy and sampled outputs repeat themselves,
how much of its code parses, and the accept length of the draft and of its Markov-less twin with
95 % bootstrap intervals over prompts (1 + accepted drafts per round, pooled over rounds).
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import platform
import re
import warnings
from datetime import date
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from data import DOMAINS, read_jsonl
from draft import Draft, load_draft
from model import Target, load_target
from speculate import Decoded, decode
from tokenizer import EOS_ID
from tokenizers import Tokenizer

WINDOW = 512  # tokens of context for bits per byte
LOOP_SHARE = 0.5  # an output with more repeated 8-grams than this loops
TEMPERATURES = (0.0, 1.0)


@torch.inference_mode()
def bits_per_byte(target: Target, tokens: np.ndarray, tokenizer: Tokenizer, windows: int) -> float:
    """Mean over evenly spaced windows; each window's first token is given, not predicted."""
    nats, num_bytes = 0.0, 0
    for start in np.linspace(0, len(tokens) - WINDOW - 1, windows).astype(int):
        ids = torch.from_numpy(tokens[start : start + WINDOW].astype(np.int64))[None]
        hidden, _ = target(ids)
        logits = target.logits(hidden[0, :-1]).float()
        nats += F.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        num_bytes += len(tokenizer.decode(ids[0, 1:].tolist()).encode())
    return nats / math.log(2) / num_bytes


def repeated_share(tokens: list[int], n: int = 8) -> float:
    """Share of n-grams that occurred before in the same output."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def parsed_share(prompt: str, continuation: str) -> float:
    """Share of the generated lines inside the longest beginning of the file that parses.

    Outputs are cut by length in the middle of a statement, hence the longest beginning.
    """
    lines = (prompt + continuation).split("\n")
    given = prompt.count("\n") + 1
    for end in range(len(lines), given, -1):
        try:
            with warnings.catch_warnings(action="ignore"):
                ast.parse("\n".join(lines[:end]))
        except (SyntaxError, ValueError):
            continue
        return (end - given) / (len(lines) - given)
    return 0.0


def accept_lengths(rounds: np.ndarray, accepted: np.ndarray) -> np.ndarray:
    """[..., prompts] counts -> [...]: 1 + accepted drafts per round."""
    return 1 + accepted.sum(-1) / rounds.sum(-1)


def counts(results: list[Decoded]) -> tuple[np.ndarray, np.ndarray]:
    rounds = np.array([result.rounds for result in results])
    return rounds, np.array([result.num_accepted for result in results])


def interval(samples: np.ndarray) -> list[float]:
    return [round(float(x), 3) for x in np.percentile(samples, (2.5, 97.5))]


def compare(draft: list[Decoded], twin: list[Decoded], resamples: int = 4000) -> dict:
    """Accept lengths on the same prompts and their paired difference."""
    picks = np.random.default_rng(0).integers(len(draft), size=(resamples, len(draft)))
    report, boots = {"prompts": len(draft)}, []
    for name, results in (("draft", draft), ("twin", twin)):
        rounds, accepted = counts(results)
        boots.append(accept_lengths(rounds[picks], accepted[picks]))
        survival = sum(np.array(r.accepted) for r in results) / rounds.sum()
        predicted = sum(np.array(r.confidence) for r in results) / rounds.sum()
        report[name] = {
            "accept_length": round(float(accept_lengths(rounds, accepted)), 3),
            "interval_95": interval(boots[-1]),
            "rounds": int(rounds.sum()),
            "survival": [round(float(x), 3) for x in survival],
            "predicted_survival": [round(float(x), 3) for x in predicted],
        }
    gain = report["draft"]["accept_length"] - report["twin"]["accept_length"]
    report["draft_minus_twin"] = round(gain, 3)
    report["difference_interval_95"] = interval(boots[0] - boots[1])
    return report


def judge_outputs(
    domain: str, prompts: list[str], outputs: list[str], repeats: list[float]
) -> dict:
    report = {
        "repeated_8grams": round(float(np.mean(repeats)), 3),
        "looping_outputs": round(float(np.mean([r > LOOP_SHARE for r in repeats])), 3),
    }
    if domain == "code":
        shares = [parsed_share(p, o) for p, o in zip(prompts, outputs, strict=True)]
        report["parsed_lines"] = round(float(np.mean(shares)), 3)
        report["samples_parsing_80_percent"] = round(float(np.mean([s >= 0.8 for s in shares])), 3)
    return report


def decode_all(
    target: Target, draft: Draft, prompts: list[list[int]], max_new: int, temperature: float
) -> list[Decoded]:
    torch.manual_seed(1)
    results: list[Decoded] = []
    for at in range(0, len(prompts), 40):
        results += decode(target, draft, prompts[at : at + 40], max_new, temperature)
    return results


def evaluate_outputs(
    domain: str, target: Target, drafts: list[Draft], tokenizer: Tokenizer, args: argparse.Namespace
) -> tuple[dict, dict]:
    """Every temperature on the domain's prompts -> report, samples."""
    texts = [row["text"] for row in read_jsonl(args.prompts / f"{domain}.jsonl")]
    prompts = [tokenizer.encode(text).ids for text in texts]
    report, samples = {}, {}
    for temperature in TEMPERATURES:
        key = f"temperature_{temperature:g}"
        pair = [decode_all(target, d, prompts, args.max_new, temperature) for d in drafts]
        repeats = np.array([[repeated_share(r.output) for r in results] for results in pair])
        steady = np.flatnonzero(repeats.max(0) <= LOOP_SHARE)
        outputs = [tokenizer.decode(r.output) for r in pair[0]]
        report[key] = {
            "ended_by_eos": round(float(np.mean([r.output[-1] == EOS_ID for r in pair[0]])), 3),
            **judge_outputs(domain, texts, outputs, repeats[0].tolist()),
            "all_outputs": compare(*pair),
            # None where every output loops.
            "outputs_that_do_not_loop": compare(*([r[i] for i in steady] for r in pair))
            if len(steady)
            else None,
        }
        samples[key] = [{"prompt": p, "output": o} for p, o in zip(texts, outputs, strict=True)]
    return report, samples


def evaluate_text(
    domain: str, target: Target, tokenizer: Tokenizer, args: argparse.Namespace
) -> dict:
    """Held-out text itself: how well the target predicts it, how often it repeats itself."""
    tokens = np.load(args.work / f"{domain}.heldout.npy")
    starts = range(0, len(tokens) - args.max_new, 1000)
    repeats = [repeated_share(tokens[i : i + args.max_new].tolist()) for i in starts]
    return {
        "bits_per_byte": round(bits_per_byte(target, tokens, tokenizer, args.windows), 4),
        "repeated_8grams_of_real_text": round(float(np.mean(repeats)), 3),
    }


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.machine()


def main() -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/tiny"), help="scratch folder")
    parser.add_argument("--target", type=Path, default=here / "target")
    parser.add_argument("--draft", type=Path, default=here / "draft")
    parser.add_argument("--twin", type=Path, help="Markov-less draft; default WORK/draft-r0")
    parser.add_argument("--prompts", type=Path, default=here / "prompts")
    parser.add_argument("--max-new", type=int, default=128, help="tokens per prompt")
    parser.add_argument("--windows", type=int, default=120, help="for bits per byte, per domain")
    parser.add_argument("--out", type=Path, default=here / "evaluation.json")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
    target = load_target(args.target, torch.bfloat16)
    folders = (args.draft, args.twin or args.work / "draft-r0")
    drafts = [load_draft(folder, torch.bfloat16) for folder in folders]
    report: dict = {
        "provenance": {
            "command": f"python evaluate.py --max-new {args.max_new} --windows {args.windows}",
            "date": date.today().isoformat(),
            "machine": f"{cpu_name()}, {args.threads} threads",
            "torch": torch.__version__,
        }
    }
    samples: dict = {}
    for domain in DOMAINS:
        outputs, samples[domain] = evaluate_outputs(domain, target, drafts, tokenizer, args)
        report[domain] = evaluate_text(domain, target, tokenizer, args) | outputs
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    (args.work / "samples.json").write_text(json.dumps(samples, indent=1) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
