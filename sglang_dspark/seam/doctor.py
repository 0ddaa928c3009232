"""What SGLang makes of a command line, found out without starting a server.

For `sglang-dspark doctor`. SGLang patches itself when plugins are loaded, so this belongs into a
process of its own.
"""

from __future__ import annotations

import contextlib
import io
import os
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from sglang.srt.arg_groups.model_override_base import attention_backends_of, model_config_of
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.plugins import GENERAL_PLUGINS_GROUP, PLATFORM_PLUGINS_GROUP, load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.server_args import prepare_server_args

from sglang_dspark.draft.target import TargetShape
from sglang_dspark.seam.arguments import draft_folder, unsupported
from sglang_dspark.seam.draft_config import target_shape
from sglang_dspark.seam.hooks import ALGORITHM, HOOKS, TRIGGER, check_signature
from sglang_dspark.seam.version import SeamMismatch, check_version


@dataclass(frozen=True, slots=True)
class Reading:
    """A command line as SGLang took it; `options` is None where it could not be parsed."""

    options: Any
    parse_error: str | None
    refused: tuple[str, ...]  # by this package, one reason each
    start_error: str | None  # what else ended the resolution of the options


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """The target as it would be served."""

    shape: TargetShape
    architecture: str
    context_len: int  # tokens
    dtype: str
    itemsize: int  # bytes of one weight
    kv_bytes_per_token: int  # K and V over all layers


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What SGLang would serve with; meanings as in `doctor.facts.Served`."""

    platform: str
    device: str
    attention: str
    captures_graphs: bool
    overlaps: bool
    max_running_requests: int
    pool_tokens: int | None
    tp: int


def mismatches() -> list[str]:
    """Where the installed SGLang is not the one that the hooks were written against."""
    found = []
    try:
        check_version()
    except SeamMismatch as mismatch:
        found.append(str(mismatch))
    try:
        pkgutil.resolve_name(TRIGGER)
    except (ImportError, AttributeError) as error:
        found.append(f"SGLang has no {TRIGGER} ({error})")
    for hook in HOOKS:
        try:
            check_signature(hook)
        except SeamMismatch as mismatch:
            found.append(str(mismatch))
    return found


def entry_points(name: str) -> dict[str, str | None]:
    """What SGLang's two groups of entry points hold under our name."""
    groups = {"plugin": GENERAL_PLUGINS_GROUP, "platform": PLATFORM_PLUGINS_GROUP}
    return {
        kind: next((e.value for e in metadata.entry_points(group=group, name=name)), None)
        for kind, group in groups.items()
    }


def plugin_ran() -> bool:
    """Load plugins as every process of SGLang does; whether ours put its first hook in place."""
    load_plugins()
    return TRIGGER in HookRegistry._patched


def read_command_line(flags: Sequence[str]) -> Reading:
    """Parse and resolve flags as `sglang.launch_server` does; plugins must have been loaded."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            options = prepare_server_args(list(flags))
    except SystemExit:
        lines = said.getvalue().strip().splitlines() or ["no reason was given"]
        return Reading(None, lines[-1].rpartition("error: ")[2], (), None)
    except Exception as error:  # whatever a value of the user makes SGLang raise
        return Reading(None, f"{type(error).__name__}: {error}", (), None)
    try:
        options.resolve_once()
    except (Exception, SystemExit) as error:
        refused = tuple(unsupported(resolving_view(options), os.environ)) if _asks(options) else ()
        return Reading(options, None, refused, None if refused else _text(error))
    return Reading(options, None, (), None)


def _asks(options: Any) -> bool:
    view = resolving_view(options)
    # Where SGLang failed before it chose a device, the reasons that ask for it cannot be given.
    return (algorithm(options) or "") == ALGORITHM and isinstance(view.device, str)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def algorithm(options: Any) -> str | None:
    named = resolving_view(options).speculative_algorithm
    return named.upper() if named else None


def named_files(options: Any) -> tuple[str | None, str | None]:
    """(cost table, calibration) as the flags name them."""
    view = resolving_view(options)
    return view.speculative_dspark_sps_table_path, view.speculative_dspark_confidence_sts_path


def worker(options: Any) -> str | None:
    """The class that would serve DSPARK; None where SGLang cannot say."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    try:
        found = SpeculativeAlgorithm.from_string(ALGORITHM).create_worker(options)
    except (Exception, SystemExit):
        return None
    return f"{found.__module__}.{found.__qualname__}"


def target_path(options: Any) -> str:
    return str(resolving_view(options).model_path)


def target_config(options: Any) -> TargetConfig:
    """Raises what SGLang raises at a configuration that it cannot read."""
    config = model_config_of(options)
    heads = config.get_num_kv_heads(resolving_view(options).tp_size)
    row = heads * (config.head_dim + config.v_head_dim)
    return TargetConfig(
        shape=target_shape(config),
        architecture=(config.hf_config.architectures or ["unknown"])[0],
        context_len=int(config.context_len),
        dtype=str(config.dtype).removeprefix("torch."),
        itemsize=config.dtype.itemsize,
        kv_bytes_per_token=row * config.num_hidden_layers * config.dtype.itemsize,
    )


def named_draft(options: Any) -> Path:
    """The draft's folder. Raises ValueError or OSError: none is named, or it is not here."""
    return draft_folder(resolving_view(options))


def draft_flags(options: Any) -> dict[str, int | None]:
    """Keyword arguments of `resolve_gamma`, as the user gave them."""
    return {
        "block_size_flag": options.speculative_dspark_block_size,
        "num_draft_tokens_flag": options.speculative_num_draft_tokens,
    }


def surroundings(options: Any) -> Surroundings:
    """Of options that were resolved."""
    from sglang.srt.platforms import current_platform

    view = resolving_view(options)
    kind = type(current_platform)
    return Surroundings(
        platform=f"{kind.__module__}.{kind.__qualname__}",
        device=str(view.device),
        attention=str(attention_backends_of(view)[1]),
        captures_graphs=not str(view.device).startswith("cpu") and not view.disable_cuda_graph,
        overlaps=not view.disable_overlap_schedule,
        max_running_requests=int(view.max_running_requests or 0),
        pool_tokens=view.max_total_tokens,
        tp=int(view.tp_size),
    )
