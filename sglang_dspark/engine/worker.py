"""The DSpark worker: one decode step is draft -> plan -> verify -> accept -> commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from sglang_dspark import __version__
from sglang_dspark.engine.info import present_settings
from sglang_dspark.engine.metrics import StepMetrics
from sglang_dspark.engine.modes import MODES, WHOLE_BLOCK, Choice, Static, VerifyMode
from sglang_dspark.engine.planner import LaunchedStep, Spent, StepPlanner
from sglang_dspark.engine.ranks import Ranks, SoleRank
from sglang_dspark.engine.reference import ReferenceWork
from sglang_dspark.engine.requests import RequestSeeds
from sglang_dspark.engine.rules import GreedyRule, Noise, Requested, Rule, SampledRule, Verified
from sglang_dspark.engine.setup import set_up
from sglang_dspark.engine.steering import Steering, SteeringError
from sglang_dspark.engine.trace import TraceFolder
from sglang_dspark.ops.accept import Accepted
from sglang_dspark.ops.allocate import allocate
from sglang_dspark.ops.markov import DraftBlock, sample_block
from sglang_dspark.ops.noise import BlockNoise, CoupledNoise
from sglang_dspark.ops.survival import survivals_of_logits
from sglang_dspark.seam.batch import HostCopy, batch_slots, context_tokens
from sglang_dspark.seam.exporter import Exporter, metrics_enabled
from sglang_dspark.seam.sampling import read_params
from sglang_dspark.seam.target import TargetRows, prefill_positions
from sglang_dspark.seam.window import Window
from sglang_dspark.seam.worker_base import (
    Publish,
    WorkerBase,
    decode_result,
    prefill_result,
    publish_nothing,
)
from sglang_dspark.settings import load_settings

logger = logging.getLogger(__name__)

EXPORT_EVERY = 16  # decode steps between updates of the metrics page


class DSparkWorker(WorkerBase):
    """Serves `--speculative-algorithm DSPARK`."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        self._settings = load_settings()
        self._metrics = StepMetrics(self.gamma)
        self._noise = Noise(
            BlockNoise(self.gamma, self.device), CoupledNoise(self.vocab_size, self.device)
        )
        self._random_seed = target_worker.random_seed
        self._ranks: Ranks = SoleRank()  # --tp-size above 1 is refused at start
        self._control_error: str | None = None
        self._step_end_s: float | None = None  # of the last decode step; None after a prefill
        self._prefilled = False  # since the last decode step
        self._reference = ReferenceWork()
        self._exporter = Exporter() if metrics_enabled() else None
        if self.draft_warning:
            logger.warning("sglang-dspark: %s", self.draft_warning)

    def alloc_memory_pool(self, *args: Any, **kwargs: Any) -> None:
        super().alloc_memory_pool(*args, **kwargs)
        self._seeds = RequestSeeds(self.num_request_slots, self._random_seed, self.device)

    def init_cuda_graphs(self) -> None:
        """SGLang's last call before serving: everything that steps need is in place."""
        super().init_cuda_graphs()
        self._mode: VerifyMode = Static()  # while a cost table is measured
        self._setup = set_up(self, self._settings)
        self._metrics.clear()
        self._plans = StepPlanner(
            self.gamma,
            self.num_request_slots,
            2 if self.overlaps else 1,
            self._setup.steering,
            algorithm_1=self._settings.scheduler == "algorithm-1",
        )
        self._traces = self._trace_folder()
        self._apply(self._setup.steering)
        self._log_summary()

    def _trace_folder(self) -> TraceFolder:
        header = {
            "worker": __version__,
            "gamma": self.gamma,
            "lag": 2 if self.overlaps else 1,
            "max_requests": self.max_requests,
            "server": asdict(self._setup.server),
        }
        return TraceFolder(self._settings.trace, header)

    def _log_summary(self) -> None:
        draft, steering = self.draft_runner.model.draft, self._setup.steering
        logger.info(
            "sglang-dspark %s serves DSPARK: draft=%s gamma=%d (trained %d) markov=%s rank %d, "
            "verify mode=%s (%s), cost table=%s, no_draft=%s, draft attention=%s",
            __version__,
            draft.path,
            self.gamma,
            draft.gamma,
            draft.markov_head_type,
            draft.markov_rank,
            steering.mode,
            self._setup.mode_reason,
            steering.table_name,
            steering.no_draft.mode,
            self.draft_runner.attention_backend,
        )

    def prefill(self, batch: Any, publish: Publish) -> Any:
        """Run prompt rows, keep their draft KV, draw the first token of each request."""
        slots, positions = batch.out_cache_loc, prefill_positions(batch)
        self._step_end_s, self._prefilled = None, True  # the next gap holds a prefill
        self._seeds.admit(batch.reqs, batch.req_pool_indices)
        rows = self.target.prefill(batch)
        # Keyed by the last prompt position: the drawn token becomes the first anchor.
        first_tokens = self._rule(batch, batch.seq_lens - 1, 0).draw(rows.logits)
        publish(batch.seq_lens)
        self.draft_runner.write_context(rows.features, positions, slots)
        return prefill_result(rows, first_tokens, batch.seq_lens)

    def decode(self, batch: Any, publish: Publish) -> Any:
        """One step of every running request, with a drafted block or as plain decode."""
        gap_ms = self._gap_ms(len(batch.reqs))
        step = self._plans.take()
        if step is None:  # without overlap SGLang does not ask for a plan beforehand
            self._prepare(batch)
            step = self._plans.take()
        step.gap_ms, step.follows_prefill = gap_ms, self._prefilled
        self._prefilled = False
        self._metrics.note_launch(step)
        step.result = self.run_step(batch, step, publish)
        if self.is_synchronous:  # elsewhere the host's time hides behind the device's
            if self._traces.times_reference:  # part of no step, and of no gap between two
                step.reference_ms = self._reference.time_ms()
            self._step_end_s = time.perf_counter()
            self._plans.note_time(step, step.spent.worker_ms)
        return step.result

    def run_step(self, batch: Any, step: LaunchedStep, publish: Publish = publish_nothing) -> Any:
        """Carry out a planned step."""
        run = self._speculate if step.plan.drafts else self._advance
        before = self._metrics.seconds
        with self._metrics.time("step"):
            result = run(batch, step, publish)
        after = self._metrics.seconds
        step.spent = Spent(*((after[p] - before[p]) * 1e3 for p in ("draft", "verify", "step")))
        return result

    def _gap_ms(self, num_requests: int) -> float | None:
        """The engine's time since the last decode step; None after a prefill."""
        if self._step_end_s is None:
            return None
        gap_ms = (time.perf_counter() - self._step_end_s) * 1e3
        self._plans.host.add(num_requests, gap_ms)
        return gap_ms

    def _prepare(self, batch: Any, future_map: Any = None) -> None:
        """SGLang's budget-prepare call, made before the forward of every batch under overlap."""
        if batch.forward_mode.is_decode():
            self._plans.prepare(*batch_slots(batch), context_tokens(batch))

    def get_confidence_budget_prepare(self) -> Any:
        return self._prepare

    def _speculate(self, batch: Any, step: LaunchedStep, publish: Publish) -> Any:
        anchors, seq_lens = batch.spec_info.bonus_tokens, batch.seq_lens
        num_drafts = step.plan.width
        window = self.windows.build(batch, num_drafts + 1)
        rule = self._rule(batch, seq_lens, num_drafts)
        block, hidden = self._draft(batch, anchors, window, rule, num_drafts)
        choice = self._choose(step, block, hidden, anchors)
        ids = torch.cat([anchors.unsqueeze(1), block.tokens], 1)
        with self._metrics.time("verify"):
            rows = self.target.verify(batch, ids, window, choice.layout)
        accepted = rule.accept(block, Verified(rows.logits, choice.layout, choice.draft_lens))
        ceiling = self._mode.ceiling(rule, block, rows.logits)
        windows = choice.draft_lens
        if windows is None and self._mode.schedules:  # for SGLang's counts
            windows = torch.full_like(anchors, num_drafts)
        return self._commit(rows, block.tokens, accepted, seq_lens, publish, windows, ceiling)

    def _choose(
        self, step: LaunchedStep, block: DraftBlock, hidden: Tensor, anchors: Tensor
    ) -> Choice:
        """Which drafts fill the budget: the best survivals of this very block."""
        if not self._mode.schedules:
            return WHOLE_BLOCK
        previous = torch.cat([anchors.unsqueeze(1), block.tokens[:, :-1]], 1)
        logits = self.draft_runner.model.confidence_head.logits(hidden, previous)
        survival = survivals_of_logits(logits, self._temperatures)  # [bs, g]
        if step.plan.reason == "algorithm-1":  # synchronous: the budget needs this block
            self._plans.admit(step, survival.cpu().numpy())
        if self._traces.is_open:
            step.confidence_logits = HostCopy(logits)
        if step.plan.num_rows == logits.numel() + len(anchors):  # every row of every request
            self._plans.note_confidence(step, HostCopy(survival), None)
            return WHOLE_BLOCK
        # The budget is always used up, so the host knows the number of rows without asking.
        draft_lens = self._ranks.bind(allocate(survival, step.plan.budget))
        self._plans.note_confidence(step, HostCopy(survival), HostCopy(draft_lens))
        return Choice(draft_lens, self._mode.layout(draft_lens, step.plan.num_rows))

    def _advance(self, batch: Any, step: LaunchedStep, publish: Publish) -> Any:
        """The no-draft form: one row per request, draft KV kept complete."""
        anchors, seq_lens = batch.spec_info.bonus_tokens, batch.seq_lens
        window = self.windows.build(batch, 1)
        rule = self._rule(batch, seq_lens, 0)
        ids = anchors.unsqueeze(1)
        with self._metrics.time("verify"):
            rows = self.target.verify(batch, ids, window, None)
        accepted = Accepted(torch.zeros_like(anchors), rule.draw(rows.logits))
        # SGLang's count of verified rows: a window of no drafts.
        draft_lens = accepted.accepted if self._mode.schedules else None
        return self._commit(rows, ids[:, :0], accepted, seq_lens, publish, draft_lens)

    def _draft(
        self, batch: Any, anchors: Tensor, window: Window, rule: Rule, num_drafts: int
    ) -> tuple[DraftBlock, Tensor]:
        """Propose x_1..x_g of every request; their hidden states [bs, g, H] beside them."""
        model, bs = self.draft_runner.model, anchors.shape[0]
        with self._metrics.time("draft"):
            hidden = self.draft_runner.forward(batch, anchors, window, num_drafts)
            logits = model.base_logits(hidden)
        hidden = hidden.view(bs, num_drafts, -1)
        block = sample_block(
            logits.view(bs, num_drafts, -1),
            hidden,
            anchors,
            model.markov_head,
            rule.chooser(num_drafts),
        )
        return replace(block, tokens=self._ranks.bind(block.tokens)), hidden

    def _commit(
        self,
        rows: TargetRows,
        drafts: Tensor,  # [bs, g]
        accepted: Accepted,
        seq_lens: Tensor,  # [bs] committed before this step
        publish: Publish,
        draft_lens: Tensor | None = None,
        ceiling: Tensor | None = None,
    ) -> Any:
        """Publish the new lengths, write draft KV, lay out the committed tokens."""
        accepted = Accepted(
            self._ranks.bind(accepted.accepted), self._ranks.bind(accepted.next_token)
        )
        num_committed = accepted.accepted + 1
        new_seq_lens = seq_lens + num_committed
        publish(new_seq_lens)
        # Rows past the accepted ones are written too: they lie beyond the committed length and
        # are overwritten before anything reads them. Without drafts nothing reads the draft KV.
        # A graph's outputs do not outlast the step.
        runner, waits = self.draft_runner, not drafts.shape[1] and not rows.used_graph
        write = runner.keep_context if waits else runner.write_context
        write(rows.features, rows.positions, rows.slots)
        next_token = accepted.next_token.unsqueeze(1)
        tokens = torch.cat([drafts, next_token], 1)
        tokens.scatter_(1, accepted.accepted.unsqueeze(1), next_token)
        return decode_result(
            rows,
            tokens,
            num_committed,
            accepted.next_token,
            new_seq_lens,
            draft_lens=draft_lens,
            ceiling=ceiling,
        )

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
        done = self._plans.note_finished(num_correct_drafts_per_req)
        if done is None:
            return
        self._metrics.note_finished(done)
        self._traces.add(done)
        if self._exporter is not None and done.step.batch.step % EXPORT_EVERY == 0:
            self._exporter.update(self._metrics.snapshot(self._plans.live))

    def clear_cache_pool(self) -> None:
        """SGLang flushed its caches."""
        self._plans.flush()

    def steer(self, request: Mapping[str, Any]) -> None:
        """Change settings between steps.

        Raises:
            SteeringError: a value that cannot take effect; nothing was changed.
        """
        self._apply(self._plans.steering.changed(request, self._setup.prepared))

    def try_steer(self, request: Mapping[str, Any]) -> bool:
        """`steer` for the control endpoint: a refusal is kept for the answer."""
        try:
            self.steer(request)
        except SteeringError as error:
            self._control_error = str(error)
            return False
        self._control_error = None
        return True

    def set_dspark_forced_budget_frac(self, frac: float | None) -> None:
        """SGLang's own switch for a pinned budget, used by its profiler."""
        self.steer({"dspark_budget_fraction": frac})

    def _apply(self, steering: Steering) -> None:
        if steering.trace != self._plans.steering.trace:
            self._traces.switch(steering.trace)
        self._mode = MODES[steering.mode]()
        temperatures = steering.calibration.temperatures
        calibrated = any(t != 1.0 for t in temperatures)
        self._temperatures = torch.tensor(temperatures, device=self.device) if calibrated else None
        self._plans.steer(steering)

    def dump_info_records(self) -> dict[str, Any]:
        """Shown by `/server_info` as `dspark_info_record`."""
        numbers = self._metrics.snapshot(self._plans.live)
        return present_settings(self._setup, self._plans, self._control_error) | numbers

    def clear_info_records(self) -> None:
        self._metrics.clear()
