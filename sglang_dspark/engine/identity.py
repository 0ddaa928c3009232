"""What this server is, in the terms of a cost table's provenance."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import torch

from sglang_dspark.core.cost_verdict import Server

# From the newest down; the first one that the CPU has names the machine's speed class.
CPU_ISAS = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "asimd")


def describe_server(
    *,
    device: str,
    dtype: str,
    target: Path,
    draft: Path,
    gamma: int,
    tp: int,
    engine: str,
    attention: str,
) -> Server:
    """Identity of a server, for matching and writing cost tables."""
    name, isa, cores = _cpu() if device.startswith("cpu") else _accelerator(device)
    return Server(
        device=name,
        isa=isa,
        cores=cores,
        threads=torch.get_num_threads(),
        dtype=dtype,
        target=digest(target),
        draft=digest(draft),
        gamma=gamma,
        tp=tp,
        engine=engine,
        attention_backend=attention,
    )


def digest(folder: Path) -> str:
    """A checkpoint's digest: its config, and the size, head and tail of every weight file."""
    sha = hashlib.sha256()
    if not folder.is_dir():  # a hub id, resolved by SGLang
        sha.update(str(folder).encode())
    config = folder / "config.json"
    if config.is_file():
        sha.update(config.read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        sha.update(f"{file.name}:{size}".encode())
        with file.open("rb") as weights:
            sha.update(weights.read(1 << 16))
            weights.seek(max(0, size - (1 << 16)))
            sha.update(weights.read())
    return sha.hexdigest()[:16]


def _cpu() -> tuple[str, str, int]:
    model, flags = platform.processor() or platform.machine(), ""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        fields = dict(
            (part.strip() for part in line.split(":", 1))
            for line in info.read_text().splitlines()
            if ":" in line
        )
        model = fields.get("model name", model)
        flags = fields.get("flags", fields.get("Features", ""))
    have = set(flags.split())
    isa = next((name for name in CPU_ISAS if name in have), platform.machine())
    return model, isa, len(os.sched_getaffinity(0))


def _accelerator(device: str) -> tuple[str, str, int]:
    module = torch.get_device_module(device)
    properties = module.get_device_properties(module.current_device())
    capability = f"{properties.major}.{properties.minor}" if hasattr(properties, "major") else ""
    return properties.name, capability, getattr(properties, "multi_processor_count", 0)
