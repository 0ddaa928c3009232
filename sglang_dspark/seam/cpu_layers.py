"""Where our CPU layer forwards and packed weights are attached to SGLang's classes."""

from __future__ import annotations

from collections.abc import Callable

from sglang.kernels.fused_op import BaseFusedOp
from sglang.srt.layers.activation import SiluAndMul
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.quantization.unquant import (
    UnquantizedEmbeddingMethod,
    UnquantizedLinearMethod,
)
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding
from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_exec
from torch import Tensor, nn

WEIGHT_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
WEIGHT_UPDATES = (
    "update_weights_from_disk",
    "load_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
)


def register_forwards(key: str, *, rms_norm, silu_and_mul, rotary) -> None:
    """Out-of-tree forwards under our platform's dispatch key, for exact classes."""
    BaseFusedOp.register_oot_forward(RMSNorm, rms_norm, key)
    BaseFusedOp.register_oot_forward(SiluAndMul, silu_and_mul, key)
    for cls in plain_rotary_classes():
        BaseFusedOp.register_oot_forward(cls, rotary, key)


def plain_rotary_classes() -> list[type]:
    """RotaryEmbedding and those that only compute its cos/sin cache differently."""
    found, waiting = [], [RotaryEmbedding]
    while waiting:
        cls = waiting.pop()
        waiting.extend(cls.__subclasses__())
        same_call = cls.forward is RotaryEmbedding.forward
        if same_call and cls.forward_native is RotaryEmbedding.forward_native:
            found.append(cls)
    return found


class ReplacedProduct(UnquantizedLinearMethod):
    """An unquantised layer whose x @ weight is computed by `product(x, bias)`.

    Of a type of its own: SGLang's logits processor goes past the method where it knows its type.
    """

    def __init__(self, product: Callable[[Tensor, Tensor | None], Tensor]) -> None:
        super().__init__()
        self.product = product

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.product(x, bias)


class ReplacedHeadProduct(UnquantizedEmbeddingMethod):
    """The same for an LM head, which may be the embedding too."""

    def __init__(self, product: Callable[[Tensor, Tensor | None], Tensor]) -> None:
        super().__init__()
        self.product = product

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.product(x, bias)


PLAIN_METHODS = (
    UnquantizedLinearMethod,
    UnquantizedEmbeddingMethod,
    ReplacedProduct,
    ReplacedHeadProduct,
)


def plain_linears(model: nn.Module) -> list[nn.Module]:
    """Linear layers and the LM head, where their weight is plain; replaced before or not.

    With --enable-fp32-lm-head SGLang computes the logits past the head's method: it stays.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    found = {id(m): m for m in modules.values() if isinstance(m, LinearBase)}
    head = modules.get("lm_head")  # the embedding itself, where they are tied
    if isinstance(head, VocabParallelEmbedding) and not get_exec().features.enable_fp32_lm_head:
        found[id(head)] = head
    return [module for module in found.values() if type(module.quant_method) in PLAIN_METHODS]


def replace_product(layer: nn.Module, product: Callable[[Tensor, Tensor | None], Tensor]) -> None:
    head = isinstance(layer, VocabParallelEmbedding)
    layer.quant_method = (ReplacedHeadProduct if head else ReplacedProduct)(product)


def has_replaced_products(model: nn.Module) -> bool:
    modules = model.modules()
    return any(type(getattr(m, "quant_method", None)) is ReplacedProduct for m in modules)


def after_weight_updates(refresh) -> None:
    """`refresh(model)` whenever a running server's weights have been changed."""

    def hook(result, updater, *args, **kwargs):
        refresh(updater.get_model())

    for name in WEIGHT_UPDATES:
        HookRegistry.register(f"{WEIGHT_UPDATER}.{name}", hook, HookType.AFTER)
    HookRegistry.apply_hooks()
