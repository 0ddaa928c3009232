"""The draft as a model that SGLang's runner can hold: our backbone, its attention, its KV pool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.layers.rotary_embedding import get_rope
from torch import Tensor, nn
from torch.nn.functional import embedding

from sglang_dspark.draft.backbone import Backbone
from sglang_dspark.draft.checkpoint import DraftConfig, read_draft_config
from sglang_dspark.draft.heads import (
    ConfidenceHead,
    MarkovHead,
    build_confidence_head,
    build_markov_head,
)
from sglang_dspark.draft.target import TargetShape
from sglang_dspark.draft.weights import check_same_target, load_draft_weights
from sglang_dspark.ops.packed import Product


class DraftModel(nn.Module):
    """Model class of the architecture name that `draft_config.get_config` writes.

    SGLang builds it and calls `load_weights`; the weights themselves are loaded by `attach`, once
    the target's embedding and LM head are known.
    """

    markov_head: MarkovHead
    confidence_head: ConfidenceHead | None

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        self.draft: DraftConfig = read_draft_config(config._name_or_path)
        self.attention = nn.ModuleList(
            RadixAttention(
                num_heads=self.draft.num_heads,
                head_dim=self.draft.head_dim,
                scaling=self.draft.head_dim**-0.5,
                num_kv_heads=self.draft.num_kv_heads,
                layer_id=layer,
                # Rows of a block see each other in both directions.
                attn_type=AttentionType.ENCODER_ONLY,
                prefix=f"layers.{layer}.self_attn.attn",
            )
            for layer in range(self.draft.num_layers)
        )
        # Holds device and dtype of the model that SGLang's loader asks for.
        self._like = nn.Parameter(torch.empty(0), requires_grad=False)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Called by SGLang's loader; see the class docstring."""

    def attach(self, target: TargetShape, embed: Tensor, lm_head: Product) -> str | None:
        """Load the checkpoint strictly and share the target's matrices.

        embed: [at least V, H], the target's own storage; lm_head: the target's own product, rows
        [n, H] -> logits [n, at least V]. Returns a warning for a draft that was trained for a
        relative of this target.

        Raises:
            CheckpointError: a tensor is missing, left over or of the wrong shape, or the draft
                was trained for an unrelated target.
        """
        warning = check_same_target(self.draft, embed)
        dtype, device = self._like.dtype, self._like.device
        weights = load_draft_weights(self.draft, target, dtype=dtype, device=device)
        self.backbone = Backbone(self.draft, weights, self._rope_table())
        self.markov_head = build_markov_head(self.draft, weights)
        self.confidence_head = build_confidence_head(self.draft, weights)
        self._embed, self._lm_head, self._vocab_size = embed, lm_head, target.vocab_size
        return warning

    def _rope_table(self) -> Tensor:
        """[positions, D] float32: cosines, then sines."""
        draft = self.draft
        rope = get_rope(
            draft.head_dim,
            rotary_dim=draft.head_dim,
            max_position=draft.max_position_embeddings,
            base=draft.rope_theta,
            rope_scaling=None if draft.rope_scaling is None else dict(draft.rope_scaling),
            dtype=torch.float32,
        )
        return rope.cos_sin_cache.to(self._like.device)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        forward_batch: Any,
        input_embeds: Tensor | None = None,
        **_: Any,
    ) -> LogitsProcessorOutput:
        """One block of every request: ids and positions [rows] -> hidden states [rows, H]."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self.attention[layer](q, k, v, forward_batch)

        hidden = self.backbone.block(embedding(input_ids, self._embed), positions, attend)
        return LogitsProcessorOutput(next_token_logits=None, hidden_states=hidden)

    def base_logits(self, hidden: Tensor) -> Tensor:
        """U_k before the Markov bias: [rows, H] -> float32 [rows, V]."""
        return self._lm_head(hidden)[:, : self._vocab_size].float()


EntryClass = DraftModel
