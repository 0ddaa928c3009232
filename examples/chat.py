"""Chat with a running server: python examples/chat.py [--url http://127.0.0.1:30000] [question]

Without a question it asks for one after the other. Any OpenAI client works as well, at URL/v1.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import httpx


def stream_answer(url: str, messages: list[dict], max_tokens: int) -> Iterator[str]:
    """Pieces of the answer, as the server sends them."""
    body = {"model": "default", "messages": messages, "max_tokens": max_tokens, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=600) as reply:
        if reply.status_code != 200:
            raise SystemExit(f"HTTP {reply.status_code}: {reply.read().decode()}")
        for line in reply.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                for choice in json.loads(line.removeprefix("data: ")).get("choices", ()):
                    yield choice["delta"].get("content") or ""


def questions(given: str | None) -> Iterator[str]:
    """The one given, else what is typed, until the end of the input."""
    if given is not None:
        yield given
        return
    while True:
        if line := input("> ").strip():
            yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:30000")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("question", nargs="?")
    args = parser.parse_args()
    messages: list[dict] = []
    for question in questions(args.question):
        messages.append({"role": "user", "content": question})
        answer = ""
        for piece in stream_answer(args.url, messages, args.max_tokens):
            print(piece, end="", flush=True)
            answer += piece
        print()
        messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    try:
        main()
    except (EOFError, KeyboardInterrupt):
        print()
