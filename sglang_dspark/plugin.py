"""The two entry points SGLang calls in every process; they join `engine/` and `cpu/`."""

from __future__ import annotations


def activate_platform() -> str | None:
    """Entry point `sglang.srt.platforms`: our CPU platform's class path, or None to stand aside."""
    from sglang_dspark.cpu.activation import should_activate

    return "sglang_dspark.cpu.platform.CpuPlatform" if should_activate() else None


def register() -> None:
    """Entry point `sglang.srt.plugins`: what must be in place before arguments are parsed."""
    from sglang_dspark.cpu.activation import is_disabled, should_activate

    if is_disabled():
        return
    if should_activate():
        from sglang_dspark.seam import cpu_platform

        cpu_platform.add_backend_choices()

    from sglang_dspark.seam import hooks

    hooks.register_trigger()
