"""The DSpark worker: one decode step is draft -> plan -> verify -> accept -> commit."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from sglang_dspark import __version__
from sglang_dspark.engine.metrics import StepMetrics
from sglang_dspark.engine.modes import Static, VerifyMode
from sglang_dspark.engine.planner import build_planner
from sglang_dspark.engine.requests import RequestSeeds
from sglang_dspark.engine.rules import GreedyRule, Noise, Requested, Rule, SampledRule, Verified
from sglang_dspark.ops.accept import Accepted
from sglang_dspark.ops.markov import DraftBlock, sample_block
from sglang_dspark.ops.noise import BlockNoise, CoupledNoise
from sglang_dspark.seam.sampling import read_params
from sglang_dspark.seam.target import TargetRows, prefill_positions
from sglang_dspark.seam.window import Window
from sglang_dspark.seam.worker_base import Publish, WorkerBase, decode_result, prefill_result
from sglang_dspark.settings import load_settings

logger = logging.getLogger(__name__)


class DSparkWorker(WorkerBase):
    """Serves `--speculative-algorithm DSPARK`."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        settings = load_settings()
        self._mode: VerifyMode = Static()
        self._planner = build_planner(settings.no_draft, self.gamma)
        self._metrics = StepMetrics(self.gamma)
        self._noise = Noise(
            BlockNoise(self.gamma, self.device), CoupledNoise(self.vocab_size, self.device)
        )
        self._random_seed = target_worker.random_seed
        self._seeds: RequestSeeds | None = None  # needs the request table, made later
        draft = self.draft_runner.model.draft
        logger.info(
            "sglang-dspark %s serves DSPARK: draft=%s gamma=%d (trained %d) markov=%s rank %d, "
            "verify mode=%s, no_draft=%s, draft attention=%s",
            __version__,
            draft.path,
            self.gamma,
            draft.gamma,
            draft.markov_head_type,
            draft.markov_rank,
            self._mode.name,
            settings.no_draft.mode,
            self.draft_runner.attention_backend,
        )
        if self.draft_warning:
            logger.warning("sglang-dspark: %s", self.draft_warning)

    def alloc_memory_pool(self, *args: Any, **kwargs: Any) -> None:
        super().alloc_memory_pool(*args, **kwargs)
        self._seeds = RequestSeeds(self.num_request_slots, self._random_seed, self.device)

    def prefill(self, batch: Any, publish: Publish) -> Any:
        """Run prompt rows, keep their draft KV, draw the first token of each request."""
        slots, positions = batch.out_cache_loc, prefill_positions(batch)
        self._seeds.admit(batch.reqs, batch.req_pool_indices)
        rows = self.target.prefill(batch)
        # Keyed by the last prompt position: the drawn token becomes the first anchor.
        first_tokens = self._rule(batch, batch.seq_lens - 1, 0).draw(rows.logits)
        publish(batch.seq_lens)
        self.draft_runner.write_context(rows.features, positions, slots)
        return prefill_result(rows, first_tokens, batch.seq_lens)

    def decode(self, batch: Any, publish: Publish) -> Any:
        """One step of every running request, with a drafted block or as plain decode."""
        plan = self._planner.plan()
        self._metrics.note_step(plan.num_drafts > 0)
        step = self._speculate if plan.num_drafts else self._advance
        with self._metrics.time("step"):
            return step(batch, plan.num_drafts, plan.budget, publish)

    def _speculate(
        self, batch: Any, num_drafts: int, budget: int | None, publish: Publish
    ) -> Any:
        anchors, seq_lens = batch.spec_info.bonus_tokens, batch.seq_lens
        window = self.windows.build(batch, num_drafts + 1)
        rule = self._rule(batch, seq_lens, num_drafts)
        block = self._draft(batch, anchors, window, rule, num_drafts)
        choice = self._mode.choose(None, budget)
        ids = torch.cat([anchors.unsqueeze(1), block.tokens], 1)
        with self._metrics.time("verify"):
            rows = self.target.verify(batch, ids, window, choice.layout)
        accepted = rule.accept(block, Verified(rows.logits, choice.layout, choice.draft_lens))
        return self._commit(rows, block.tokens, accepted, seq_lens, publish)

    def _advance(self, batch: Any, num_drafts: int, budget: int | None, publish: Publish) -> Any:
        """The no-draft form: one row per request, draft KV kept complete."""
        anchors, seq_lens = batch.spec_info.bonus_tokens, batch.seq_lens
        window = self.windows.build(batch, 1)
        rule = self._rule(batch, seq_lens, 0)
        ids = anchors.unsqueeze(1)
        with self._metrics.time("verify"):
            rows = self.target.verify(batch, ids, window, None)
        accepted = Accepted(torch.zeros_like(anchors), rule.draw(rows.logits))
        return self._commit(rows, ids[:, :0], accepted, seq_lens, publish)

    def _draft(
        self, batch: Any, anchors: Tensor, window: Window, rule: Rule, num_drafts: int
    ) -> DraftBlock:
        """Propose x_1..x_g of every request."""
        model, bs = self.draft_runner.model, anchors.shape[0]
        with self._metrics.time("draft"):
            hidden = self.draft_runner.forward(batch, anchors, window, num_drafts)
            logits = model.base_logits(hidden)
        return sample_block(
            logits.view(bs, num_drafts, -1),
            hidden.view(bs, num_drafts, -1),
            anchors,
            model.markov_head,
            rule.chooser(num_drafts),
        )

    def _commit(
        self,
        rows: TargetRows,
        drafts: Tensor,  # [bs, g]
        accepted: Accepted,
        seq_lens: Tensor,  # [bs] committed before this step
        publish: Publish,
    ) -> Any:
        """Publish the new lengths, write draft KV, lay out the committed tokens."""
        num_committed = accepted.accepted + 1
        new_seq_lens = seq_lens + num_committed
        publish(new_seq_lens)
        # Rows past the accepted ones are written too: they lie beyond the committed length and
        # are overwritten before anything reads them.
        self.draft_runner.write_context(rows.features, rows.positions, rows.slots)
        next_token = accepted.next_token.unsqueeze(1)
        tokens = torch.cat([drafts, next_token], 1)
        tokens.scatter_(1, accepted.accepted.unsqueeze(1), next_token)
        return decode_result(rows, tokens, num_committed, accepted.next_token, new_seq_lens)

    def _rule(self, batch: Any, anchors: Tensor, num_drafts: int) -> Rule:
        """The law of this step; anchors [bs] are the positions that key its noise."""
        params = read_params(batch)
        if params.all_greedy:
            return GreedyRule()
        slots = batch.req_pool_indices
        any_coupled = any(r.sampling_params.sampling_seed is not None for r in batch.reqs)
        return SampledRule(
            Requested(
                temperature=params.temperature,
                greedy=params.greedy,
                coupled=self._seeds.coupled(slots) if any_coupled else None,
                filters=params.filters,
            ),
            seeds=self._seeds.seeds(slots),
            anchors=anchors,
            noise=self._noise,
            num_drafts=num_drafts,
            vocab_size=self.vocab_size,
        )

    def on_verify_complete_cpu(
        self, num_correct_drafts_per_req: list[int], batch_size: int = 0
    ) -> None:
        self._metrics.note_accepted(num_correct_drafts_per_req)

    def dump_info_records(self) -> dict[str, Any]:
        """Shown by `/server_info` as `dspark_info_record`."""
        return {
            "worker": f"sglang-dspark {__version__}",
            "gamma": self.gamma,
            "mode": self._mode.name,
            **self._metrics.snapshot(),
        }

    def clear_info_records(self) -> None:
        self._metrics.clear()
