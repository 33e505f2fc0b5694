"""Decoder parts with quantized weights, which replace the plain ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from rondo.models.heads.additions import added
from rondo.models.parts import Experts, Linear
from rondo.ops import ExpertWeights, Quantized, grouped_experts, quantized_linear


class QuantizedTensors(nn.Module):
    """The tensors of a quantized weight as parameters without gradients, so that code that moves, drops or replaces a
    model's parameters covers them too."""

    def __init__(self, weight: Quantized) -> None:
        super().__init__()
        self.quantized = hold(self, weight)


class QuantizedLinear(Linear):
    """A linear module with the weight `quantized`; the bias, if any, is a plain parameter."""

    def __init__(self, weight: Quantized, bias: nn.Parameter | None = None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.quantized = hold(self, weight)
        self.register_parameter("bias", bias)

    def forward(self, input: Tensor) -> Tensor:
        return added(self, input, quantized_linear(input, self.quantized, self.bias))


class QuantizedExperts(nn.Module):
    """All experts of a layer, with the biases and activation of `plain`."""

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


def quantized_weights(model: nn.Module) -> dict[str, Quantized]:
    """The quantized weights of a model by the names of the parameters that they replace."""
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, QuantizedLinear):
            found[f"{path}.weight"] = module.quantized
        elif isinstance(module, QuantizedTensors):
            found[path] = module.quantized
    return found


def hold(module: nn.Module, weight: Quantized) -> Quantized:
    """Registers the weight's tensors as parameters of the module. The returned weight refers to the same parameters."""
    held: dict[str, Any] = {
        name: nn.Parameter(tensor, requires_grad=False) for name, tensor in weight.tensors.items()
    }
    for name, parameter in held.items():
        module.register_parameter(name, parameter)
    return replace(weight, **held)
