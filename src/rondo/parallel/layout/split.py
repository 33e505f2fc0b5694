"""Tensor-parallel split of a model: each rank has a smaller model of the same architecture, whose parameters are slices
of the whole one. Pure arithmetic.

Attention is split by heads and feed-forward layers by their inner size, as evenly as the numbers allow: ranks may have
unequal parts. The output of a rank's half layer is a summand of the whole output, so biases added after the sum are on
rank 0 only. Embedding and head are split by vocabulary. Norms, routers and MLA's down-projections are replicated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rondo.base.errors import ConfigError
from rondo.models.architecture import Dense, Gqa, Layer, Mla, ModelConfig, Moe


@dataclass(frozen=True)
class TensorSlice:
    """Slice of a parameter of the whole model, from `start` to `stop` along one axis."""

    dim: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def times(self, size: int) -> TensorSlice:
        """Slice of rows if each index, such as a head, has `size` rows."""
        return TensorSlice(self.dim, self.start * size, self.stop * size)

    def along(self, dim: int) -> TensorSlice:
        return replace(self, dim=dim)


@dataclass(frozen=True)
class Split:
    """`config` is the rank's own model; `cuts` are its split parameters, and all others are whole; `absent` are the
    parameters that it lacks.
    """

    rank: int
    size: int
    config: ModelConfig
    cuts: Mapping[str, TensorSlice]
    absent: frozenset[str]

    @property
    def vocabulary(self) -> TensorSlice:
        return self.cuts["embed.weight"]

    def columns(self) -> dict[str, tuple[slice, slice]]:
        """The rank's columns of low-rank pairs a [r, in] and b [r, out] beside linear modules: for each path, the
        columns of both. If the output is split, b is; if the input is, a is, and the products are summands like the
        module's own.
        """
        whole, found = slice(None), {}
        for name, cut in self.cuts.items():
            path, _, leaf = name.rpartition(".")
            if leaf == "weight":
                own = slice(cut.start, cut.stop)
                found[path] = (whole, own) if cut.dim == 0 else (own, whole)
        return found


def split(config: ModelConfig, rank: int, size: int) -> Split:
    vocabulary = _vocabulary(config.vocab_size, rank, size)
    cuts = {"embed.weight": vocabulary}
    if not config.scores:
        cuts["head.out.weight"] = vocabulary
    layers, summed = [], []
    for i, layer in enumerate(config.layers):
        own, of_layer = _layer(layer, rank, size)
        layers.append(own)
        cuts |= {f"layers.{i}.{name}": cut for name, cut in of_layer.items()}
        summed += [f"layers.{i}.{name}" for name in _summed_biases(layer)]
    own_config = replace(config, vocab_size=len(vocabulary), layers=tuple(layers))
    return Split(rank, size, own_config, cuts, frozenset(summed if rank else ()))


@dataclass(frozen=True)
class Heads:
    """A rank's query heads and their key heads. If there are fewer key heads than ranks, `sharers` ranks have the same
    one, each with a part of its query heads.
    """

    queries: TensorSlice
    keys: TensorSlice
    sharers: int


def heads_of(num_heads: int, num_kv_heads: int, rank: int, size: int) -> Heads:
    _check_divisible(num_heads, size, "attention heads")
    group = num_heads // num_kv_heads
    if num_kv_heads >= size:
        keys = _even(num_kv_heads, rank, size)
        return Heads(keys.times(group), keys, 1)
    key = rank * num_kv_heads // size
    sharing = [each for each in range(size) if each * num_kv_heads // size == key]
    part = _even(group, rank - sharing[0], len(sharing))
    first = key * group
    return Heads(
        TensorSlice(0, first + part.start, first + part.stop), TensorSlice(0, key, key + 1), len(sharing)
    )


def _layer(layer: Layer, rank: int, size: int) -> tuple[Layer, dict[str, TensorSlice]]:
    attention: Gqa | Mla
    mlp: Dense | Moe
    if isinstance(layer.attention, Gqa):
        attention, of_attention = _gqa(layer.attention, rank, size)
    else:
        attention, of_attention = _mla(layer.attention, rank, size)
    if isinstance(layer.mlp, Moe):
        mlp, of_mlp = _moe(layer.mlp, rank, size)
    else:
        mlp, of_mlp = _dense(layer.mlp, rank, size)
    cuts = {f"attention.{name}": cut for name, cut in of_attention.items()}
    cuts |= {f"mlp.{name}": cut for name, cut in of_mlp.items()}
    return replace(layer, attention=attention, mlp=mlp), cuts


def _gqa(part: Gqa, rank: int, size: int) -> tuple[Gqa, dict[str, TensorSlice]]:
    heads = heads_of(part.num_heads, part.num_kv_heads, rank, size)
    queries, keys = heads.queries.times(part.head_dim), heads.keys.times(part.head_dim)
    cuts = _rows("q", queries) | _rows("k", keys) | _rows("v", keys) | {"o.weight": queries.along(1)}
    cuts["sinks"] = heads.queries
    if part.qk_norm == "full":
        cuts |= {"q_norm.weight": queries, "k_norm.weight": keys}
    return replace(part, num_heads=len(heads.queries), num_kv_heads=len(heads.keys)), cuts


def _mla(part: Mla, rank: int, size: int) -> tuple[Mla, dict[str, TensorSlice]]:
    _check_divisible(part.num_heads, size, "attention heads")
    heads = _even(part.num_heads, rank, size)
    queries = heads.times(part.head_dim)
    cuts = _rows("q", queries) | _rows("q_up", queries)
    cuts |= _rows("kv_up", heads.times(part.nope_dim + part.value_dim))
    cuts["o.weight"] = heads.times(part.value_dim).along(1)
    return replace(part, num_heads=len(heads)), cuts


def _dense(part: Dense, rank: int, size: int) -> tuple[Dense, dict[str, TensorSlice]]:
    _check_divisible(part.intermediate, size, "feed-forward neurons")
    inner = _even(part.intermediate, rank, size)
    cuts = _rows("gate", inner) | _rows("up", inner) | {"down.weight": inner.along(1)}
    return replace(part, intermediate=len(inner)), cuts


def _moe(part: Moe, rank: int, size: int) -> tuple[Moe, dict[str, TensorSlice]]:
    """Splits every expert among all ranks, so that the load is balanced for any routing."""
    _check_divisible(part.intermediate, size, "neurons in an expert")
    inner = _even(part.intermediate, rank, size).along(1)
    names = ("gate", "up", "gate_bias", "up_bias")
    cuts = {f"experts.{name}": inner for name in names} | {"experts.down": inner.along(2)}
    shared = part.shared
    if shared is not None:
        shared, of_shared = _dense(shared, rank, size)
        cuts |= {f"shared.{name}": cut for name, cut in of_shared.items()}
    return replace(part, intermediate=len(inner), shared=shared), cuts


def _summed_biases(layer: Layer) -> Iterator[str]:
    """Biases that would otherwise be added once per rank."""
    yield "attention.o.bias"
    if isinstance(layer.mlp, Moe):
        yield from ("mlp.experts.down_bias", "mlp.shared.down.bias")
    else:
        yield "mlp.down.bias"


def _rows(name: str, cut: TensorSlice) -> dict[str, TensorSlice]:
    return {f"{name}.weight": cut, f"{name}.bias": cut}


def _even(count: int, rank: int, size: int) -> TensorSlice:
    return TensorSlice(0, count * rank // size, count * (rank + 1) // size)


def _vocabulary(count: int, rank: int, size: int) -> TensorSlice:
    """Equal parts except for the last one: then gathered logits need no reordering."""
    part = -(-count // size)
    if part * (size - 1) >= count:
        raise _too_many(count, size, "tokens in its vocabulary")
    return TensorSlice(0, rank * part, min((rank + 1) * part, count))


def _check_divisible(count: int, size: int, what: str) -> None:
    if count < size:
        raise _too_many(count, size, what)


def _too_many(count: int, size: int, what: str) -> ConfigError:
    return ConfigError(
        f"tensor_parallel is {size}, but the model has only {count} {what}, too few to divide among that many ranks. "
        "Lower tensor_parallel.",
        param="tensor_parallel",
    )
