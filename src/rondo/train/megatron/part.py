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
from rondo.parallel.config import Checkpointing
from rondo.parallel.layout.split import split
from rondo.parallel.precision import computing_type
from rondo.train.config import OptimConfig
from rondo.train.megatron.cpu import on_device, without_cuda
from rondo.train.megatron.masters import Masters
from rondo.train.megatron.weights import TIED, PipelineStage, table

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh

dist: Any = torch.distributed
"""torch.distributed as Any: its types are incomplete."""


class MegatronShard:
    """Parameters with Megatron-Core's names and shapes; `apart` and `fill` convert from and to the native ones."""

    def __init__(self, model: Decoder, config: OptimConfig, mesh: Mesh | None = None) -> None:
        self.device = model.device if mesh is None else mesh.device
        self.group = None if mesh is None else mesh.tp
        self.mesh = None if mesh is None or mesh.degrees.pp == 1 else mesh
        """The ranks, if they are several stages."""
        self.stage = PipelineStage() if mesh is None else PipelineStage(mesh.pp_rank, mesh.degrees.pp)
        self._over = None if mesh is None else mesh.states["tp"]
        self.rank, size = (0, 1) if mesh is None else (mesh.tp_rank, mesh.degrees.tp)
        self._splits = [split(model.config, rank, size) for rank in range(size)]
        self._split = self._splits[self.rank]
        rows = -(-model.config.vocab_size // size)
        _start(size, self.stage.count, self.device)
        dtype = computing_type(model.dtype, config.precision)
        with on_device():
            module = _gpt(model.config, size, self.stage, rows * size, dtype, config.checkpointing)
        self.module = module.to(self.device)
        sharded = mesh is not None and mesh.degrees.dp > 1 and mesh.degrees.config.zero > 0
        self.masters = Masters(self.module, mesh, mixed=dtype != model.dtype, sharded=sharded)
        self.parameters: dict[str, nn.Parameter] = dict(self.masters.named_parameters())
        self.table = table(self._split.config, rows, self.stage)
        self._tied = TIED if model.config.tied and self.stage.count > 1 else ""
        self._owners = {
            name: stage
            for stage in reversed(range(self.stage.count))
            for fused in table(self._split.config, rows, PipelineStage(stage, self.stage.count))
            for name in fused.ours
        }
        assert self.parameters.keys() == {fused.name for fused in self.table}
        self.fill(
            self.parameters, {name: self._own(name, p.detach()) for name, p in model.named_parameters()}
        )
        self.masters.refresh()

    @property
    def vocabulary(self) -> slice:
        """Range of tokens for which this rank has logits."""
        cut = self._split.vocabulary
        return slice(cut.start, cut.stop)

    @property
    def counted_elsewhere(self) -> list[Tensor]:
        """Parameters replicated over tp, on all ranks but the first, and the last stage's copy of a tied embedding."""
        found: list[Tensor] = [self.parameters[self._tied]] if self._tied and self.stage.last else []
        if self.rank == 0:
            return found
        whole = (fused for fused in self.table if self._split.cuts.keys().isdisjoint(fused.ours))
        return found + [self.parameters[fused.name] for fused in whole]

    def reduce_gradients(self, of_own_heads: tuple[str, ...]) -> None:
        """Sums gradients over the ranks and stages with the same weight."""
        over: list[tuple[Any, str]] = []
        if self.group is not None:
            over += [(self.group, name) for name in self.parameters if name.endswith(of_own_heads)]
        if self._tied and (self.stage.first or self.stage.last):
            from megatron.core.parallel_state import get_embedding_group

            name = TIED if self.stage.last else self.table[0].name
            over.append((get_embedding_group(), name))
        self.masters.reduce_gradients(over)

    def apart(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Splits tensors by Megatron-Core's names into this rank's parts by native names. With ZeRO-1 all dp ranks must
        take part.
        """
        found: dict[str, Tensor] = {}
        for fused in self.table:
            if fused.name in tensors:
                found |= fused.apart(self.masters.whole(fused.name, tensors[fused.name]).detach())
        return found

    def computing(self) -> dict[str, Tensor]:
        """This rank's weights by native names, in the type that computes."""
        return {
            name: part
            for fused in self.table
            for name, part in fused.apart(self.masters.own[fused.name].detach()).items()
        }

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor], parts: Mapping[str, Tensor]) -> None:
        """Inverse of `apart`, in place."""
        for fused in self.table:
            tensor = tensors[fused.name]
            if self.masters.group is None or not tensor.ndim:
                fused.fill(tensor, parts)
            else:
                whole = torch.empty(
                    self.masters.own[fused.name].shape, dtype=tensor.dtype, device=self.device
                )
                fused.fill(whole, parts)
                tensor.copy_(self.masters.part(fused.name, whole))

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
        """Gathers the ranks' parts, one tensor at a time; all ranks must pass the same names, and have parts of their
        stage's names.
        """
        for name in names:
            own = self._owners[name] == self.stage.index
            yield name, self._from_stage(name, self._gather(name, parts[name]) if own else None)

    def _from_stage(self, name: str, own: Tensor | None) -> Tensor:
        if self.mesh is None:
            assert own is not None
            return own
        owner = self._owners[name]
        form: Any = None if own is None else (own.shape, own.dtype)
        shape, dtype = self.mesh.told(form, owner)
        found = torch.empty(shape, dtype=dtype, device=self.device) if own is None else own.contiguous()
        dist.broadcast(found, dist.get_global_rank(self.mesh.pp, owner), group=self.mesh.pp)
        return found

    def _own(self, name: str, whole: Tensor) -> Tensor:
        cut = self._split.cuts.get(name)
        return whole if cut is None else whole.narrow(cut.dim, cut.start, len(cut))

    def _gather(self, name: str, own: Tensor) -> Tensor:
        cut = self._split.cuts.get(name)
        if cut is None or self.group is None or not own.ndim:
            return own
        sizes = [len(each.cuts[name]) for each in self._splits]
        return gather_equal(own.movedim(cut.dim, 0), self.group, sizes).movedim(0, cut.dim)


def _start(tp: int, pp: int, device: torch.device) -> None:
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
        parallel_state.initialize_model_parallel(tp, pp, create_gloo_process_groups=False)
        initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)
    else:
        started = {
            "tp": parallel_state.get_tensor_model_parallel_world_size(),
            "pp": parallel_state.get_pipeline_model_parallel_world_size(),
        }
        for name, size in (("tp", tp), ("pp", pp)):
            if started[name] != size:
                raise ConfigError(
                    f"train.layout.{name}: Megatron-Core has been started with {started[name]} in this process.",
                    param=f"train.layout.{name}",
                )


RECOMPUTE: dict[Checkpointing, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def _gpt(
    model: ModelConfig,
    tp: int,
    stage: PipelineStage,
    vocabulary: int,
    dtype: torch.dtype,
    checkpointing: Checkpointing,
) -> nn.Module:
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
        pipeline_model_parallel_size=stage.count,
        variable_seq_lengths=stage.count > 1,
        moe_token_dispatcher_type="alltoall",  # the default refuses variable lengths
        batch_p2p_sync=False,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        perform_initialization=False,
        calculate_per_token_loss=True,  # gradients are sums over ranks
        **RECOMPUTE[checkpointing],
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
        pre_process=stage.first,
        post_process=stage.last,
    )
    return module.to(dtype)
