"""GPTQ (Frantar et al., 2022): columns are rounded one after another, and the error of each is compensated in the
remaining columns, as far as the inputs of the calibration text permit."""

from __future__ import annotations

import torch
from torch import Tensor

from rondo.models.quantized.quantize.rounding import codes_of, int4, symmetric_grid, values_of
from rondo.ops import Quantized

BLOCK = 128
"""Columns whose errors are propagated to the later ones together."""
DAMPING = 0.01
"""Added to the diagonal, as a share of its mean; multiplied by ten until the matrix is invertible."""
DAMPINGS = 12
"""Number of dampings tried; the last is far beyond any matrix of real inputs."""


def quantize(weight: Tensor, inputs: Tensor, group: int, scale_type: torch.dtype) -> Quantized:
    """weight [N, K] fp32, and inputs [K, K], the sum of the outer products of the inputs."""
    weight, inverse = weight.clone(), _inverse_factor(inputs)
    weight[:, inputs.diagonal() == 0] = 0.0
    rows, columns = weight.shape
    codes = torch.empty_like(weight)
    scales, zeros = (torch.empty(rows, columns // group) for _ in range(2))
    for start in range(0, columns, BLOCK):
        stop = min(start + BLOCK, columns)
        errors = torch.empty(rows, stop - start)
        for column in range(start, stop):
            at = column // group
            if column % group == 0:
                ahead = weight[:, column : column + group].clone()
                scales[:, at], zeros[:, at] = symmetric_grid(ahead, scale_type)
            own = weight[:, column : column + 1]
            codes[:, column : column + 1] = codes_of(own, scales[:, at], zeros[:, at])
            rounded = values_of(codes[:, column : column + 1], scales[:, at], zeros[:, at])
            error = (own - rounded) / inverse[column, column]
            weight[:, column:stop] -= error * inverse[column, column:stop]
            errors[:, column - start] = error[:, 0]
        weight[:, stop:] -= errors @ inverse[start:stop, stop:]
    return int4(codes, scales, zeros)


def _inverse_factor(inputs: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of the damped matrix; an input with only zeros has an arbitrary nonzero
    diagonal."""
    diagonal = inputs.diagonal()
    damping = DAMPING * diagonal.mean().clamp(min=torch.finfo(torch.float32).tiny)
    unused = (diagonal == 0).to(inputs.dtype)
    for _ in range(DAMPINGS):
        factor, failed = torch.linalg.cholesky_ex(inputs + torch.diag(unused + damping))
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(factor), upper=True)
            if not failed:
                factor_of_inverse: Tensor = upper
                return factor_of_inverse
        damping = damping * 10
    raise ValueError("the products of its inputs cannot be inverted, however much they are damped")
