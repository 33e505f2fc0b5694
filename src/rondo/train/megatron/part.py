"""A rank's part of a decoder as a GPTModel of Megatron-Core, and the conversion back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.nn.functional import silu

from rondo.base.errors import ConfigError
from rondo.models.architecture import Dense, Gqa, ModelConfig
from rondo.models.decoder import Decoder
from rondo.parallel.collectives import gather_equal
from rondo.parallel.layout.split import split
from rondo.train.megatron.cpu import without_cuda
from rondo.train.megatron.weights import table

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh

dist: Any = torch.distributed
"""torch.distributed as Any: its types are incomplete."""


class MegatronShard:
    """Parameters with Megatron-Core's names and shapes; `apart` and `fill` convert from and to the native ones."""

    def __init__(self, model: Decoder, mesh: Mesh | None = None) -> None:
        self.device = model.device if mesh is None else mesh.device
        self.group = None if mesh is None else mesh.tp
        self._over = None if mesh is None else mesh.states["tp"]
        self.rank, size = (0, 1) if mesh is None else (mesh.tp_rank, mesh.degrees.tp)
        self._splits = [split(model.config, rank, size) for rank in range(size)]
        self._split = self._splits[self.rank]
        rows = -(-model.config.vocab_size // size)
        _start(size, self.device)
        self.module = _gpt(model.config, size, rows * size, model.dtype).to(self.device)
        self.parameters: dict[str, nn.Parameter] = dict(self.module.named_parameters())
        self.table = table(self._split.config, rows)
        assert self.parameters.keys() == {fused.name for fused in self.table}
        self.fill(
            self.parameters, {name: self._own(name, p.detach()) for name, p in model.named_parameters()}
        )

    @property
    def vocabulary(self) -> slice:
        """Range of tokens for which this rank has logits."""
        cut = self._split.vocabulary
        return slice(cut.start, cut.stop)

    @property
    def counted_elsewhere(self) -> list[Tensor]:
        """Parameters replicated over tp, on all ranks but the first."""
        if self.rank == 0:
            return []
        whole = (fused for fused in self.table if self._split.cuts.keys().isdisjoint(fused.ours))
        return [self.parameters[fused.name] for fused in whole]

    def apart(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Splits tensors by Megatron-Core's names into this rank's parts by native names."""
        found: dict[str, Tensor] = {}
        for fused in self.table:
            if fused.name in tensors:
                found |= fused.apart(tensors[fused.name].detach())
        return found

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor], parts: Mapping[str, Tensor]) -> None:
        """Inverse of `apart`, in place."""
        for fused in self.table:
            fused.fill(tensors[fused.name], parts)

    def placed(self, name: str, own: Tensor) -> Tensor:
        """This rank's part of a tensor as a DTensor, with its offset in the whole."""
        cut = self._split.cuts.get(name)
        if cut is None or self._over is None or not own.ndim:
            return own
        from torch.distributed.tensor import DTensor, Shard

        shape = list(own.shape)
        shape[cut.dim] = sum(len(each.cuts[name]) for each in self._splits)
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            own, self._over, [Shard(cut.dim)], run_check=False, shape=torch.Size(shape), stride=stride
        )

    def gathered(self, parts: Mapping[str, Tensor], names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Gathers the ranks' parts, one tensor at a time; all ranks must pass the same names."""
        for name in names:
            yield name, self._gather(name, parts[name])

    def _own(self, name: str, whole: Tensor) -> Tensor:
        cut = self._split.cuts.get(name)
        return whole if cut is None else whole.narrow(cut.dim, cut.start, len(cut))

    def _gather(self, name: str, own: Tensor) -> Tensor:
        cut = self._split.cuts.get(name)
        if cut is None or self.group is None or not own.ndim:
            return own
        sizes = [len(each.cuts[name]) for each in self._splits]
        return gather_equal(own.movedim(cut.dim, 0), self.group, sizes).movedim(0, cut.dim)


def _start(tp: int, device: torch.device) -> None:
    """Creates Megatron-Core's process groups once per process. Nothing is random: there is no dropout, and weights are
    copied.
    """
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import initialize_rng_tracker

    without_cuda()
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(tp, create_gloo_process_groups=False)
        initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)
    elif parallel_state.get_tensor_model_parallel_world_size() != tp:
        raise ConfigError(
            "train.layout.tp: Megatron-Core has been started with another one in this process.",
            param="train.layout.tp",
        )


def _gpt(model: ModelConfig, tp: int, vocabulary: int, dtype: torch.dtype) -> nn.Module:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    attention, mlp = model.layers[0].attention, model.layers[0].mlp
    assert isinstance(attention, Gqa)
    assert isinstance(mlp, Dense)
    config = TransformerConfig(
        num_layers=len(model.layers),
        hidden_size=model.hidden_size,
        ffn_hidden_size=mlp.intermediate,
        num_attention_heads=attention.num_heads,
        num_query_groups=attention.num_kv_heads,
        kv_channels=attention.head_dim,
        softmax_scale=attention.scale,
        qk_layernorm=attention.qk_norm is not None,
        add_qkv_bias=attention.qkv_bias,
        add_bias_linear=False,
        activation_func=silu,
        gated_linear_unit=True,
        normalization="RMSNorm",
        layernorm_epsilon=model.norm_eps,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tensor_model_parallel_size=tp,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        perform_initialization=False,
        # These require NVIDIA's compiled extensions.
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
    )
    module: nn.Module = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(
            qk_layernorm=attention.qk_norm is not None, normalization="RMSNorm"
        ),
        vocab_size=vocabulary,
        max_sequence_length=model.max_positions,
        position_embedding_type="none",
        share_embeddings_and_output_weights=model.tied,
    )
    return module.to(dtype)
