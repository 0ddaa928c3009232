"""`--speculative-algorithm DSPARK` on the command line: refuse early, then fill what is derived."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from sglang.srt.arg_groups.model_override_base import resolving_view
from sglang.srt.arg_groups.overrides import declare_resolution

from sglang_dspark.draft.checkpoint import read_draft_config, resolve_gamma
from sglang_dspark.settings import load_settings

logger = logging.getLogger(__name__)

MODE_VARIABLE = "SGLANG_RAGGED_VERIFY_MODE"
VERIFY_MODES = ("static", "compact", "cap-accept")
SUBFOLDER = "dspark"  # a draft shipped inside the target's folder


def resolve_arguments(server_args: Any) -> None:
    """REPLACE `_handle_dspark`: check the combination of options and set the derived ones.

    Raises:
        ValueError: an option that DSPARK here does not support, or a draft checkpoint that does
            not fit the options; the text names the option to change.
    """
    options = resolving_view(server_args)
    if reasons := unsupported(options, os.environ):
        raise ValueError("DSPARK cannot be served like this:\n  - " + "\n  - ".join(reasons))
    load_settings()  # refuse a wrong settings file here, not in a subprocess

    folder = draft_folder(options)
    draft = read_draft_config(folder)
    mode = os.environ.get(MODE_VARIABLE)
    if mode in ("compact", "cap-accept") and draft.confidence is None:
        raise ValueError(
            f"{MODE_VARIABLE}={mode} needs a draft with a confidence head, and {folder} has none: "
            "unset the variable, or give another draft with --speculative-draft-model-path"
        )
    if draft.confidence is None and (useless := _scheduling_flags(options)):
        raise ValueError(
            f"{', '.join(useless)}: no effect with {folder}, a draft without a confidence head; "
            "leave it out"
        )
    gamma = resolve_gamma(
        draft,
        block_size_flag=options.speculative_dspark_block_size,
        num_draft_tokens_flag=options.speculative_num_draft_tokens,
    )
    derived = {
        "speculative_draft_model_path": str(folder),
        "speculative_num_draft_tokens": gamma + 1,
        "speculative_num_steps": 1,
        "speculative_eagle_topk": 1,
    }
    if options.speculative_dspark_align_verify_tokens_to_graph_tier:
        logger.info("DSPARK: aligning windows to captured sizes is what this planner always does")
    if options.max_running_requests is None:
        derived["max_running_requests"] = 48
        logger.info("DSPARK: --max-running-requests is not given, 48 is used (SGLang's default)")
    declare_resolution(server_args, "sglang-dspark", **derived)


def draft_folder(options: Any) -> Path:
    """The local folder of the draft: the one named, else `dspark/` inside the target's folder.

    A Hugging Face repository id is resolved through the local cache (or downloaded by it).
    """
    named = options.speculative_draft_model_path
    if named is None:
        bundled = Path(options.model_path) / SUBFOLDER
        if (bundled / "config.json").is_file():
            return bundled
        raise ValueError(
            "--speculative-algorithm DSPARK needs a draft: give --speculative-draft-model-path, "
            f"or put the draft into {bundled}"
        )
    if Path(named).is_dir():
        return Path(named)
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            named,
            revision=options.speculative_draft_model_revision,
            cache_dir=options.download_dir,
            allow_patterns=["*.json", "*.safetensors"],
        )
    )


def unsupported(options: Any, environment: Any) -> list[str]:
    """Reasons why this combination of options and environment is refused; empty when it is fine.

    One line per reason, each naming the option to change. Pure: reads only its arguments.
    """
    given = {
        "--tp-size above 1": options.tp_size > 1,
        "--pp-size above 1": options.pp_size > 1,
        "--dp-size above 1 with attention data parallelism": options.enable_dp_attention,
        "--disaggregation-mode": options.disaggregation_mode != "null",
        "--enable-lora / --lora-paths": bool(options.enable_lora or options.lora_paths),
        "--enable-mixed-chunk": options.enable_mixed_chunk,
        "--enable-two-batch-overlap": options.enable_two_batch_overlap,
        "--enable-hierarchical-cache": options.enable_hierarchical_cache,
        "--enable-hisparse": options.enable_hisparse,
        "--enable-deterministic-inference": options.enable_deterministic_inference,
        "--enable-custom-logit-processor": options.enable_custom_logit_processor,
        "--enable-return-hidden-states": options.enable_return_hidden_states,
        "--speculative-use-block-verification": options.speculative_use_block_verification,
        "--speculative-draft-model-quantization": options.speculative_draft_model_quantization
        not in (None, "unquant"),
        "--quantization": options.quantization is not None,
        "--speculative-adaptive": options.speculative_adaptive,
    }
    reasons = [f"{name} is not supported yet; leave it out" for name, on in given.items() if on]
    if (options.speculative_num_steps or 1) != 1:
        reasons.append(
            f"--speculative-num-steps {options.speculative_num_steps}: DSPARK drafts a block in "
            "one step; leave it out"
        )
    if (options.speculative_eagle_topk or 1) != 1:
        reasons.append(
            f"--speculative-eagle-topk {options.speculative_eagle_topk}: DSPARK drafts a chain; "
            "leave it out"
        )
    captures = not options.device.startswith("cpu") and not options.disable_cuda_graph
    if environment.get(MODE_VARIABLE) == "static" or (
        captures and MODE_VARIABLE not in environment
    ):
        reasons += [
            f"{name} has no effect in verify mode static: set {MODE_VARIABLE}=compact or leave "
            "it out"
            for name in _scheduling_flags(options)
        ]
    if environment.get(MODE_VARIABLE) == "compact" and captures:
        reasons.append(
            f"{MODE_VARIABLE}=compact with captured decode graphs is not supported yet; add "
            "--disable-cuda-graph"
        )
    return reasons + _refused_environment(environment)


def _scheduling_flags(options: Any) -> list[str]:
    """Given flags that only a scheduling mode reads."""
    flags = {
        "--speculative-dspark-sps-table-path": options.speculative_dspark_sps_table_path,
        "--speculative-dspark-confidence-sts-path": options.speculative_dspark_confidence_sts_path,
    }
    return [name for name, value in flags.items() if value]


def _refused_environment(environment: Any) -> list[str]:
    reasons = []
    mode = environment.get(MODE_VARIABLE)
    if mode and mode not in VERIFY_MODES:
        reasons.append(f"{MODE_VARIABLE}={mode}: expected one of {', '.join(VERIFY_MODES)}")
    for name, value in sorted(environment.items()):
        if (
            name.startswith(("SGLANG_SIMULATE_ACC_", "SGLANG_DSPARK_"))
            and name not in OWN_VARIABLES
        ):
            reasons.append(f"{name}={value} steers SGLang's in-tree worker, not this one; unset it")
    return reasons


OWN_VARIABLES = frozenset({"SGLANG_DSPARK_CONFIG", "SGLANG_DSPARK_DISABLE"})
