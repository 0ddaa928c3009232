"""Run-time control through SGLang's `/set_internal_state`, whose values may be text for our keys.

SGLang's request carries numbers only, and its answer no reason. So the request type is replaced by
a wider one in every process, and a refusal comes back through the worker's record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sglang.srt.managers.io_struct import BaseReq, SetInternalStateReqOutput

PREFIX = "dspark_"
STOCK_KEYS = frozenset({"dspark_force_budget_frac", "dspark_clear_info_records"})


class WideSetInternalStateReq(BaseReq, kw_only=True):
    """Class REPLACE of `SetInternalStateReq`: values of any JSON type."""

    server_args: dict[str, Any]


async def set_internal_state(original: Callable[..., Any], manager: Any, obj: Any) -> Any:
    """AROUND `TokenizerControlMixin.set_internal_state` (HTTP process).

    Raises:
        HTTPException: 400 with the reason, where a value is refused; then nothing was changed.
    """
    from fastapi import HTTPException

    ours = our_keys(obj.server_args)
    rest = {key: value for key, value in obj.server_args.items() if key not in ours}
    if bad := [key for key, value in rest.items() if not _is_number(value)]:
        raise HTTPException(400, f"{', '.join(bad)}: SGLang takes numbers only")
    if ours and rest:
        raise HTTPException(400, f"send {', '.join(rest)} apart from the DSPARK settings")
    updated = await original(manager, obj)
    if ours and not all(updated):
        raise HTTPException(400, _reason(await manager.get_internal_state()))
    return updated


def _reason(states: Any) -> str:
    for state in states:
        record = state.get("dspark_info_record") or {}
        if record.get("control_error"):
            return str(record["control_error"])
    return "refused; the server's log says why"


def apply_update(original: Callable[..., Any], controller: Any, recv_req: Any) -> Any:
    """AROUND `SchedulerInternalStateController.set_internal_state` (scheduler process)."""
    ours = our_keys(recv_req.server_args)
    if not ours:
        return original(controller, recv_req)
    return SetInternalStateReqOutput(updated=controller.scheduler.draft_worker.try_steer(ours))


def our_keys(server_args: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that the DSpark worker answers to."""
    return {k: v for k, v in server_args.items() if k.startswith(PREFIX) and k not in STOCK_KEYS}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
