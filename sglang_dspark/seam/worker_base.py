"""What SGLang's scheduler expects of a speculative worker, apart from the step itself."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.runtime_context import (
    attention_backends,
    get_exec,
    get_parallel,
    get_schedule,
    get_spec,
)
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from torch import Tensor

from sglang_dspark.seam.cpu_layers import has_replaced_products
from sglang_dspark.seam.draft_runner import DraftRunner
from sglang_dspark.seam.records import AnchorState
from sglang_dspark.seam.target import Target
from sglang_dspark.seam.window import WindowBuilder

Publish = Callable[[Tensor], None]


class WorkerBase(BaseSpecWorker):
    """Life cycle and bookkeeping; subclasses give `prefill` and `decode`."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        super().__init__()
        self.server_args = server_args
        self.device = target_worker.device
        self.page_size = get_schedule().page_size
        self.model_runner = target_worker.model_runner
        self._target_worker = target_worker
        self.speculative_num_draft_tokens = int(get_spec().speculative_num_draft_tokens)
        self.gamma = self.speculative_num_draft_tokens - 1
        self.draft_runner = DraftRunner(server_args, gpu_id, nccl_port, target_worker, self.gamma)
        self._draft_worker = self.draft_runner.worker
        self.draft_warning = self.draft_runner.attach(target_worker)
        self.target = Target(target_worker)
        self.windows = WindowBuilder(self.model_runner, self.gamma + 1)

    # Set here and not found by delegation: SGLang reads them of any worker it drives.
    def __getattr__(self, name: str) -> Any:
        if name == "_target_worker":
            raise AttributeError(name)
        return getattr(self._target_worker, name)

    @property
    def spec_v2_attn_backends(self) -> tuple[Any, Any]:
        return (self.model_runner.attn_backend, self.draft_runner.attn_backend)

    def init_cuda_graphs(self) -> None:
        self._draft_worker.init_cuda_graphs(capture_decode_cuda_graph=False)

    @property
    def sampling_backend(self) -> str:
        """The backend whose filters a server without speculation would apply."""
        return get_exec().kernel.sampling_backend

    @property
    def vocab_size(self) -> int:
        """Width of the target's logits."""
        return int(self.model_runner.model_config.vocab_size)

    @property
    def num_request_slots(self) -> int:
        """Rows of the request table; every running request has one."""
        return int(self.model_runner.req_to_token_pool.req_to_token.shape[0])

    @property
    def is_synchronous(self) -> bool:
        """Whether a forward has ended when its call returns."""
        return torch.device(self.device).type == "cpu"

    def synchronize(self) -> None:
        """Wait for the device; nothing to wait for on a CPU."""
        if not self.is_synchronous:
            torch.get_device_module(self.device).synchronize()

    @property
    def max_requests(self) -> int:
        """Most requests that run at once."""
        return int(self.model_runner.max_running_requests)

    @property
    def context_len(self) -> int:
        """Most tokens of one request."""
        return int(self.model_runner.model_config.context_len)

    @property
    def identity(self) -> dict[str, Any]:
        """What a cost table must have been measured on."""
        config = self.model_runner.model_config
        return {
            "device": str(self.device),
            "dtype": str(config.dtype).removeprefix("torch."),
            "target": Path(config.model_path),
            "draft": self.draft_runner.model.draft.path,
            "gamma": self.gamma,
            "tp": int(get_parallel().tp_size),
            "engine": f"sglang {version('sglang')}",
            "attention": str(attention_backends()[1]),
        }

    @property
    def named_cost_table(self) -> str | None:
        """`--speculative-dspark-sps-table-path`."""
        return get_spec().speculative_dspark_sps_table_path

    @property
    def named_calibration(self) -> str | None:
        """`--speculative-dspark-confidence-sts-path`."""
        return get_spec().speculative_dspark_confidence_sts_path

    @property
    def packs_weights(self) -> bool:
        """Whether the target's products run on packed weights, at few row counts."""
        return has_replaced_products(self.model_runner.model)

    @property
    def captures_graphs(self) -> bool:
        """Whether SGLang records decode steps as graphs here."""
        return not str(self.device).startswith("cpu") and not self.server_args.disable_cuda_graph

    @property
    def overlaps(self) -> bool:
        """Whether SGLang plans a step before the one before it has ended."""
        return not get_schedule().disable_overlap_schedule

    # A member that only the in-tree worker gives a meaning to.
    def block_accept_estimate_log_suffix(self) -> None:
        return None

    def forward_batch_generation(
        self,
        batch: Any,
        on_publish: Publish | None = None,
        grammar_barrier: Any = None,
        *,
        pp_proxy_tensors: Any = None,
    ) -> GenerationBatchResult:
        """One scheduler step: idle, prefill or decode."""
        publish = on_publish or publish_nothing
        if batch.forward_mode.is_idle():
            return self._idle(publish)
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return self.prefill(batch, publish)
        return self.decode(batch, publish)

    def prefill(self, batch: Any, publish: Publish) -> GenerationBatchResult:
        raise NotImplementedError

    def decode(self, batch: Any, publish: Publish) -> GenerationBatchResult:
        raise NotImplementedError

    def _idle(self, publish: Publish) -> GenerationBatchResult:
        nothing = torch.empty(0, dtype=torch.int64, device=self.device)
        publish(nothing)
        return GenerationBatchResult(
            next_token_ids=nothing,
            accept_lens=nothing.int(),
            next_draft_input=anchor_state(nothing, nothing),
            speculative_num_draft_tokens=self.speculative_num_draft_tokens,
            new_seq_lens=nothing,
        )


def publish_nothing(new_seq_lens: Tensor) -> None:
    """Without overlap scheduling nobody waits for the lengths."""


def anchor_state(anchors: Tensor, seq_lens: Tensor) -> AnchorState:
    """What the next step starts from: anchors [bs] int64 and committed lengths [bs]."""
    return AnchorState(bonus_tokens=anchors.to(torch.int64), new_seq_lens=seq_lens.to(torch.int64))


def prefill_result(rows: Any, first_tokens: Tensor, seq_lens: Tensor) -> GenerationBatchResult:
    """Result of an extend batch: one token per request."""
    return GenerationBatchResult(
        logits_output=rows.output,
        next_token_ids=first_tokens,
        can_run_cuda_graph=rows.used_graph,
        next_draft_input=anchor_state(first_tokens, seq_lens),
        new_seq_lens=seq_lens,
    )


def decode_result(
    rows: Any,
    tokens: Tensor,
    num_committed: Tensor,
    next_anchors: Tensor,
    seq_lens: Tensor,
    *,
    draft_lens: Tensor | None = None,
    ceiling: Tensor | None = None,
) -> GenerationBatchResult:
    """Result of a decode step: tokens [bs, width], of which the first num_committed [bs] count.

    draft_lens: [bs] windows where they were scheduled; ceiling: [bs] drafts that the whole block
    would have committed (cap-accept).
    """
    return GenerationBatchResult(
        logits_output=rows.output,
        next_token_ids=tokens.flatten(),
        accept_lens=num_committed.to(torch.int32),
        cap_lens=None if draft_lens is None else (draft_lens + 1).to(torch.int32),
        block_accept_lens=None if ceiling is None else (ceiling + 1).to(torch.int32),
        can_run_cuda_graph=rows.used_graph,
        next_draft_input=anchor_state(next_anchors, seq_lens),
        speculative_num_draft_tokens=tokens.shape[1],
        new_seq_lens=seq_lens,
    )
