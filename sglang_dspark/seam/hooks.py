"""Every place where SGLang is changed at run time, as one table that is checked after use.

Inert unless asked for: `register_trigger` hooks a single function, the one that turns the name of
a speculative algorithm into its enum member. Only when that name is DSPARK are the other hooks
checked, registered and applied.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import multiprocessing
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from sglang_dspark.seam.version import SeamMismatch, check_version

logger = logging.getLogger(__name__)

ALGORITHM = "DSPARK"
# SGLang serves HTTP in the process that was started and runs the scheduler in a spawned one.
Process = Literal["any", "http", "scheduler"]
TRIGGER = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.from_string"


@dataclass(frozen=True, slots=True)
class Hook:
    """One change of SGLang: where, how, by what, and the signature it was written against."""

    target: str
    kind: HookType
    replacement: str  # "module:function", imported only when DSPARK is asked for
    parameters: tuple[str, ...]  # parameter names of the target, in order
    where: Process = "any"

    def load(self) -> Callable[..., Any]:
        module, name = self.replacement.split(":")
        return getattr(importlib.import_module(module), name)


_SRT = "sglang.srt"
_SEAM = "sglang_dspark.seam"
HOOKS = (
    Hook(
        f"{_SRT}.arg_groups.speculative_hook._handle_dspark",
        HookType.REPLACE,
        f"{_SEAM}.arguments:resolve_arguments",
        ("server_args",),
    ),
    Hook(
        f"{_SRT}.speculative.spec_info.SpeculativeAlgorithm.create_worker",
        HookType.AROUND,
        f"{_SEAM}.worker_class:create_worker",
        ("self", "server_args"),
    ),
    Hook(
        f"{_SRT}.speculative.dflash_utils.validate_dflash_request",
        HookType.REPLACE,
        f"{_SEAM}.requests:refuse_request",
        ("req", "enable_overlap"),
    ),
    Hook(
        f"{_SRT}.utils.hf_transformers.config.get_config",
        HookType.AROUND,
        f"{_SEAM}.draft_config:get_config",
        (
            "model",
            "trust_remote_code",
            "revision",
            "model_override_args",
            "model_config_parser",
            "kwargs",
        ),
    ),
    Hook(
        f"{_SRT}.model_executor.model_runner_components.spec_aux_hidden_state"
        "._resolve_dflash_aux_hidden_state",
        HookType.REPLACE,
        f"{_SEAM}.draft_config:resolve_capture",
        ("config", "server_args", "model_config", "spec_algorithm", "is_draft_worker"),
    ),
    Hook(
        f"{_SRT}.mem_cache.allocation_sizing.get_req_to_token_extra_context_len",
        HookType.AROUND,
        f"{_SEAM}.kv_slots:row_headroom",
        (),
    ),
    Hook(
        f"{_SRT}.managers.overlap_utils.decide_needs_confidence_relay",
        HookType.AROUND,
        f"{_SEAM}.worker_class:asks_for_a_budget",
        (),
    ),
    Hook(
        f"{_SRT}.managers.io_struct.SetInternalStateReq",
        HookType.REPLACE,
        f"{_SEAM}.control:WideSetInternalStateReq",
        ("rid", "http_worker_ipc", "server_args"),
    ),
    Hook(
        f"{_SRT}.managers.tokenizer_control_mixin.TokenizerControlMixin.set_internal_state",
        HookType.AROUND,
        f"{_SEAM}.control:set_internal_state",
        ("self", "obj"),
        where="http",
    ),
    Hook(
        f"{_SRT}.managers.scheduler_components.internal_state"
        ".SchedulerInternalStateController.set_internal_state",
        HookType.AROUND,
        f"{_SEAM}.control:apply_update",
        ("self", "recv_req"),
        where="scheduler",
    ),
)

_installed = False


def register_trigger() -> None:
    """Register and apply the one hook that is in place without DSPARK.

    When it cannot be applied, the in-tree worker would run under our name: that is one warning,
    or the end of the process where the command line asks for DSPARK.
    """
    HookRegistry.register(TRIGGER, _on_algorithm_named, HookType.AROUND)
    HookRegistry.apply_hooks()
    if not _is_applied(TRIGGER):
        message = f"sglang-dspark: SGLang has no {TRIGGER} to hook; it stays out of the way"
        if any(argument.upper() == ALGORITHM for argument in sys.argv):
            raise SystemExit(message)
        logger.warning(message)


def _on_algorithm_named(original: Callable[..., Any], cls: type, name: str | None) -> Any:
    algorithm = original(cls, name)
    if name is not None and name.upper() == ALGORITHM:
        install()
    return algorithm


def install() -> None:
    """Apply every hook of `HOOKS`, once a process.

    Raises:
        SystemExit: SGLang differs from what the seam knows; the one line says where.
    """
    global _installed
    if _installed:
        return
    try:
        check_version()
        hooks = [hook for hook in HOOKS if hook.where in ("any", _this_process())]
        for hook in hooks:
            check_signature(hook)
        for hook in hooks:
            HookRegistry.register(hook.target, hook.load(), hook.kind)
        HookRegistry.apply_hooks()
        for hook in hooks:
            if not _is_applied(hook.target):
                raise SeamMismatch(f"the hook on {hook.target} was not applied")
    except SeamMismatch as mismatch:
        # SystemExit, because SGLang logs and swallows every other exception of a plugin.
        raise SystemExit(f"sglang-dspark: {mismatch}") from None
    _installed = True


def check_signature(hook: Hook) -> None:
    try:
        target = pkgutil.resolve_name(hook.target)
    except (ImportError, AttributeError) as error:
        raise SeamMismatch(f"SGLang has no {hook.target} ({error})") from None
    found = tuple(inspect.signature(target).parameters)
    if found != hook.parameters:
        raise SeamMismatch(f"{hook.target} takes {found}, expected {hook.parameters}")


def _is_applied(target: str) -> bool:
    """Whether SGLang's registry patched the target and the patch is what callers now reach."""
    if target not in HookRegistry._patched:
        return False
    found = pkgutil.resolve_name(target)
    replacements = [hook.load() for hook in HOOKS if hook.target == target]
    return hasattr(found, "__wrapped__") or found in replacements


def _this_process() -> Process:
    return "http" if multiprocessing.parent_process() is None else "scheduler"
