"""What a single request may not ask for yet: refused at admission, with the reason (HTTP 400)."""

from __future__ import annotations

from typing import Any

_LATER = "not supported by sglang-dspark yet; leave it out, or serve without speculation"


def refuse_request(req: Any, enable_overlap: bool) -> str | None:
    """REPLACE `validate_dflash_request`: the reason to refuse `req`, or None to serve it.

    Everything listed here would change the target distribution or the result in a way that the
    worker does not reproduce; serving it all the same would be silently wrong text.
    """
    params = req.sampling_params
    asked = {
        "frequency_penalty": params.frequency_penalty != 0.0,
        "presence_penalty": params.presence_penalty != 0.0,
        "repetition_penalty": params.repetition_penalty != 1.0,
        "min_new_tokens": params.min_new_tokens > 0,
        "logit_bias": bool(params.logit_bias),
        "json_schema": params.json_schema is not None,
        "regex": params.regex is not None,
        "ebnf": params.ebnf is not None,
        "structural_tag": params.structural_tag is not None,
        "beam_width": (params.beam_width or 1) > 1,
        "watermark": params.watermark is not None,
        "custom_params": bool(params.custom_params),
        "custom_logit_processor": req.custom_logit_processor is not None,
        "return_logprob (logprobs, top_logprobs)": req.return_logprob,
        "return_hidden_states": req.return_hidden_states,
        "return_sampling_mask": req.return_sampling_mask,
        "input_embeds": req.input_embeds is not None,
        "lora_path": req.lora_id is not None,
        "image_data, audio_data (multimodal input)": req.multimodal_inputs is not None,
    }
    refused = [name for name, given in asked.items() if given]
    return f"{', '.join(refused)}: {_LATER}." if refused else None
