"""Several adapters in one forward pass: each token is processed with the adapter of its request, at any position in the
batch.

An adapter with many rows in a step (a prompt) is applied by its own matrix products. Adapters with few rows (requests
in decode) are batched module by module through `ops.add_low_rank`. Rows without an adapter are bitwise unchanged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from rondo.models.adapters.lora import Lora
from rondo.models.adapters.tokenformer import Tokenformer
from rondo.models.decoder import Decoder
from rondo.models.parts import Linear
from rondo.ops import RANK_MULTIPLE, Pair, Pairs, RowGroups, add_low_rank, add_low_rank_to
from rondo.ops.native.build.build import library

MANY_ROWS = 256
"""Number of rows from which an adapter's own matrix products are faster than batching."""
MANY_PADDED_ROWS = 32
"""The same limit for the batched path that pads all adapters to one number of rows."""


class Sites:
    """The modules of a model that adapters add to, numbered. With `as_learner`, the addition is bitwise equal to the
    same adapter attached to the model; otherwise the fastest path is used."""

    def __init__(self, model: Decoder, as_learner: bool = False) -> None:
        self.as_learner = as_learner
        self.device = model.device
        # fp32 on a CPU, whatever the model's dtype: few CPUs have fast 16-bit products, and PEFT computes in
        # fp32 too.
        self.dtype = torch.float32 if self.device.type == "cpu" else model.dtype
        modules: dict[str, nn.Module] = {
            path: module for path, module in model.named_modules() if isinstance(module, Linear)
        }
        modules |= {f"layers.{i}.mlp": layer.get_submodule("mlp") for i, layer in enumerate(model.layers)}
        self.addressable = self.device.type == "cpu" and self.dtype == torch.float32
        fast = self.addressable and model.dtype == torch.float32 and library("low_rank") is not None
        self.many_rows = MANY_ROWS if fast else MANY_PADDED_ROWS
        self.paths = {path: site for site, path in enumerate(modules)}
        self.numbers = {module: site for site, module in enumerate(modules.values())}


class AdapterWeights:
    """One adapter's weights in the layout for batched application."""

    def __init__(self, sites: Sites, parts: Iterable[tuple[str, nn.Module]]) -> None:
        self.pairs: dict[int, Pair] = {}
        self.modules: dict[int, nn.Module] = {}
        """Modules that compute their addition themselves (Tokenformer, and all of them with `as_learner`), by site."""
        shared: dict[int, Tensor] = {}
        for path, part in parts:
            site = sites.paths[path]
            if sites.as_learner:
                self.modules[site] = part.to(sites.device).requires_grad_(False)
            elif isinstance(part, Lora):
                key = id(part.a)
                if key not in shared:
                    shared[key] = _padded(part.a.detach(), sites)
                self.pairs[site] = shared[key], _padded(part.b.detach().float().T * part.scale, sites)
            elif isinstance(part, Tokenformer):
                self.modules[site] = part.to(sites.device, sites.dtype).requires_grad_(False)
        self.addresses = self._addresses(len(sites.paths)) if sites.addressable else None

    @property
    def low_rank(self) -> bool:
        """Whether `addresses` covers the whole adapter."""
        return self.addresses is not None and not self.modules

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Distinct tensors, each with a name that contains its site."""
        named = [
            (f"{site}.{name}", x)
            for site, pair in self.pairs.items()
            for name, x in zip("ab", pair, strict=True)
        ]
        for site, part in self.modules.items():
            named += [(f"{site}.{name}", x) for name, x in part.named_parameters()]
        return list({x.data_ptr(): (name, x) for name, x in named}.values())

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for _, x in self.tensors())

    def narrow(self, sites: Sites, columns: Mapping[str, tuple[slice, slice]]) -> None:
        """Slices a and b to this rank's columns, by path, for a tensor-parallel model. A Tokenformer stays whole,
        because its input and output are whole on every rank."""
        for path, (of_a, of_b) in columns.items():
            site = sites.paths.get(path, -1)
            if site in self.pairs:
                a, b = self.pairs[site]
                self.pairs[site] = a[:, of_a].contiguous(), b[:, of_b].contiguous()
        if self.addresses is not None:
            self.addresses = self._addresses(len(sites.paths))

    def _addresses(self, sites: int) -> Tensor:
        """Pointers and ranks [sites, 3] in the layout of `ops.Pairs`."""
        table = torch.zeros(sites, 3, dtype=torch.int64)
        for site, (a, b) in self.pairs.items():
            table[site] = torch.tensor([a.data_ptr(), b.data_ptr(), a.shape[0]])
        return table


def _padded(matrix: Tensor, sites: Sites) -> Tensor:
    """A copy of `matrix` [r, n], padded with rows of zeros to a multiple of RANK_MULTIPLE."""
    rank, size = matrix.shape
    padded = torch.zeros(
        -(-rank // RANK_MULTIPLE) * RANK_MULTIPLE, size, dtype=sites.dtype, device=sites.device
    )
    padded[:rank] = matrix
    return padded


class AdapterBatch:
    """Adapters with few rows each. Cached, because the next step usually has the same set of adapters."""

    def __init__(self, served: Sequence[AdapterWeights]) -> None:
        self.served = served
        self.of_modules = [(group, one) for group, one in enumerate(served) if one.modules]
        self._pairs: dict[int, Pairs | None] = {}

    def pairs(self, site: int) -> Pairs | None:
        """None if no adapter of the batch covers this site."""
        if site not in self._pairs:
            members = [one.pairs.get(site) for one in self.served]
            table = None if self._table is None else self._table[site]
            self._pairs[site] = Pairs(members, table) if any(members) else None
        return self._pairs[site]

    @cached_property
    def _table(self) -> Tensor | None:
        """Pointers and ranks [sites, G, 3]; None if an adapter has no address table."""
        tables = [one.addresses for one in self.served if one.addresses is not None]
        return torch.stack(tables, 1) if len(tables) == len(self.served) else None


@dataclass(frozen=True)
class Span:
    """`count` consecutive rows of one request, from row `start`."""

    served: AdapterWeights | None
    start: int
    count: int


class Rows:
    """Assignment of the `count` rows of a batch to adapters."""

    def __init__(self, count: int, spans: Iterable[Span], mixer: "Mixer") -> None:
        self.count = count
        rows: dict[AdapterWeights, list[int]] = {}
        for span in spans:
            if span.served is not None:
                rows.setdefault(span.served, []).extend(range(span.start, span.start + span.count))
        most = mixer.sites.many_rows
        few = [(served, own) for served, own in rows.items() if len(own) < most]
        self.many = [(served, _where(own, mixer)) for served, own in rows.items() if len(own) >= most]
        self.together: AdapterBatch | None = None
        if few:
            self.together = mixer.together(tuple(served for served, _ in few))
            lengths = torch.tensor([0, *(len(own) for _, own in few)])
            flat = torch.tensor([row for _, own in few for row in own], device=mixer.sites.device)
            self.groups = RowGroups(flat, lengths.cumsum(0))

    def add(self, site: int, x: Tensor, out: Tensor) -> None:
        for served, where in self.many:
            _add_to(served, site, where, x, out)
        if self.together is None:
            return
        pairs = self.together.pairs(site)
        if pairs is not None:
            add_low_rank(out, x, pairs, self.groups)
        for group, served in self.together.of_modules:
            if site in served.modules:
                _add_to(served, site, self.groups.each[group], x, out)


def _add_to(served: AdapterWeights, site: int, where: Tensor | slice, x: Tensor, out: Tensor) -> None:
    pair, module = served.pairs.get(site), served.modules.get(site)
    if pair is not None:
        add_low_rank_to(out, x, pair, where)
    if module is not None:
        out[where] = (out[where] + module(x[where])).to(out.dtype)


def _where(rows: list[int], mixer: "Mixer") -> Tensor | slice:
    together = rows[-1] - rows[0] + 1 == len(rows)
    return slice(rows[0], rows[-1] + 1) if together else torch.tensor(rows, device=mixer.sites.device)


class Mixture:
    """Adapter outputs of one step. `rows` assigns all tokens of the batch, `read` the rows that the last layer
    returns."""

    def __init__(self, sites: Sites, rows: Rows, read: Rows) -> None:
        self._numbers = sites.numbers
        self._rows = rows
        self._read = read

    def add(self, module: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        site = self._numbers.get(module)
        if site is not None:
            (self._rows if x.shape[0] == self._rows.count else self._read).add(site, x, out)
        return out


class Mixer:
    """Builds the mixture of each step."""

    def __init__(self, sites: Sites) -> None:
        self.sites = sites
        self._kept: dict[tuple[AdapterWeights, ...], AdapterBatch] = {}
        self._before: dict[tuple[AdapterWeights, ...], AdapterBatch] = {}

    def mix(self, count: int, spans: Sequence[Span], read: Sequence[AdapterWeights | None]) -> Mixture:
        """`read` is the adapter of each row that the last layer returns."""
        self._before, self._kept = self._kept, {}
        rows = Rows(count, spans, self)
        if len(read) == count:
            return Mixture(self.sites, rows, rows)
        return Mixture(
            self.sites, rows, Rows(len(read), (Span(one, i, 1) for i, one in enumerate(read)), self)
        )

    def forget(self) -> None:
        """Drops references to adapters that no step uses any more."""
        self._kept, self._before = {}, {}

    def together(self, served: tuple[AdapterWeights, ...]) -> AdapterBatch:
        """Reuses the batch of the current or the previous step. Batches that the current step does not use are dropped
        with the next."""
        found = self._kept.get(served) or self._before.get(served) or AdapterBatch(served)
        self._kept[served] = found
        return found
