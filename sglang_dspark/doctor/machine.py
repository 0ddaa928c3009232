"""What would the server run on, and is there room for the pair?"""

from __future__ import annotations

from collections.abc import Iterator

from sglang_dspark.doctor.facts import Draft, Machine, Probed, Served, Target
from sglang_dspark.doctor.finding import Finding, ok, problem, warning

OUR_PLATFORM = "sglang_dspark.cpu.platform.CpuPlatform"
# Torch, SGLang and their tables in four processes: 2.9 GB with the bundled pair, 0.2 GB its own.
PROCESSES = 2_700_000_000  # bytes


def check_device(probed: Probed) -> Iterator[Finding]:
    machine, served, server = probed.machine, probed.served, probed.server
    if not (machine.accelerator or machine.intree_cpu) and machine.disabled:
        yield problem(
            "device",
            "no accelerator, no CPU build of SGLang's kernels, and this package's CPU platform is "
            "switched off",
            "unset SGLANG_DSPARK_DISABLE",
        )
        return
    if served is None:
        what = "an accelerator" if machine.accelerator else "no accelerator"
        yield ok(
            "device",
            f"{what}, cores: {machine.cores}; the flags do not get far enough to tell more",
        )
        return
    if served.platform == OUR_PLATFORM:
        whose = "this package's CPU platform"
    else:
        whose = "SGLang's own CPU build" if served.device == "cpu" else "SGLang's own platform"
    yield ok("device", f"{served.device} by {whose}, attention {served.attention}")
    if server is None:
        return
    cores, threads = int(server["cores"]), int(server["threads"])
    units = "cores" if served.device == "cpu" else "multiprocessors"
    yield ok(
        "processor",
        f"{server['device']} ({server['isa']}); {units}: {cores}, threads that compute: {threads}",
    )
    if served.device == "cpu" and 1 < cores <= threads:
        yield warning(
            "processor",
            f"{threads} threads on {cores} cores: SGLang's other processes have none to themselves",
            f"unset OMP_NUM_THREADS, or set it to {cores - 1}",
        )


def check_memory(
    machine: Machine, target: Target, draft: Draft, served: Served
) -> Iterator[Finding]:
    """Weights, pools and processes against what is free and what there is."""
    weights = target.weight_bytes + draft.weight_bytes
    pools = (served.pool_tokens or 0) * (target.kv_bytes_per_token + draft.kv_bytes_per_token)
    others = PROCESSES if served.device == "cpu" else 0
    need = weights + pools + others
    parts = f"weights {_gb(weights)}"
    parts += f", KV pools up to {_gb(pools)}" if pools else ", KV pools from what is left"
    parts += f", processes {_gb(others)}" if others else ""
    text = f"{_gb(need)} needed ({parts}); {_gb(machine.memory_free)} of "
    text += f"{_gb(machine.memory_total)} free"
    if weights + others > machine.memory_total:
        yield problem("memory", text, "serve a smaller pair, or give --dtype bfloat16")
    elif need > machine.memory_free:
        advice = "end other programs, or give a smaller "
        yield warning("memory", text, advice + ("--max-total-tokens" if pools else "pair"))
    else:
        yield ok("memory", text)


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
