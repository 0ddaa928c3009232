"""What our CPU platform uses of SGLang, at the time platforms are chosen and arguments parsed.

SGLang imports this very early, so engine modules (attention, pools) stay in `cpu_attention.py`.
"""

from __future__ import annotations

import torch
from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

__all__ = ["CpuDeviceMixin", "PlatformCapabilities", "PlatformEnum", "SRTPlatform"]

ATTENTION_BACKEND = "dspark_cpu"


def add_backend_choices() -> None:
    """Give the command line our backend's name; before arguments are parsed."""
    from sglang.srt.arg_groups import choices

    choices.add_attention_backend_choices([ATTENTION_BACKEND])
    choices.add_draft_attention_backend_choices([ATTENTION_BACKEND])


def register_attention_backend(create) -> None:
    """create(model_runner) -> the backend"""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    register_attention_backend(ATTENTION_BACKEND)(create)


def user_input(server_args) -> dict:
    """Every argument as the user gave it, before SGLang filled anything in."""
    return server_args._raw_input


def checkpoint_is_fp32(server_args) -> bool:
    """Whether the target's own config says float32; a config that says nothing does not."""
    from sglang.srt.arg_groups.overrides import model_config_of

    stated = getattr(model_config_of(server_args).hf_text_config, "dtype", None)
    return stated in (torch.float32, "float32")


def kv_shape(server_args) -> tuple[int, int]:
    """(context length, bytes of K and V per token over all layers of one rank) of the target."""
    from sglang.srt.arg_groups.overrides import model_config_of

    config = model_config_of(server_args)
    heads = config.get_num_kv_heads(server_args.tp_size)
    row = heads * (config.head_dim + config.v_head_dim)
    itemsize = 4 if server_args.dtype == "float32" else config.dtype.itemsize
    return config.context_len, row * config.num_hidden_layers * itemsize
