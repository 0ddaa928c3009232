"""Our reading of the draft's configuration, in every place where SGLang reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.runtime_context import get_spec

from sglang_dspark.draft.checkpoint import read_draft_config
from sglang_dspark.draft.target import TargetShape, check_against_target

# Our own name, because SGLang has classes of its own under DeepSpec's.
DRAFT_ARCHITECTURE = "SGLangDSparkDraft"
DEEPSPEC_ARCHITECTURES = frozenset({"Qwen3DSparkModel"})


def get_config(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """AROUND `get_config`: a DeepSpec draft's configuration points to our model class."""
    config = original(*args, **kwargs)
    if set(getattr(config, "architectures", None) or ()) & DEEPSPEC_ARCHITECTURES:
        config.architectures = [DRAFT_ARCHITECTURE]
        _register_draft_model()
    return config


def _register_draft_model() -> None:
    # Imported late: the registry imports every model of SGLang.
    from sglang.srt.models.registry import ModelRegistry

    if DRAFT_ARCHITECTURE not in ModelRegistry.models:
        from sglang_dspark.seam.draft_model import DraftModel

        ModelRegistry.models[DRAFT_ARCHITECTURE] = DraftModel


def target_shape(model_config: Any) -> TargetShape:
    """What of the target a draft must agree with."""
    text = model_config.hf_text_config
    return TargetShape(
        path=model_config.model_path,
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        num_layers=text.num_hidden_layers,
        context_len=model_config.context_len,
        unlike=tuple(_unlike(model_config)),
    )


def _unlike(model_config: Any) -> Iterator[str]:
    """What of a target has not been tried with a draft, in the words of its configuration."""
    text = model_config.hf_text_config
    if model_config.is_multimodal:
        yield f"a multimodal model ({', '.join(model_config.hf_config.architectures)})"
    for name in ("num_experts", "n_routed_experts", "num_local_experts"):
        if getattr(text, name, None):
            yield f"a mixture of experts ({name}={getattr(text, name)})"
    if getattr(model_config.hf_config, "quantization_config", None):
        yield "quantised weights (quantization_config)"


def resolve_capture(
    *,
    config: Any,
    server_args: Any,
    model_config: Any,
    spec_algorithm: Any,
    is_draft_worker: bool,
) -> None:
    """REPLACE `_resolve_dflash_aux_hidden_state`: which target layers the target runner captures.

    Layer ids are outputs of decoder layers, 0-based (checkpoints: `target_layer_ids`).

    Raises:
        CheckpointError: the draft does not belong to this target.
    """
    if is_draft_worker or not spec_algorithm.is_dspark():
        return
    spec = get_spec()
    draft = read_draft_config(Path(spec.speculative_draft_model_path))
    check_against_target(draft, target_shape(model_config))
    config.dflash_use_aux_hidden_state = True
    config.dflash_draft_num_layers = draft.num_layers
    config.draft_kv_num_layers = draft.num_layers
    config.dflash_target_layer_ids = list(draft.capture_layer_ids)
    config.draft_model_config = ModelConfig.from_server_args(
        server_args,
        model_path=spec.speculative_draft_model_path,
        model_revision=spec.speculative_draft_model_revision,
        is_draft_model=True,
    )
