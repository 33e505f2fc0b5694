"""The degrees of a layout for a number of ranks, checked against the model. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from rondo.base.errors import ConfigError
from rondo.models.architecture import Gqa, Mla, ModelConfig, Moe
from rondo.parallel.config import LayoutConfig
from rondo.parallel.layout.cut import pieces_of

FIELD = "train.layout"


@dataclass(frozen=True)
class Degrees:
    """`replicate` x `shard` ranks have the same parameters and different tokens: states are sharded among `shard` of
    them. The cp ranks are among these, since their tokens differ too.
    """

    config: LayoutConfig
    ranks: int
    dp: int
    replicate: int
    shard: int

    @property
    def tp(self) -> int:
        return self.config.tp

    @property
    def cp(self) -> int:
        return self.config.cp

    @property
    def pp(self) -> int:
        return self.config.pp

    @property
    def ep(self) -> int:
        return self.config.ep

    @property
    def expert_shard(self) -> int:
        """Number of ranks among which an expert's states are sharded."""
        return self.shard * self.tp // self.ep

    @property
    def token_multiple(self) -> int:
        """Required divisor of a row's length: tp and cp partition it."""
        return self.tp * self.cp


def degrees(config: LayoutConfig, ranks: int, model: ModelConfig) -> Degrees:
    """Degrees of the config for a number of ranks. Raises an error with the field's name if degrees do not divide or
    are incompatible.
    """
    others = config.tp * config.pp * config.cp
    dp = config.dp or max(1, ranks // others)
    if dp * others != ranks:
        product = f"dp {dp} x tp {config.tp} x pp {config.pp} x cp {config.cp}"
        raise _refused("dp", f"{product} is {dp * others}, and there are {ranks} ranks")
    if dp % config.dp_replicate:
        raise _refused("dp_replicate", f"{config.dp_replicate} does not divide dp {dp}")
    whole = config.zero == 0
    if whole and config.dp_replicate > 1:
        raise _refused("dp_replicate", "with zero 0 every rank holds all states already: leave it at 1")
    replicate = dp * config.cp if whole else config.dp_replicate
    found = Degrees(config, ranks, dp, replicate, dp * config.cp // replicate)
    _check_pipeline(found, model)
    _check_vocabulary(found, model)
    for layer in model.layers:
        _check_attention(layer.attention, found)
        _check_mlp(layer.mlp, found)
    _check_experts(found, model)
    return found


def _check_pipeline(degrees: Degrees, model: ModelConfig) -> None:
    config = degrees.config
    if config.virtual > 1 and config.schedule != "interleaved":
        raise _refused("virtual", f"{config.virtual} pieces a stage need schedule interleaved")
    if config.schedule == "interleaved" and config.pp > 1 and config.virtual == 1:
        raise _refused("virtual", "schedule interleaved needs 2 or more pieces a stage")
    if config.pp == 1 and config.virtual > 1:
        raise _refused("virtual", "needs pp above 1")
    pieces = pieces_of(config)
    if pieces > len(model.layers):
        raise _refused("pp", f"{pieces} pieces are more than the model's {len(model.layers)} layers")


def _check_vocabulary(degrees: Degrees, model: ModelConfig) -> None:
    """Raises if a rank has no part of the vocabulary: all ranks but the last have equal parts."""
    part = -(-model.vocab_size // degrees.tp)
    if part * (degrees.tp - 1) >= model.vocab_size:
        raise _refused("tp", f"{degrees.tp} is too many for a vocabulary of {model.vocab_size}")


def _check_attention(attention: Gqa | Mla, degrees: Degrees) -> None:
    heads = attention.num_heads
    keys = attention.num_kv_heads if isinstance(attention, Gqa) else heads
    _divides("tp", degrees.tp, heads, "attention heads")
    if keys % degrees.tp and degrees.tp % keys:
        raise _refused("tp", f"{degrees.tp} neither divides nor is a multiple of {keys} key heads")
    if degrees.config.cp_method == "ulysses":
        _divides("cp", degrees.cp, heads // degrees.tp, "attention heads of a rank (or cp_method ring)")


def _check_mlp(mlp: object, degrees: Degrees) -> None:
    """Checks the feed-forward part. Experts under expert parallelism are not split."""
    if isinstance(mlp, Moe):
        if degrees.ep == 1:
            _divides("tp", degrees.tp, mlp.intermediate, "neurons in an expert")
        mlp = mlp.shared
    if mlp is not None:
        _divides("tp", degrees.tp, mlp.intermediate, "feed-forward neurons")  # type: ignore[attr-defined]


def _check_experts(degrees: Degrees, model: ModelConfig) -> None:
    if degrees.ep == 1:
        return
    sparse = [layer.mlp for layer in model.layers if isinstance(layer.mlp, Moe)]
    if not sparse:
        raise _refused("ep", "the model has no experts")
    for mlp in sparse:
        _divides("ep", degrees.ep, mlp.router.num_experts, "experts")
    if degrees.shard * degrees.tp % degrees.ep:
        raise _refused(
            "ep",
            f"{degrees.ep} does not divide the {degrees.shard * degrees.tp} ranks that share a batch's states",
        )


def _divides(field: str, degree: int, count: int, what: str) -> None:
    if count % degree:
        raise _refused(field, f"{degree} does not divide {count} {what}")


def _refused(field: str, reason: str) -> ConfigError:
    return ConfigError(f"{FIELD}.{field}: {reason}.", param=f"{FIELD}.{field}")
