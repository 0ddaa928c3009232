"""Train the byte-level BPE tokenizer and pack the documents into token arrays."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import numpy as np
from data import DOMAINS, SPLITS, read_jsonl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 4096
EOS, USER, ASSISTANT, SYSTEM, MASK = SPECIALS = (
    "<|end|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|mask|>",  # the draft's mask row; never appears in text
)
EOS_ID, MASK_ID = SPECIALS.index(EOS), SPECIALS.index(MASK)
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CHAT_SHARE = 0.2  # of the documents' characters


def train_tokenizer(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_positions: int = 8192) -> None:
    """tokenizer.json and a tokenizer_config.json that Hugging Face's fast tokenizer reads."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": EOS,
        "additional_special_tokens": list(SPECIALS[1:]),
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def chat_text(sample: dict) -> str:
    return f"{USER}{sample['user']}{EOS}{ASSISTANT}{sample['assistant']}"


def pack(tokenizer: Tokenizer, work: Path, domain: str, split: str) -> np.ndarray:
    """All documents of one domain and split in random order, each closed by the eos token."""
    texts = [row["text"] for row in read_jsonl(work / f"{domain}.{split}.jsonl")]
    if split == "train":
        budget = CHAT_SHARE * sum(map(len, texts))
        for sample in read_jsonl(work / f"{domain}.{split}.chat.jsonl"):
            texts.append(chat_text(sample))
            budget -= len(texts[-1])
            if budget < 0:
                break
        random.Random(0).shuffle(texts)
    eos = tokenizer.token_to_id(EOS)
    encoded = tokenizer.encode_batch(texts)
    return np.concatenate([np.array([*e.ids, eos], dtype=np.uint16) for e in encoded])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/tiny"), help="scratch folder")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "target")
    parser.add_argument("--sample-mb", type=float, default=6, help="text per domain to learn from")
    args = parser.parse_args()
    sample: list[str] = []
    for domain in DOMAINS:
        rows = read_jsonl(args.work / f"{domain}.train.jsonl")
        random.Random(0).shuffle(rows)
        budget = args.sample_mb * 1e6
        for row in rows:
            sample.append(row["text"])
            budget -= len(row["text"])
            if budget < 0:
                break
    tokenizer = train_tokenizer(sample)
    save_tokenizer(tokenizer, args.out)
    for domain in DOMAINS:
        for split in SPLITS:
            tokens = pack(tokenizer, args.work, domain, split)
            np.save(args.work / f"{domain}.{split}.npy", tokens)
            print(f"{domain} {split}: {len(tokens) / 1e6:.2f} M tokens")


if __name__ == "__main__":
    main()
