"""Write the held-out prompts: beginnings of Python files and functions, and of prose paragraphs."""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from data import DOMAINS, read_jsonl, write_jsonl
from tokenizers import Tokenizer

MIN_TOKENS, MAX_TOKENS = 50, 200


def cut(text: str, tokenizer: Tokenizer, size: int, separator: str) -> str | None:
    """About `size` tokens from the start of `text`, ending just before a separator."""
    ids = tokenizer.encode(text).ids
    if len(ids) < size + MIN_TOKENS:  # leave something to continue
        return None
    head = tokenizer.decode(ids[:size])
    head = head[: head.rfind(separator)].rstrip()
    return head if len(tokenizer.encode(head).ids) >= MIN_TOKENS // 2 else None


def code_starts(source: str) -> Iterator[str]:
    """The file itself and its functions and methods with their bodies."""
    yield source
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield ast.get_source_segment(source, node) or ""


def text_starts(text: str) -> Iterator[str]:
    """Paragraphs, and one sentence in ten of a document that has no paragraphs."""
    paragraphs = [m.end() for m in re.finditer(r"^|\n\n", text)]
    sentences = [m.end() for m in re.finditer(r"[.!?] (?=[A-Z])", text)]
    for start in paragraphs if len(paragraphs) > 2 else sentences[::10]:
        if len(text[start:].split("\n")[0]) > 60:
            yield text[start:]


def alternate(queues: list[tuple[str, list[str]]], rng: random.Random) -> list:
    """Random order in which the packages or books take turns."""
    rng.shuffle(queues)
    seen: Counter[str] = Counter()
    turns = []
    for name, _ in queues:
        source = name.split("/")[0]
        turns.append(seen[source])
        seen[source] += 1
    return [queue for _, queue in sorted(zip(turns, queues, strict=True), key=lambda x: x[0])]


def choose(domain: str, docs: list[dict], tokenizer: Tokenizer, count: int) -> list[dict]:
    """Up to `count` prompts, taken from the documents in turn."""
    rng = random.Random(0)
    starts, separator = (code_starts, "\n") if domain == "code" else (text_starts, " ")
    queues = []
    for doc in docs:
        first, *others = starts(doc["text"]) if domain == "code" else (None, *starts(doc["text"]))
        rng.shuffle(others)
        queues.append((doc["name"], [s for s in (first, *others) if s]))
    queues = alternate(queues, rng)
    rows: list[dict] = []
    rounds = [queues[: count // 2]] + [queues] * 8
    for turn, round_queues in enumerate(rounds):
        for name, texts in round_queues:
            prompt = None
            if turn < len(texts):
                size = rng.randint(MIN_TOKENS, MAX_TOKENS)
                prompt = cut(texts[turn], tokenizer, size, separator)
            if prompt and len(rows) < count:
                rows.append({"text": prompt, "source": name})
    return rows


def main() -> None:
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/tiny"), help="scratch folder")
    parser.add_argument("--tokenizer", type=Path, default=here / "target" / "tokenizer.json")
    parser.add_argument("--count", type=int, default=80, help="prompts per domain")
    parser.add_argument("--out", type=Path, default=here / "prompts")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    for domain in DOMAINS:
        docs = read_jsonl(args.work / f"{domain}.heldout.jsonl")
        rows = choose(domain, docs, tokenizer, args.count)
        write_jsonl(args.out / f"{domain}.jsonl", rows)
        print(f"{domain}: {len(rows)} prompts from {len({r['source'] for r in rows})} documents")


if __name__ == "__main__":
    main()
