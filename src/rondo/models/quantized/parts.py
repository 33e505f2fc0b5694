"""The parts of a decoder whose weights are quantized. They take the places of the plain ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from rondo.models.heads.additions import added
from rondo.models.parts import Experts, Linear
from rondo.ops import ExpertWeights, Quantized, grouped_experts, quantized_linear


class QuantizedTensors(nn.Module):
    """The tensors of a quantized weight, as parameters that nothing trains: what moves, drops or replaces a model's
    parameters does so with these."""

    def __init__(self, weight: Quantized) -> None:
        super().__init__()
        self.quantized = hold(self, weight)


class QuantizedLinear(Linear):
    """`quantized` is its weight; the bias, where there is one, is a plain parameter."""

    def __init__(self, weight: Quantized, bias: nn.Parameter | None = None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.quantized = hold(self, weight)
        self.register_parameter("bias", bias)

    def forward(self, input: Tensor) -> Tensor:
        return added(self, input, quantized_linear(input, self.quantized, self.bias))


class QuantizedExperts(nn.Module):
    """All experts of a layer; `plain` are those whose biases and activation it has."""

    def __init__(self, plain: Experts, gate: Quantized, up: Quantized, down: Quantized) -> None:
        super().__init__()
        self.activation = plain.activation
        self.gate, self.up, self.down = QuantizedTensors(gate), QuantizedTensors(up), QuantizedTensors(down)
        self.gate_bias, self.up_bias, self.down_bias = plain.gate_bias, plain.up_bias, plain.down_bias

    @property
    def weights(self) -> ExpertWeights:
        held = (self.gate.quantized, self.up.quantized, self.down.quantized)
        return ExpertWeights(*held, self.gate_bias, self.up_bias, self.down_bias)

    def forward(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        return grouped_experts(x, weights, experts, self.weights, self.activation)


def hold(module: nn.Module, weight: Quantized) -> Quantized:
    """Makes the weight's tensors parameters of the module; what is returned sees it when they are replaced."""
    held: dict[str, Any] = {
        name: nn.Parameter(tensor, requires_grad=False) for name, tensor in weight.tensors.items()
    }
    for name, parameter in held.items():
        module.register_parameter(name, parameter)
    return replace(weight, **held)
