"""Copies past the caches move each byte and no other, at every alignment."""

import numpy as np
import pytest

from rondo.ops.native.pointwise.copy import copy_past_caches


@pytest.mark.parametrize("length", [0, 1, 15, 63, 64, 65, 200, 4096, 100_003])
def test_every_alignment(length: int) -> None:
    source = np.random.default_rng(length).integers(0, 256, length + 64, dtype=np.uint8)
    for begin in (0, 1, 16, 31, 33, 63):
        for first in (0, 1, 7, 32):
            target = np.full(length + 192, 77, np.uint8)
            copy_past_caches(target.ctypes.data + begin, source.ctypes.data + first, length)
            assert np.array_equal(target[begin : begin + length], source[first : first + length])
            assert (target[:begin] == 77).all()
            assert (target[begin + length :] == 77).all()
