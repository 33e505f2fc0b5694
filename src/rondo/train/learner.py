"""The learner: gradients of any loss over packed rows, and the optimizer step. It knows no algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from rondo import models
from rondo.base.errors import ModelError
from rondo.data.packing import Row
from rondo.models.adapters.attached import adapter_of
from rondo.models.attend import Attend, Packed
from rondo.models.decoder import Decoder
from rondo.models.parts import take
from rondo.ops import token_logprobs
from rondo.train.config import OptimConfig
from rondo.train.losses import Loss, Predictions
from rondo.train.memory import keep_freed_memory
from rondo.train.optim import clip_gradients, make_optimizer
from rondo.train.shared_prefix import SharedPrefix

Metrics = dict[str, float]


class Learner:
    def __init__(self, model: Decoder, config: OptimConfig) -> None:
        if model.config.quantization is not None and adapter_of(model) is None:
            raise ModelError(
                f"the model's weights are quantized ({model.config.quantization.method}), and cannot be trained: "
                "train an adapter over them, or the checkpoint that is not quantized",
                param="model",
            )
        self.model = model
        self.config = config
        self.step = 0
        if model.device.type == "cpu":
            keep_freed_memory()
        self.optimizer = make_optimizer(model, config)

    def forward_backward(
        self, batch: Sequence[Row], loss: Loss, *, temperature: float = 1.0, valid: int | None = None
    ) -> Metrics:
        """Adds the gradient of the batch's mean loss; `valid` is the divisor if the batch is part of a larger one."""
        own = sum(row.valid for row in batch)
        valid = own if valid is None else valid
        totals: dict[str, Tensor] = {}
        for row in batch:
            device = self.model.device
            output = loss(
                Predictions(
                    self._row_logprobs(row, temperature),
                    torch.from_numpy(row.weights).to(device),
                    {name: torch.from_numpy(column).to(device) for name, column in row.columns.items()},
                )
            )
            (output.total / valid).backward()  # type: ignore[no-untyped-call]
            for name, value in {"loss": output.total.detach() * (own / valid), **output.sums}.items():
                totals[name] = totals[name] + value / own if name in totals else value / own
            for name, value in output.maxima.items():
                totals[name] = torch.maximum(totals[name], value) if name in totals else value
        return {name: float(value) for name, value in totals.items()} | {"tokens": float(valid)}

    def optim_step(self, lr: float | None = None) -> Metrics:
        """One step with the gradients gathered since the last, which it clears."""
        lr = self.config.lr if lr is None else lr
        norm = clip_gradients(self.model.parameters(), self.config.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return {"grad_norm": norm, "lr": lr}

    @torch.no_grad()
    def logprobs(self, batch: Sequence[Row], temperature: float = 1.0) -> list[NDArray[np.float32]]:
        """For each row the log-probability of each of its predictions."""
        return [self._row_logprobs(row, temperature).cpu().numpy() for row in batch]

    def _row_logprobs(self, row: Row, temperature: float) -> Tensor:
        """Answers that begin alike make some predictions more than once: those go through the head once."""
        model = self.model
        vocabulary = model.config.vocab_size
        pairs, pair_of = np.unique(row.where * vocabulary + row.targets, return_inverse=True)
        rows, row_of = np.unique(pairs // vocabulary, return_inverse=True)
        tokens, positions, read, where, targets, back = (
            torch.from_numpy(x).to(model.device)
            for x in (row.tokens, row.positions, rows, row_of, pairs % vocabulary, pair_of)
        )
        hidden = model.trunk(tokens, positions, _attend(row, model.device), read)
        logprobs = token_logprobs(model.head(take(hidden, where)), targets, temperature)
        return take(logprobs[:, None], back)[:, 0]

    def shards(self) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor): views of the weights as they are, whole."""
        return self.model.to_hf()

    def export_hf(self, folder: Path) -> None:
        models.save(self.model, folder)

    def save(self, folder: Path) -> None:
        """Weights and optimizer state, as two safetensors files."""
        save_file(_state(self.model), folder / "model.safetensors")
        moments = {}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                moments[f"{key}:{name}"] = value.contiguous()
        save_file(moments, folder / "optimizer.safetensors", metadata={"step": str(self.step)})

    def load(self, folder: Path, step: int) -> None:
        """The inverse of `save`, in place: tensors that others share stay shared."""
        weights, own = load_file(folder / "model.safetensors"), _state(self.model)
        wrong = sorted(weights.keys() ^ own.keys()) or [n for n in own if own[n].shape != weights[n].shape]
        if wrong:
            raise ModelError(f"{folder} is a checkpoint of another model: {', '.join(wrong[:5])} differ")
        moments = load_file(folder / "optimizer.safetensors")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(weights[name])
        self.optimizer.state.clear()
        parameters = dict(self.model.named_parameters())
        for label, tensor in moments.items():
            key, name = label.split(":", 1)
            self.optimizer.state[parameters[name]][key] = tensor.to(parameters[name].device)
        self.step = step


def _attend(row: Row, device: torch.device) -> Attend:
    if any(parent >= 0 for parent in row.parents):
        starts = row.positions[row.cu_seqlens[:-1]].tolist()
        return SharedPrefix(row.cu_seqlens, row.parents, starts, device)
    return Packed(row.cu_seqlens, device)


def _state(model: Decoder) -> dict[str, Tensor]:
    """Each parameter once: `named_parameters` leaves out the second name of a tied one."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}
