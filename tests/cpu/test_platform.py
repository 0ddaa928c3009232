"""When the platform serves, and what it fills in."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from sglang_dspark.cpu import activation, memory, pool_size, threads


def test_it_stands_aside_where_it_is_switched_off_or_not_needed(monkeypatch):
    monkeypatch.setattr(activation, "has_accelerator", lambda: False)
    monkeypatch.setattr(activation, "has_intree_cpu_engine", lambda: False)
    assert activation.should_activate()
    for name in ("has_accelerator", "has_intree_cpu_engine"):
        with monkeypatch.context() as other:
            other.setattr(activation, name, lambda: True)
            assert not activation.should_activate()
    monkeypatch.setenv("SGLANG_DSPARK_DISABLE", "1")
    assert not activation.should_activate()


@pytest.mark.parametrize("module", ["cuda", "xpu", "mps", "npu", "musa", "hpu"])
def test_any_accelerator_of_torch_counts(module, monkeypatch):
    class Available:
        is_available = staticmethod(lambda: True)

    monkeypatch.setattr(torch, module, Available, raising=False)
    assert activation.has_accelerator()


def test_saying_no_needs_neither_torch_nor_sglang():
    code = (
        "import sys; from sglang_dspark.plugin import activate_platform as a; "
        "assert a() is None; assert not {'torch', 'sglang'} & set(sys.modules)"
    )
    off = {**os.environ, "SGLANG_DSPARK_DISABLE": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=off)


KV = 12_288  # bytes per token


def test_the_pool_holds_a_moderate_context_per_request():
    assert pool_size.pool_tokens(4096, KV, 48, 64 << 30) == 48 * pool_size.MODERATE_CONTEXT


def test_the_pool_holds_one_full_context_and_headroom():
    assert pool_size.pool_tokens(131_072, KV, 4, 64 << 30) == 131_072 + pool_size.HEADROOM


def test_the_pool_leaves_memory_to_others():
    free = 1 << 30
    tokens = pool_size.pool_tokens(131_072, KV, 48, free)
    assert tokens * KV <= pool_size.FREE_MEMORY_SHARE * free
    assert pool_size.pool_tokens(4096, KV, 48, 0) == pool_size.HEADROOM


def test_a_core_is_left_to_the_other_processes(monkeypatch):
    monkeypatch.setattr(threads.psutil, "cpu_count", lambda logical: 4)
    monkeypatch.setattr(threads.psutil.Process, "cpu_affinity", lambda self: list(range(8)))
    assert threads.default_threads() == 3
    monkeypatch.setattr(threads.psutil.Process, "cpu_affinity", lambda self: [0])
    assert threads.default_threads() == 1


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_freed_blocks_are_used_again_without_page_faults():
    code = """
import ctypes, resource
from sglang_dspark.cpu.memory import keep_freed_memory
libc, size = ctypes.CDLL(None), 8 << 20
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        block = libc.malloc(size)
        libc.memset(block, 1, size)
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
assert keep_freed_memory()
faults()
assert faults() < 1000, "each block has 2048 pages"
"""
    asked = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    subprocess.run([sys.executable, "-c", code], check=True, env=asked)


def test_a_users_malloc_settings_stay(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert not memory.keep_freed_memory()


def test_the_users_thread_count_stays(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", str(before))
    monkeypatch.setattr(threads, "default_threads", lambda: before + 1)
    threads.set_default_threads()
    assert torch.get_num_threads() == before
