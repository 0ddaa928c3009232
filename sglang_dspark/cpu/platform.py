"""Stock SGLang on a machine with no accelerator: device answers and argument defaults."""

from __future__ import annotations

from sglang_dspark.cpu import memory, pool_size, threads
from sglang_dspark.seam import cpu_platform as seam


def _create_attention_backend(model_runner):
    from sglang_dspark.cpu.backend import CpuAttentionBackend

    return CpuAttentionBackend(model_runner)


class CpuPlatform(seam.CpuDeviceMixin, seam.SRTPlatform):
    """Out-of-tree platform on torch's CPU device; everything runs eagerly, without Triton."""

    _enum = seam.PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = seam.PlatformCapabilities()

    def get_device(self, device_id: int | None = 0) -> str:
        # SGLang calls `.split(":")` on the answer, so a torch.device is not enough.
        return "cpu"

    def apply_server_args_defaults(self, server_args) -> None:
        """Fill in what the user left open; an explicit flag always wins."""
        asked = seam.user_input(server_args)
        if asked["attention_backend"] is None:  # per-phase flags, where given, go before it
            server_args.attention_backend = seam.ATTENTION_BACKEND
        if asked["dtype"] == "auto" and seam.checkpoint_is_fp32(server_args):
            # SGLang would round to float16, which CPUs only emulate.
            server_args.dtype = "float32"
        if asked["max_running_requests"] is None:
            server_args.max_running_requests = pool_size.DEFAULT_RUNNING_REQUESTS
        if asked["max_total_tokens"] is None and asked["mem_fraction_static"] is None:
            server_args.max_total_tokens = pool_size.default_pool_tokens(
                *seam.kv_shape(server_args), server_args.max_running_requests
            )

    def get_default_attention_backend(self) -> str:
        return seam.ATTENTION_BACKEND

    def get_default_speculative_draft_attention_backend(self, algorithm: str) -> str:
        return seam.ATTENTION_BACKEND

    def supports_speculative_draft_attention_backend(self, algorithm: str, backend: str) -> bool:
        return backend == seam.ATTENTION_BACKEND

    def supports_speculative_algorithm(self, algorithm: str) -> bool:
        return algorithm == "DSPARK"

    def get_dispatch_key_name(self) -> str:
        return seam.ATTENTION_BACKEND

    def get_kv_pool_cls(self, *, kind: str) -> type | None:
        from sglang_dspark.seam.cpu_pool import CpuKVPool

        return CpuKVPool if kind == "mha" else None

    def init_backend(self) -> None:
        """Called in each worker process, when the model runner module is imported."""
        from sglang_dspark.cpu import layers
        from sglang_dspark.seam import cpu_layers

        threads.set_default_threads()
        memory.keep_freed_memory()
        seam.register_attention_backend(_create_attention_backend)
        cpu_layers.register_forwards(
            self.get_dispatch_key_name(),
            rms_norm=layers.rms_norm_forward,
            silu_and_mul=layers.silu_and_mul_forward,
            rotary=layers.rotary_forward,
        )
        cpu_layers.after_weight_updates(self.post_load_model)

    def post_load_model(self, model) -> None:
        from sglang_dspark.cpu.linear import pack_model

        pack_model(model)
