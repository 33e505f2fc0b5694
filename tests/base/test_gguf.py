"""The container: files of llama.cpp's own writer are read, and every damaged file is an error that names the field."""

import contextlib
import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from rondo.base.errors import ModelError
from rondo.base.storage.gguf import (
    MAGIC,
    OTHER_TYPES,
    READABLE,
    entry_bytes,
    gguf_in,
    is_gguf,
    metadata_bytes,
    read_gguf,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    writer = gguf.GGUFWriter(path := tmp_path / "model.gguf", "qwen3")
    writer.add_uint64("test.large", 2**40)
    writer.add_int16("test.small", -3)
    writer.add_float32("test.eps", 1e-6)
    writer.add_float64("test.wide", 0.1)
    writer.add_bool("test.flag", True)
    writer.add_string("test.text", "größer ⚡")
    writer.add_array("test.words", ["a", "", "日本"])
    writer.add_array("test.numbers", [1, 2, 3])
    writer.add_tensor("first", np.arange(96, dtype=np.float32).reshape(3, 32))
    ones = gguf.quants.quantize(np.ones((2, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("second", ones, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_values_of_every_kind(file: Path) -> None:
    metadata = read_gguf(file).metadata
    assert metadata["general.architecture"] == "qwen3"
    assert (metadata["test.large"], metadata["test.small"], metadata["test.flag"]) == (2**40, -3, True)
    assert (metadata["test.eps"], metadata["test.wide"]) == (1e-6, 0.1)
    assert metadata["test.text"] == "größer ⚡"
    assert metadata["test.words"].values == ["a", "", "日本"]
    assert metadata["test.numbers"] == [1, 2, 3]


def test_places_of_tensors(file: Path) -> None:
    read = read_gguf(file)
    first, second = read.tensors["first"], read.tensors["second"]
    assert (first.shape, first.type.name) == ((3, 32), "F32")
    assert np.frombuffer(read.data[first.start : first.stop], "<f4").tolist() == list(range(96))
    assert (second.shape, second.type.name, second.stop - second.start) == ((2, 64), "Q8_0", 2 * 2 * 34)
    sizes = gguf.GGML_QUANT_SIZES
    assert all(
        sizes[gguf.GGMLQuantizationType(number)] == (kind.numbers, kind.size)
        for number, kind in READABLE.items()
    )
    assert all(gguf.GGMLQuantizationType(number).name == name for number, name in OTHER_TYPES.items())


def test_a_file_cut_at_any_place_is_an_error_that_names_it(file: Path, tmp_path: Path) -> None:
    whole, cut = file.read_bytes(), tmp_path / "cut.gguf"
    for size in range(0, read_gguf(file).tensors["second"].stop, 7):
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            read_gguf(cut)


def test_garbage_is_never_more_than_an_error(file: Path, tmp_path: Path) -> None:
    whole, spoiled, source = file.read_bytes(), tmp_path / "spoiled.gguf", random.Random(0)
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(source.randrange(1, 6)):
            data[source.randrange(len(data))] = source.randrange(256)
        spoiled.write_bytes(data)
        with contextlib.suppress(ModelError):
            read_gguf(spoiled)


def whole_file(metadata: bytes, pairs: int, tensors: bytes = b"", count: int = 0, version: int = 3) -> bytes:
    return MAGIC + struct.pack("<IQQ", version, count, pairs) + metadata + tensors


NAME = metadata_bytes("general.architecture", "llama")
ONE = entry_bytes("w", (4,), "F32", 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
        (b"", "not a GGUF file"),
        (whole_file(NAME, 1, version=1), "version 1; versions 2 and 3 are supported"),
        (whole_file(NAME[:-3], 1), "truncated or damaged at 'general.architecture'"),
        (whole_file(NAME, 2), "truncated or damaged at 'metadata key 1'"),
        (whole_file(NAME, 1, ONE, 1), "truncated: tensor 'w' ends at byte"),
        (whole_file(NAME, 1, ONE[:-9], 1), "truncated or damaged at 'w'"),
        (whole_file(metadata_bytes("general.alignment", 3), 1), "'general.alignment' is 3"),
        (whole_file(metadata_bytes("split.count", 3), 1), "llama-gguf-split --merge"),
        (
            whole_file(NAME, 1, ONE[:-12] + struct.pack("<IQ", 17, 0), 1),
            "'w' has type IQ2_XS, which is not supported",
        ),
        (whole_file(NAME, 1, ONE[:-12] + struct.pack("<IQ", 999, 0), 1), "tensor type 999"),
        (
            whole_file(NAME, 1, ONE[:-12] + struct.pack("<IQ", 8, 0), 1),
            r"shape \[4\], which Q8_0 cannot store",
        ),
        (whole_file(struct.pack("<Q", 1) + b"k" + struct.pack("<I", 77), 1), "'k' has value type 77"),
    ],
)
def test_errors_name_the_field(tmp_path: Path, data: bytes, message: str) -> None:
    (path := tmp_path / "bad.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=message) as error:
        read_gguf(path)
    assert "bad.gguf" in error.value.message


def test_an_unsupported_type_comes_with_the_command_that_helps(tmp_path: Path) -> None:
    (path := tmp_path / "small.gguf").write_bytes(
        whole_file(NAME, 1, ONE[:-12] + struct.pack("<IQ", 23, 0), 1)
    )
    with pytest.raises(ModelError, match=r"llama-quantize --allow-requantize small\.gguf NEW\.gguf Q8_0"):
        read_gguf(path)


def test_nested_arrays_have_a_limit(tmp_path: Path) -> None:
    nested = struct.pack("<Q", 1) + b"k" + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50
    (path := tmp_path / "nested.gguf").write_bytes(whole_file(nested, 1))
    with pytest.raises(ModelError, match="'k'"):
        read_gguf(path)


def test_a_changed_file_is_read_again(file: Path) -> None:
    assert "test.text" in read_gguf(file).metadata
    file.write_bytes(whole_file(NAME, 1))
    assert set(read_gguf(file).metadata) == {"general.architecture"}


def test_the_model_of_a_path(file: Path, tmp_path: Path) -> None:
    assert is_gguf(file)
    assert gguf_in(file) == file == gguf_in(tmp_path)
    assert gguf_in(tmp_path / "absent.gguf") is None
    (tmp_path / "other.GGUF").write_bytes(b"")
    with pytest.raises(
        ModelError, match=r"2 GGUF files: give the path of one of them \(model.gguf, other.GGUF\)"
    ):
        gguf_in(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert gguf_in(tmp_path) is None
