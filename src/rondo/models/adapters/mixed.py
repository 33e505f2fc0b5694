"""Many adapters in one forward pass: each row of tokens gets its own request's adapter, wherever in the row it lies.

An adapter with many rows in a step (a prompt) is applied to them by itself. Those of a few rows each (answers in
progress) go together, a module at a time, through `ops.add_low_rank`. Rows without an adapter keep their bits.
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
"""From this many rows on, an adapter's own matrix products are the fastest."""
MANY_PADDED_ROWS = 32
"""The same where those of fewer are padded to one length."""


class Sites:
    """The modules of a model that adapters add to, numbered. `as_learner`: what is added is what the same adapter adds
    when it hangs on the model, to the bit, and not what is fastest."""

    def __init__(self, model: Decoder, as_learner: bool = False) -> None:
        self.as_learner = as_learner
        self.device = model.device
        # On a CPU in fp32 whatever the model's dtype: few have fast products of two bytes, and it is what PEFT does.
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
    """One adapter's weights, as many at once are applied."""

    def __init__(self, sites: Sites, parts: Iterable[tuple[str, nn.Module]]) -> None:
        self.pairs: dict[int, Pair] = {}
        self.modules: dict[int, nn.Module] = {}
        """Those that compute what they add themselves."""
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
        """Whether `addresses` says all there is to it."""
        return self.addresses is not None and not self.modules

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Each once, under a name that says where it belongs."""
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
        """For a model of which each rank has a part: keeps, by path, these columns of a and of b. A Tokenformer stays
        whole, for what it adds to is whole on every rank, and so is what it reads."""
        for path, (of_a, of_b) in columns.items():
            site = sites.paths.get(path, -1)
            if site in self.pairs:
                a, b = self.pairs[site]
                self.pairs[site] = a[:, of_a].contiguous(), b[:, of_b].contiguous()
        if self.addresses is not None:
            self.addresses = self._addresses(len(sites.paths))

    def _addresses(self, sites: int) -> Tensor:
        """[sites, 3]: see `ops.Pairs`."""
        table = torch.zeros(sites, 3, dtype=torch.int64)
        for site, (a, b) in self.pairs.items():
            table[site] = torch.tensor([a.data_ptr(), b.data_ptr(), a.shape[0]])
        return table


def _padded(matrix: Tensor, sites: Sites) -> Tensor:
    """[r, n] in memory of its own, with rows of zeros up to a whole multiple."""
    rank, size = matrix.shape
    padded = torch.zeros(
        -(-rank // RANK_MULTIPLE) * RANK_MULTIPLE, size, dtype=sites.dtype, device=sites.device
    )
    padded[:rank] = matrix
    return padded


class AdapterBatch:
    """Adapters of a few rows each. The same ones usually meet again in the next step, so this is kept."""

    def __init__(self, served: Sequence[AdapterWeights]) -> None:
        self.served = served
        self.of_modules = [(group, one) for group, one in enumerate(served) if one.modules]
        self._pairs: dict[int, Pairs | None] = {}

    def pairs(self, site: int) -> Pairs | None:
        """None where none of them adds anything."""
        if site not in self._pairs:
            members = [one.pairs.get(site) for one in self.served]
            table = None if self._table is None else self._table[site]
            self._pairs[site] = Pairs(members, table) if any(members) else None
        return self._pairs[site]

    @cached_property
    def _table(self) -> Tensor | None:
        """[sites, G, 3]."""
        tables = [one.addresses for one in self.served if one.addresses is not None]
        return torch.stack(tables, 1) if len(tables) == len(self.served) else None


@dataclass(frozen=True)
class Span:
    """`count` rows from `start` on are of one request."""

    served: AdapterWeights | None
    start: int
    count: int


class Rows:
    """Which rows are whose, in a row of `count` tokens."""

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
    """What one step adds: `rows` of all its tokens, `read` of those that the last layer gives back."""

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
    """Makes the mixture of each step."""

    def __init__(self, sites: Sites) -> None:
        self.sites = sites
        self._kept: dict[tuple[AdapterWeights, ...], AdapterBatch] = {}
        self._before: dict[tuple[AdapterWeights, ...], AdapterBatch] = {}

    def mix(self, count: int, spans: Sequence[Span], read: Sequence[AdapterWeights | None]) -> Mixture:
        """`read`: whose each row is that the last layer gives back."""
        self._before, self._kept = self._kept, {}
        rows = Rows(count, spans, self)
        if len(read) == count:
            return Mixture(self.sites, rows, rows)
        return Mixture(
            self.sites, rows, Rows(len(read), (Span(one, i, 1) for i, one in enumerate(read)), self)
        )

    def forget(self) -> None:
        """Lets go of adapters that no step uses now."""
        self._kept, self._before = {}, {}

    def together(self, served: tuple[AdapterWeights, ...]) -> AdapterBatch:
        """What the step before had is taken over, and what it alone had is let go."""
        found = self._kept.get(served) or self._before.get(served) or AdapterBatch(served)
        self._kept[served] = found
        return found
