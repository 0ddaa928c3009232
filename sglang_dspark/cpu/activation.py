"""Whether our CPU platform should serve this process. No SGLang import; cheap where it says no."""

from __future__ import annotations

import importlib.util
import os


def is_disabled() -> bool:
    """`SGLANG_DSPARK_DISABLE=1` switches the whole package off."""
    return os.environ.get("SGLANG_DSPARK_DISABLE", "0") == "1"


def has_accelerator() -> bool:
    """CUDA, ROCm, XPU, MPS, NPU, MUSA, HPU: anything that SGLang would serve on by itself."""
    import torch  # already loaded by SGLang whenever it asks for a platform

    if torch.accelerator.is_available() or torch.cuda.is_available():
        return True
    if any(
        getattr(getattr(torch, name, None), "is_available", bool)()
        for name in ("xpu", "mps", "npu", "musa", "hpu")
    ):
        return True
    return importlib.util.find_spec("habana_frameworks") is not None


def has_intree_cpu_engine() -> bool:
    """An `sgl_kernel` built for CPUs; PyPI has none, and its CUDA build fails to import here."""
    if importlib.util.find_spec("sgl_kernel") is None:
        return False
    try:
        import sgl_kernel  # noqa: F401
        import torch
    except Exception:  # it raises ImportError, OSError or RuntimeError, by the library missing
        return False
    return hasattr(torch.ops.sgl_kernel, "convert_weight_packed")


def should_activate() -> bool:
    return not (is_disabled() or has_accelerator() or has_intree_cpu_engine())
