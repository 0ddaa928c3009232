"""What SGLang's scheduler expects of a speculative worker, apart from the step itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.runtime_context import get_exec, get_schedule, get_spec
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from torch import Tensor

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

    # Members that only the in-tree worker gives a meaning to.
    def get_confidence_budget_prepare(self) -> None:
        return None

    def block_accept_estimate_log_suffix(self) -> None:
        return None

    def set_dspark_forced_budget_frac(self, frac: float | None) -> None:
        if frac is not None:
            raise ValueError("a pinned budget needs verify mode compact or cap-accept")

    def forward_batch_generation(
        self,
        batch: Any,
        on_publish: Publish | None = None,
        grammar_barrier: Any = None,
        *,
        pp_proxy_tensors: Any = None,
    ) -> GenerationBatchResult:
        """One scheduler step: idle, prefill or decode."""
        publish = on_publish or _publish_nothing
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


def _publish_nothing(new_seq_lens: Tensor) -> None:
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
    rows: Any, tokens: Tensor, num_committed: Tensor, next_anchors: Tensor, seq_lens: Tensor
) -> GenerationBatchResult:
    """Result of a decode step: tokens [bs, width], of which the first num_committed [bs] count."""
    return GenerationBatchResult(
        logits_output=rows.output,
        next_token_ids=tokens.flatten(),
        accept_lens=num_committed.to(torch.int32),
        can_run_cuda_graph=rows.used_graph,
        next_draft_input=anchor_state(next_anchors, seq_lens),
        speculative_num_draft_tokens=tokens.shape[1],
        new_seq_lens=seq_lens,
    )
