"""Small target and draft pairs with known behaviour, written to a directory as real checkpoints.

`make_random_pair`   everything random: agreement of implementations, acceptance near chance.
`make_garbage_pair`  the draft never says what the target says at temperature 0: accept length 1.
`make_bigram_pair`   the target depends on the last token only and the Markov head knows it exactly:
                     accept length gamma + 1. With `noise` or `context` it is right now and then.
`make_copy_pair`     the next token is read from a fixed distance back, through the captured layers:
                     accept length gamma + 1 at every context length, and any slip of a position, a
                     layer, a head or a previous token shows at once.

`make_noise_draft`   beside a real target: a draft of its shape that knows nothing.

Runs as a script: python -m tests.planted copy /tmp/pair
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

EOS, BOS, PAD = 2, 1, 0
FIRST_BYTE = 3  # ids 3..258 are the 256 bytes
HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 64, 128, 4, 2, 32
NUM_LAYERS, NUM_DRAFT_LAYERS = 6, 2
LAYER_IDS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Pair:
    target: Path
    draft: Path


# ----------------------------------------------------------------------------------------- random


def make_random_pair(
    directory: Path | str,
    *,
    head_type: str = "vanilla",
    attention_bias: bool = False,
    confidence: bool = True,
    confidence_with_markov: bool = True,
    tied: bool = False,
    vocab_size: int = 320,
    draft_vocab_size: int | None = None,  # rows in the draft's file, when padding differs
    gamma: int = 5,
    markov_rank: int = 16,
    num_layers: int = NUM_LAYERS,
    num_draft_layers: int = NUM_DRAFT_LAYERS,
    target_layer_ids: Sequence[int] = LAYER_IDS,
    max_positions: int = 512,
    rope_theta: float = 1e6,
    rope_scaling: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Pair:
    """All weights random, norms and biases too: where they are 1 and 0, mistakes stay hidden."""
    generator = torch.Generator().manual_seed(seed)
    config = _target_config(
        vocab_size=vocab_size,
        num_layers=num_layers,
        attention_bias=attention_bias,
        tied=tied,
        max_positions=max_positions,
        rope={"rope_type": "default", **(rope_scaling or {}), "rope_theta": rope_theta},
    )
    target = Qwen3ForCausalLM(config)
    for name, parameter in target.named_parameters():
        parameter.data = _random_like(name, parameter.shape, generator)
    head = target.lm_head.weight.data
    rows = draft_vocab_size or vocab_size
    draft_json = _draft_json(
        config,
        gamma=gamma,
        mask_token_id=min(rows, vocab_size) - 1,
        target_layer_ids=target_layer_ids,
        num_draft_layers=num_draft_layers,
        markov_rank=markov_rank,
        head_type=head_type,
        confidence=confidence,
        confidence_with_markov=confidence_with_markov,
        vocab_size=rows,
    )
    weights = {
        name: _random_like(name, shape, generator)
        for name, shape in _draft_shapes(draft_json).items()
    }
    weights["embed_tokens.weight"] = _pad_rows(target.model.embed_tokens.weight.data, rows)
    weights["lm_head.weight"] = _pad_rows(head, rows)
    return _save_pair(Path(directory), target, draft_json, weights, dtype)


def _random_like(name: str, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    if "norm" in name:
        return 0.5 + torch.rand(tuple(shape), generator=generator)
    noise = torch.randn(tuple(shape), generator=generator)
    if len(shape) == 1 or "embed" in name:
        return noise * 0.5
    if "markov_w" in name:
        return noise * 0.7  # biases about as large as the base logits at rank 16
    # Unit inputs give outputs of size 1.2: far from linear, far from saturated.
    return noise * 1.2 / math.sqrt(shape[-1])


# ---------------------------------------------------------------------------------------- planted


def make_garbage_pair(
    directory: Path | str, *, gamma: int = 7, max_positions: int = 512, seed: int = 0
) -> Pair:
    """The Markov head always says the one token that the target never says at temperature 0."""
    pair = make_random_pair(directory, gamma=gamma, max_positions=max_positions, seed=seed)
    target = Qwen3ForCausalLM.from_pretrained(pair.target, dtype=torch.float32)
    never = 200
    target.lm_head.weight.data[never] = 0.0  # logit 0, below the best of 319 others
    draft_json = json.loads((pair.draft / "config.json").read_text())
    generator = torch.Generator().manual_seed(seed + 1)
    weights = {
        name: _random_like(name, shape, generator)
        for name, shape in _draft_shapes(draft_json).items()
    }
    w1, w2 = (weights[f"markov_head.markov_w{i}.weight"] for i in (1, 2))
    w1[:, 0], w2[:, 0] = 1.0, 0.0
    w2[never, 0] = 1000.0
    _set_target_copies(weights, target)
    return _save_pair(Path(directory), target, draft_json, weights, torch.float32)


LETTERS = (100, 101, 102, 103, 104, 105)


def make_bigram_pair(
    directory: Path | str,
    *,
    gamma: int = 7,
    noise: float = 0.0,
    context: float = 0.0,
    block_noise: float = 0.0,
    letters: Sequence[int] | None = None,
    sharpness: float = 4.0,
    head_type: str = "vanilla",
    max_positions: int = 512,
    seed: int = 0,
) -> Pair:
    """Target logits = lm_head . norm(embed(x)) of the last token x, which W1, W2 reproduce.

    sharpness: standard deviation of the target's logits.
    noise: of the error in the draft's table, as a share of sharpness.
    context: share of the target's last hidden state that its attention and MLPs decide, which the
        draft does not know. 0: layers without effect.
    block_noise: what the draft's random backbone adds to its logits, as a share of sharpness; then
        a wrong draft KV changes the drafts. 0: backbone without effect.
    letters: the only tokens with much probability (all others share about 1 %).
    """
    if head_type not in ("vanilla", "gated"):
        raise ValueError(f"head_type {head_type}: the RNN head cannot hold a linear table exactly")
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    config = _target_config(max_positions=max_positions)
    target = Qwen3ForCausalLM(config)
    for name, parameter in target.named_parameters():
        parameter.data = _random_like(name, parameter.shape, generator)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.data *= context
            parameter.data[0] = 0.0  # dimension 0 stays constant: it carries the letters' bias
    vocab = config.vocab_size
    embedding = randn(vocab, HIDDEN)
    embedding[:, 0] = 1.0
    embedding = embedding / embedding[:, 1:].pow(2).mean(1, keepdim=True).sqrt()
    embedding[:, 0] = 1.0
    head = randn(vocab, HIDDEN) * sharpness / math.sqrt(HIDDEN)
    head[:, 0] = 0.0
    if letters is not None:
        head[:, 0] = -(2.0 * sharpness + math.log(100.0 * vocab / len(letters)))
        head[list(letters), 0] = 0.0
    target.model.embed_tokens.weight.data = embedding
    target.model.norm.weight.data = torch.ones(HIDDEN)
    target.lm_head.weight.data = head

    draft_json = _draft_json(
        config, gamma=gamma, mask_token_id=vocab - 1, markov_rank=HIDDEN, head_type=head_type
    )
    weights = {
        name: _random_like(name, shape, generator)
        for name, shape in _draft_shapes(draft_json).items()
    }
    rms = (embedding.pow(2).mean(1, keepdim=True) + config.rms_norm_eps).sqrt()
    weights["markov_head.markov_w1.weight"] = embedding / rms
    table_noise = randn(vocab, HIDDEN) * noise * sharpness / math.sqrt(HIDDEN)
    table_noise[:, 0] = 0.0
    weights["markov_head.markov_w2.weight"] = head + table_noise
    if head_type == "gated":
        weights["markov_head.gate_proj.weight"].zero_()
        weights["markov_head.gate_proj.bias"].fill_(40.0)  # sigmoid is exactly 1 in fp32
    weights["norm.weight"] = torch.full((HIDDEN,), block_noise)
    weights["norm.weight"][0] = 0.0
    _set_target_copies(weights, target)
    return _save_pair(Path(directory), target, draft_json, weights, torch.float32)


def make_noisy_pair(directory: Path | str, *, gamma: int = 7, **options: Any) -> Pair:
    """Two thirds of the drafts are accepted at T=1, four tenths at T=0; six tokens hold 99 % of
    the mass: for tests of output laws. The target really depends on its context, the draft on its
    KV.
    """
    settings = {"noise": 0.5, "context": 0.15, "block_noise": 0.4, "sharpness": 2.0}
    return make_bigram_pair(directory, gamma=gamma, letters=LETTERS, **{**settings, **options})


# ------------------------------------------------------------------------------ exact, from context

# A token is four digits. The next token takes three of them from the token COPY_DISTANCE places
# before it and the fourth from its predecessor, plus one.
DIGIT_BASES = (5, 4, 4, 4)  # product 320, the vocabulary
COPY_DISTANCE = 11  # more than gamma, so that what is copied is always verified context
_CONST = 0
_CODE = (1, 6, 10, 14)  # where the digits of the token itself stand, one-hot
_TAG = (18, 23, 27)  # digits 0..2, turned by the layer's number: what the draft captures
_COPY = (31, 36, 40)  # digits 0..2 of the copied token
_CONST_SIZE, _DIGIT_SIZE = 4.0, 2.0


def digits_of(token: int) -> list[int]:
    out = []
    for base in DIGIT_BASES:
        out.append(token % base)
        token //= base
    return out


def token_of(digits: Sequence[int]) -> int:
    token = 0
    for base, digit in zip(reversed(DIGIT_BASES), reversed(digits), strict=True):
        token = token * base + digit
    return token


def copy_continuation(prompt: Sequence[int], num_new: int) -> list[int]:
    """What the target of `make_copy_pair` says, at every temperature up to 1."""
    ids = list(prompt)
    for _ in range(num_new):
        copied = digits_of(ids[-COPY_DISTANCE])
        last = (digits_of(ids[-1])[3] + 1) % DIGIT_BASES[3]
        ids.append(token_of([*copied[:3], last]))
    return ids[len(prompt) :]


def make_copy_pair(
    directory: Path | str,
    *,
    gamma: int = 7,
    head_type: str = "vanilla",
    max_positions: int = 16384,
    margin: float = 16.0,
    confidence_logit: float = 4.0,
) -> Pair:
    """Exact by construction at every context of at least COPY_DISTANCE tokens.

    margin: logits that a right digit is worth.
    """
    if gamma >= COPY_DISTANCE:
        raise ValueError(f"gamma {gamma}: must be below COPY_DISTANCE {COPY_DISTANCE}")
    theta = 1e4
    config = _target_config(
        max_positions=max_positions, rope={"rope_type": "default", "rope_theta": theta}
    )
    vocab = config.vocab_size
    target = Qwen3ForCausalLM(config)
    for name, parameter in target.named_parameters():
        parameter.data = torch.full_like(parameter, 1.0 if "norm" in name else 0.0)
    state = dict(target.named_parameters())

    digits = torch.tensor([digits_of(token) for token in range(vocab)])
    embedding = torch.zeros(vocab, HIDDEN)
    embedding[:, _CONST] = _CONST_SIZE
    head = torch.zeros(vocab, HIDDEN)
    rows = torch.arange(vocab)
    for t, start in enumerate(_CODE):
        embedding[rows, start + digits[:, t]] = _DIGIT_SIZE
    for t, start in enumerate(_COPY):
        head[rows, start + digits[:, t]] = margin / _DIGIT_SIZE
    predecessor = (digits[:, 3] - 1) % DIGIT_BASES[3]
    head[rows, _CODE[3] + predecessor] = margin / _DIGIT_SIZE
    state["model.embed_tokens.weight"].data = embedding
    state["lm_head.weight"].data = head
    for layer in range(NUM_LAYERS):
        _plant_tags(state, f"model.layers.{layer}.mlp.", layer)
    last = f"model.layers.{NUM_LAYERS - 1}.self_attn."
    rms_inside = _rms(num_digits=4 + 3)  # code and tags
    _plant_copy(state, last, theta, rms_inside, which=(0, 1, 2))
    # Only what predicts survives the final norm.
    final = torch.zeros(HIDDEN)
    for start, base in zip((*_COPY, _CODE[3]), DIGIT_BASES, strict=True):
        final[start : start + base] = _rms(num_digits=4 + 3 + 3)
    state["model.norm.weight"].data = final

    draft_json = _draft_json(config, gamma=gamma, mask_token_id=vocab - 1, head_type=head_type)
    weights = {
        name: torch.full(shape, 1.0 if "norm" in name else 0.0)
        for name, shape in _draft_shapes(draft_json).items()
    }
    for t, layer in enumerate(LAYER_IDS):  # digit t from captured layer t alone
        for d in range(DIGIT_BASES[t]):
            column = t * HIDDEN + _TAG[t] + (d + layer) % DIGIT_BASES[t]
            weights["fc.weight"][_CODE[t] + d, column] = 1.0
    weights["fc.weight"][_CONST, _CONST] = 1.0
    weights["hidden_norm.weight"].fill_(_rms(num_digits=3))
    _plant_copy(weights, "layers.0.self_attn.", theta, 1.0, which=(0, 1))
    _plant_copy(weights, "layers.1.self_attn.", theta, 1.0, which=(2,))
    weights["norm.weight"].zero_()
    for t, start in enumerate(_COPY):
        weights["norm.weight"][start : start + DIGIT_BASES[t]] = _rms(num_digits=4 + 3)
    w1, w2 = (weights[f"markov_head.markov_w{i}.weight"] for i in (1, 2))
    w1[rows, digits[:, 3]] = 1.0
    w2[rows, predecessor] = margin
    if head_type == "gated":
        weights["markov_head.gate_proj.bias"].fill_(40.0)
    if head_type == "rnn":
        rank = w1.shape[1]
        joint = weights["markov_head.joint_proj.weight"]
        joint[2 * rank :, rank : 2 * rank] = 20.0 * torch.eye(rank)  # tanh(20) is exactly 1
    weights["confidence_head.proj.bias"].fill_(confidence_logit)
    _set_target_copies(weights, target)
    return _save_pair(Path(directory), target, draft_json, weights, torch.float32)


def _rms(num_digits: int) -> float:
    """Root mean square of a hidden state that holds the constant and so many one-hot digits."""
    return math.sqrt((_CONST_SIZE**2 + num_digits * _DIGIT_SIZE**2) / HIDDEN)


def _plant_tags(state: dict[str, Any], prefix: str, layer: int) -> None:
    """Replace the tags of layer - 1 by those of this layer. With a large constant gate, silu(g) u
    is g u, so the MLP is linear in the token's code.
    """
    gate, rms = 32.0, _rms(num_digits=4 if layer == 0 else 4 + 3)
    if layer == NUM_LAYERS - 1:
        rms = _rms(num_digits=4 + 3 + 3)
    j = 0
    for t, start in enumerate(_TAG):
        for d in range(DIGIT_BASES[t]):
            state[prefix + "gate_proj.weight"].data[j, _CONST] = gate * rms / _CONST_SIZE
            state[prefix + "up_proj.weight"].data[j, _CODE[t] + d] = rms
            down = state[prefix + "down_proj.weight"].data
            down[start + (d + layer) % DIGIT_BASES[t], j] += 1.0 / gate
            if layer > 0:
                down[start + (d + layer - 1) % DIGIT_BASES[t], j] -= 1.0 / gate
            j += 1


def _plant_copy(
    weights: dict[str, Any], prefix: str, theta: float, rms: float, which: Sequence[int]
) -> None:
    """Two query heads look COPY_DISTANCE - 1 places back and nowhere else; value = the code there.

    Keys point the same way everywhere, so RoPE alone decides: the score is a sum of cosines of
    (distance - wanted distance), 27 below its maximum one place aside. Digit 0 goes through query
    head 0 (KV head 0), the others through query head 3 (KV head 1).
    """
    half = HEAD_DIM // 2
    angle = -(COPY_DISTANCE - 1) * theta ** (-torch.arange(half) / half)
    query = torch.cat([angle.cos(), angle.sin()])
    key = torch.cat([torch.ones(half), torch.zeros(half)])
    for head in (0, 3):
        weights[prefix + "q_proj.weight"].data[head * HEAD_DIM :][:HEAD_DIM, _CONST] = query
    for head in (0, 1):
        weights[prefix + "k_proj.weight"].data[head * HEAD_DIM :][:HEAD_DIM, _CONST] = key
    # Unit-RMS vectors: q.k = 2 sum(cos) before scaling; make it 40 sum(cos) after.
    size = math.sqrt(40.0 * math.sqrt(HEAD_DIM) / 2.0)
    for norm in ("q_norm.weight", "k_norm.weight"):
        weights[prefix + norm].data.fill_(size)
    for t in which:
        query_head, kv_head = (0, 0) if t == 0 else (3, 1)
        for d in range(DIGIT_BASES[t]):
            slot = _COPY[t] - _COPY[0] + d
            value_row = kv_head * HEAD_DIM + slot
            weights[prefix + "v_proj.weight"].data[value_row, _CODE[t] + d] = rms
            weights[prefix + "o_proj.weight"].data[_COPY[t] + d, query_head * HEAD_DIM + slot] = 1.0


# ---------------------------------------------------------------------------------------- on disk


def _target_config(
    *,
    vocab_size: int = 320,
    num_layers: int = NUM_LAYERS,
    attention_bias: bool = False,
    tied: bool = False,
    max_positions: int = 512,
    rope: Mapping[str, Any] | None = None,
) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=num_layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=max_positions,
        attention_bias=attention_bias,
        tie_word_embeddings=tied,
        rope_parameters=dict(rope or {"rope_type": "default", "rope_theta": 1e6}),
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )


def _draft_json(
    target: Qwen3Config,
    *,
    gamma: int,
    mask_token_id: int,
    target_layer_ids: Sequence[int] = LAYER_IDS,
    num_draft_layers: int = NUM_DRAFT_LAYERS,
    markov_rank: int = 16,
    head_type: str = "vanilla",
    confidence: bool = True,
    confidence_with_markov: bool = True,
    vocab_size: int | None = None,
) -> dict[str, Any]:
    out = target.to_dict()
    out.update(
        architectures=["Qwen3DSparkModel"],
        num_hidden_layers=num_draft_layers,
        num_target_layers=target.num_hidden_layers,
        layer_types=["full_attention"] * num_draft_layers,
        tie_word_embeddings=False,
        vocab_size=vocab_size or target.vocab_size,
        block_size=gamma,
        mask_token_id=mask_token_id,
        target_layer_ids=list(target_layer_ids),
        num_anchors=8,
        enable_confidence_head=confidence,
        markov_rank=markov_rank,
        markov_head_type=head_type,
    )
    if confidence:
        out["confidence_head_with_markov"] = confidence_with_markov
    return out


def _draft_shapes(draft: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensor table of checkpoints.md 1.4, written a second time: the tests of the loader must
    not borrow the loader's own list.
    """
    hidden, inner, rank = draft["hidden_size"], draft["intermediate_size"], draft["markov_rank"]
    wide = draft["num_attention_heads"] * draft["head_dim"]
    narrow = draft["num_key_value_heads"] * draft["head_dim"]
    vocab, head_type = draft["vocab_size"], draft["markov_head_type"]
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(draft["target_layer_ids"]) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "markov_head.markov_w1.weight": (vocab, rank),
        "markov_head.markov_w2.weight": (vocab, rank),
    }
    per_layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (wide, hidden),
        "self_attn.k_proj.weight": (narrow, hidden),
        "self_attn.v_proj.weight": (narrow, hidden),
        "self_attn.o_proj.weight": (hidden, wide),
        "self_attn.q_norm.weight": (draft["head_dim"],),
        "self_attn.k_norm.weight": (draft["head_dim"],),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if draft["attention_bias"]:
        per_layer |= {
            f"self_attn.{p}_proj.bias": per_layer[f"self_attn.{p}_proj.weight"][:1] for p in "qkvo"
        }
    for i in range(draft["num_hidden_layers"]):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in per_layer.items()}
    if head_type == "gated":
        shapes["markov_head.gate_proj.weight"] = (rank, hidden + rank)
        shapes["markov_head.gate_proj.bias"] = (rank,)
    if head_type == "rnn":
        shapes["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + hidden)
        shapes["markov_head.joint_proj.bias"] = (3 * rank,)
    if draft["enable_confidence_head"]:
        with_markov = draft["confidence_head_with_markov"]
        shapes["confidence_head.proj.weight"] = (1, hidden + rank if with_markov else hidden)
        shapes["confidence_head.proj.bias"] = (1,)
    return shapes


def _pad_rows(table: Tensor, rows: int) -> Tensor:
    padded = torch.zeros(rows, table.shape[1], dtype=table.dtype)
    padded[: min(rows, table.shape[0])] = table[:rows]
    return padded


def _set_target_copies(weights: dict[str, Tensor], target: Qwen3ForCausalLM) -> None:
    weights["embed_tokens.weight"] = target.model.embed_tokens.weight.data.clone()
    weights["lm_head.weight"] = target.lm_head.weight.data.clone()


def _save_pair(
    directory: Path,
    target: Qwen3ForCausalLM,
    draft_json: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    dtype: torch.dtype,
) -> Pair:
    pair = Pair(directory / "target", directory / "draft")
    target.to(dtype).save_pretrained(pair.target)
    _tokenizer(target.config.vocab_size).save_pretrained(pair.target)
    pair.draft.mkdir(parents=True, exist_ok=True)
    spelled = {**draft_json, "dtype": str(dtype).removeprefix("torch.")}
    (pair.draft / "config.json").write_text(json.dumps(spelled, indent=2))
    tensors = {name: tensor.to(dtype).contiguous().clone() for name, tensor in weights.items()}
    save_file(tensors, pair.draft / "model.safetensors", metadata={"format": "pt"})
    return pair


def _tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """One token a byte, and a printable name for every other id, so that any output decodes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = ["<pad>", "<bos>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pieces += [f"<{i}>" for i in range(len(pieces), vocab_size)]
    tokenizer = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )
    fast.chat_template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}assistant: "
    )
    return fast


def make_noise_draft(directory: Path, draft: Path, seed: int = 0) -> Path:
    """A draft that fits the same target and knows nothing: every matrix of its own drawn anew."""
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(draft / "model.safetensors")
    for name, tensor in weights.items():
        own = not name.startswith(("embed_tokens", "lm_head"))  # copies of the target's
        if own and tensor.dim() > 1:
            noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std()
            weights[name] = noise.to(tensor.dtype)
    save_file(weights, directory / "model.safetensors")
    shutil.copy(draft / "config.json", directory)
    return directory


def main() -> None:
    makers = {
        "random": make_random_pair,
        "garbage": make_garbage_pair,
        "bigram": make_bigram_pair,
        "noisy": make_noisy_pair,
        "copy": make_copy_pair,
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=[*makers, "noise"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--gamma", type=int, default=7)
    parser.add_argument("--of", type=Path, help="the draft that `noise` resembles")
    arguments = parser.parse_args()
    if arguments.kind == "noise":
        if arguments.of is None:
            parser.error("noise: name a draft with --of")
        print(make_noise_draft(arguments.directory, arguments.of))
        return
    print(makers[arguments.kind](arguments.directory, gamma=arguments.gamma))


if __name__ == "__main__":
    main()
