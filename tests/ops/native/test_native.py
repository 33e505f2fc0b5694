import fcntl
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rondo.ops.measure import probe
from rondo.ops.native.build import build
from rondo.ops.native.build.ahead import KERNELS, lost, runs

needs_compiler = pytest.mark.skipif(
    not build.compiler(), reason="no C compiler here: install gcc to test the compiled kernels"
)
QUICKEST = "draw"
"""To compile."""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    monkeypatch.delenv("RONDO_NATIVE", raising=False)
    monkeypatch.delenv("RONDO_KERNELS", raising=False)
    return tmp_path


@pytest.fixture
def warnings(monkeypatch):
    said = []
    monkeypatch.setattr(build.log, "warning", lambda text, extra: said.append((text, extra["why"])))
    return said


def library():
    """As a process that has not asked for it yet."""
    return build.library.__wrapped__(QUICKEST)


@pytest.mark.parametrize("changes", [{"CC": "/nowhere/cc"}, {"CC": "false"}, {"RONDO_NATIVE": "0"}])
def test_without_a_compiler_the_slower_kernels_serve_and_it_is_said(home, monkeypatch, warnings, changes):
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    assert library() is None
    assert len(warnings) == ("CC" in changes)
    assert all("could not be compiled: the slower one serves" in text for text, _ in warnings)
    assert not list(home.rglob("*.so"))
    assert not list(home.rglob("*.partial"))


@pytest.mark.parametrize("compiler", ["/nowhere/cc", "false"])
def test_with_a_compiler_that_fails_every_operation_is_its_reference(home, monkeypatch, warnings, compiler):
    """Or torch's own."""
    monkeypatch.setenv("CC", compiler)
    build.library.cache_clear()
    try:
        for case in probe.cases((1,), streamed=1):
            with torch.inference_mode():
                version = case.op.version(*case.given[0])
                case.op(*case.given[0])
            assert not version.__module__.startswith("rondo.ops.native."), case.operation
        assert str(lost()).startswith(
            "kernels that could not be compiled run as plain torch: layers, linear, "
        )
        assert runs("bf16") == "plain torch"
        assert len(warnings) == len(KERNELS)
    finally:
        build.library.cache_clear()


@needs_compiler
def test_the_compilers_first_error_is_told(home, monkeypatch, warnings):
    monkeypatch.setattr(build, "FLAGS", ["-no-such-flag"])
    assert library() is None
    [(_, why)] = warnings
    assert "non-zero exit status" in why
    assert "no-such-flag" in why


def test_a_compiler_that_never_ends_is_given_up(home, monkeypatch, warnings):
    monkeypatch.setattr(build, "compiler", lambda: ["sh", "-c", "exec sleep 60"])
    monkeypatch.setattr(build, "SECONDS", 0.2)
    assert library() is None
    assert "timed out" in warnings[0][1]


@needs_compiler
def test_who_start_together_compile_once(home, monkeypatch):
    """Threads, to whom the lock is what it is to processes."""
    compiler, compiled = home / "cc", home / "compiled"
    real = " ".join(build.compiler())
    compiler.write_text(f'#!/bin/sh\necho >> {compiled}\nsleep 0.2\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: library(), range(4)))
    assert library()
    assert compiled.read_text() == "\n"
    assert len(list(home.rglob("*.so"))) == 1


@needs_compiler
def test_kernels_compile_on_a_file_system_without_locks(home, monkeypatch):
    def refused(*args):
        raise OSError("no locks on this file system")

    monkeypatch.setattr(fcntl, "flock", refused)
    assert library()


@needs_compiler
@pytest.mark.parametrize("source", build.SOURCES.values(), ids=lambda path: path.stem)
def test_every_kernel_compiles_where_there_is_a_compiler(source):
    """Else the slower ones would serve, and tests of compiled kernels would pass without one."""
    assert build.library(source.stem) is not None


def test_all_kernels_are_compiled_ahead():
    assert set(KERNELS) == set(build.SOURCES)


@needs_compiler
def test_homes_share_the_folder_of_compiled_kernels(home, tmp_path, monkeypatch):
    monkeypatch.setenv("RONDO_KERNELS", str(tmp_path / "shared"))
    assert library() is not None
    (made,) = (tmp_path / "shared").glob("*.so")
    before = made.stat()
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "another"))
    monkeypatch.setattr(build, "_compile", pytest.fail)
    assert library() is not None
    assert made.stat().st_mtime_ns == before.st_mtime_ns
    assert not list(tmp_path.rglob("cache/**/*.so"))
