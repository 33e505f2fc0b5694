"""A built wheel in a new environment, on a machine without a compiler."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]


def pip(python: Path | str, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input", *arguments]
    subprocess.run(command, check=True, cwd=ROOT)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_is_pure_python_with_the_kernels_sources(wheel: Path):
    assert wheel.name.startswith("rondo_lab-")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"rondo/cli/main.py", "rondo/py.typed", "rondo/ops/native/gemm/linear.c"} <= set(names)


def test_it_installs_and_runs_without_a_compiler(wheel: Path, tmp_path: Path):
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    # torch by itself first: the build of the machine's own index.
    pip(python, "install", "-c", str(ROOT / "constraints.txt"), "torch==2.13.0")
    pip(python, "install", "-c", str(ROOT / "constraints.txt"), str(wheel))
    (tmp_path / "bin").mkdir()
    env = {"PATH": str(tmp_path / "bin"), "RONDO_HOME": str(tmp_path / "home"), "HOME": os.environ["HOME"]}

    def rondo(*arguments: str) -> str:
        command = [str(python.with_name("rondo")), *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "compiler   none" in rondo("doctor")
    assert '"reward_end"' in rondo("demo", "--quick", "--no-serve", "--json")
