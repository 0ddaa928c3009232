"""Do target and draft fit each other, and what can such a pair do?"""

from __future__ import annotations

from collections.abc import Iterator

from sglang_dspark.doctor.facts import Draft, Served, Target
from sglang_dspark.doctor.finding import Finding, ok, problem, warning

TESTED_ARCHITECTURES = ("Qwen3ForCausalLM",)


def check_target(target: Target) -> Iterator[Finding]:
    if target.error is not None:
        yield problem(
            "target",
            f"{target.named}: SGLang cannot read it: {_first_line(target.error)}",
            "give a folder with config.json and weights, or download the model first",
        )
        return
    yield ok(
        "target",
        f"{target.named}: {target.architecture}, {target.dtype}, {target.context_len} positions",
    )
    if target.folder is None:
        yield warning(
            "target",
            "not a folder on this machine: its weights were not looked at",
            "download it first and give its folder",
        )
    elif not target.weight_bytes:
        yield problem(
            "target", f"{target.folder} holds no safetensors weights", "download the model again"
        )
    if target.architecture not in TESTED_ARCHITECTURES:
        yield warning(
            "target",
            f"{target.architecture}: only {', '.join(TESTED_ARCHITECTURES)} has been tested",
        )


def check_draft(draft: Draft) -> Iterator[Finding]:
    if draft.error is not None:
        yield problem("draft", *_split(draft.error))
        return
    smaller = "" if draft.gamma == draft.trained_gamma else f" (trained {draft.trained_gamma})"
    head = "with" if draft.has_confidence else "without"
    yield ok(
        "draft",
        f"{draft.folder}: gamma {draft.gamma}{smaller}, Markov {draft.markov}, {head} confidence "
        f"head, {draft.context_len} positions; every tensor is there, in its shape",
    )
    if draft.warning is not None:
        yield warning("draft", draft.warning, "give the draft of this very target")


def check_mode(draft: Draft, served: Served) -> Finding:
    """In which verify mode the server starts, and which ones it may be switched to."""
    others = [mode for mode in served.modes if mode != served.mode]
    text = f"{served.mode} ({served.mode_reason})"
    if others:
        return ok("verify mode", f"{text}; can be switched to {', '.join(others)}")
    return ok("verify mode", f"{text}; no other one with this draft and these flags")


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason was given"


def _split(error: str) -> tuple[str, str]:
    """(what is wrong, what to change); lists of tensors stay whole."""
    text, found, advice = error.rpartition("; ")
    return (text, advice) if found and "\n" not in error else (error, "")
