"""Stands in for `python -m sglang.launch_server`: answers at once, with made-up tokens.

Put the folder above on PYTHONPATH. The arm with --speculative-algorithm is twice as fast, says what
our worker would say, and changes one token of each answer when FAKE_FLIP is set. With FAKE_DEATH
none starts.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN_S = 0.0004
PER_STEP = 3  # tokens a verify step commits


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--speculative-algorithm")
    return parser.parse_known_args()[0]


ARGS = parse()
SPECULATES = ARGS.speculative_algorithm == "DSPARK"
WORKER = {"worker": "sglang-dspark fake", "gamma": 7, "steps": 0, "verified_requests": 0}
WORKER |= {"accepted_drafts": 0, "step_seconds": 0.0, "overhead_seconds": 0.0}


def answer(body: dict) -> tuple[list[int], dict]:
    count = body["sampling_params"]["max_new_tokens"]
    first = zlib.crc32(body["text"].encode()) % 1000
    tokens = [first + i for i in range(count)]
    meta = {"completion_tokens": count}
    if body.get("return_logprob"):
        gap = float(os.environ.get("FAKE_GAP", "0.5"))
        meta["output_top_logprobs"] = [[[-0.1, 1, None], [-0.1 - gap, 2, None]]] * count
    if SPECULATES:
        steps = -(-(count - 1) // PER_STEP)
        meta["spec_verify_ct"] = steps
        for key, more in zip(
            ("steps", "verified_requests", "accepted_drafts", "step_seconds", "overhead_seconds"),
            (steps, steps, steps * (PER_STEP - 1), steps * 0.004, steps * 0.001),
            strict=True,
        ):
            WORKER[key] += more
        if "FAKE_FLIP" in os.environ:
            tokens[5] = -1
    return tokens, meta


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def reply(self, content: str, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def do_GET(self) -> None:
        states = [{"dspark_info_record": WORKER} if SPECULATES else {}]
        self.reply(json.dumps({"device": "cpu", "internal_states": states}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens, meta = answer(body)
        pieces = [tokens[:1], tokens] if body.get("stream") else [tokens]
        out = [json.dumps({"text": "made up", "output_ids": t, "meta_info": meta}) for t in pieces]
        if not body.get("stream"):
            return self.reply(out[0])
        self.send_response(200)
        self.end_headers()
        for piece in out:
            self.wfile.write(f"data: {piece}\n\n".encode())
            self.wfile.flush()
            time.sleep(0 if piece is out[-1] else len(tokens) * TOKEN_S / (1 + SPECULATES))
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True


if __name__ == "__main__":
    if "FAKE_DEATH" in os.environ:
        print("sglang-dspark: this is why\nTraceback of something else", flush=True)
        raise SystemExit(1)
    print("fake server", "with DSPARK" if SPECULATES else "", flush=True)
    ThreadingHTTPServer((ARGS.host, ARGS.port), Handler).serve_forever()
