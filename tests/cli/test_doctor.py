"""`rondo doctor`: a table for people, an object for programs."""

import dataclasses
import json
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from rondo.base.errors import ConfigError
from rondo.cli.commands import doctor
from rondo.cli.main import main
from rondo.cli.subcommands import doctor_machine
from rondo.ops.measure import limits, probe
from rondo.ops.native.build import level, tune
from rondo.ops.native.build.tuned import TunedSplit
from rondo.ops.triton import report
from rondo.plan import machine as plan_machine


@pytest.fixture(scope="module")
def some():
    return [case for case in probe.cases((1,), streamed=1) if case.operation in ("linear", "rms norm")]


@pytest.fixture(autouse=True)
def _few(monkeypatch, some):
    monkeypatch.setattr(probe, "cases", lambda rows: some)
    given = limits.HardwareLimits(1e10, {"fp32": 1e11, "bf16": 1e12})
    monkeypatch.setattr(limits, "measure_limits", lambda budget: given)
    monkeypatch.setattr(doctor, "SECONDS", 0.001)
    found = TunedSplit(few=24, columns=512, times_with_few_rows=1.25, times_with_many_rows=1.0)
    monkeypatch.setattr(tune, "tune", lambda products: {product.name: found for product in products})


def lines_of(out: str) -> dict[str, str]:
    """The page by its first column."""
    found: dict[str, str] = {}
    name = ""
    for line in out.splitlines():
        name = line[:10].strip() or name
        found[name] = f"{found.get(name, '')} {line[11:].strip()}".strip()
    return found


def test_the_page_without_measurements(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert doctor.run([]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    page = lines_of(out)
    assert {
        "python",
        "torch",
        "cpu",
        "memory",
        "home",
        "compiler",
        "kernels",
        "sandbox",
        "extras",
    } <= page.keys()
    assert page["kernels"].startswith("fp32 ")
    assert ", ".join(level.available()) in page["kernels"]
    assert page["torch"].startswith(torch.__version__)
    assert "hub" not in page


def test_missing_extras_come_with_their_command(capsys, monkeypatch):
    monkeypatch.setitem(doctor_machine.EXTRAS, "wandb", ("no_such_module", "Weights & Biases"))
    assert doctor.run([]) == 0
    assert "pip install 'rondo-lab[wandb]'" in capsys.readouterr().out


def test_every_extra_is_listed():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert doctor_machine.EXTRAS.keys() == project["optional-dependencies"].keys() - {"dev", "docs"}


def test_a_broken_installation_is_exit_code_1(capsys, monkeypatch):
    broken = {"version": None, "error": "libtorch.so: cannot open shared object file"}
    monkeypatch.setattr(doctor_machine, "_torch", lambda: broken)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "broken     torch cannot be imported: libtorch.so" in out
    assert "kernels" not in out


def test_advice(monkeypatch):
    monkeypatch.setattr(doctor_machine.shutil, "which", lambda name: None)
    found = doctor_machine.machine()
    assert found["compiler"] is None
    assert any("apt install gcc" in text for text in found["advice"])


@pytest.mark.parametrize("status", [200, 401, None])
def test_the_hub_is_reached_on_request(status, capsys, monkeypatch):
    class Hub(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port if status else 1}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert doctor.run(["--hub"]) == 0
        server.shutdown()
    assert ("is reachable" if status else "is not reachable") in lines_of(capsys.readouterr().out)["hub"]


def test_the_table_has_a_row_for_each_operation(capsys):
    assert doctor.run(["--kernels"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "limits: 10.0 GB/s read; 100 Gflop/s in fp32, 1e+03 Gflop/s in bf16" in lines
    assert len([line for line in lines if line.startswith(("linear", "rms norm"))]) == 4
    assert any("%" in line for line in lines)
    (tuned,) = (line.split() for line in lines if line.startswith("fp32 3072 x 1024"))
    assert tuned[-4:] == ["24", "1.25", "512", "1.00"]


def test_what_would_run_on_cuda_and_what_would_not(monkeypatch):
    monkeypatch.setattr(report, "missing", lambda: None)
    monkeypatch.setattr(report, "version", lambda: "Triton 9")
    monkeypatch.setattr(report.torch.cuda, "is_available", lambda: False)
    found = report.on_cuda()
    assert found.plain == ["linear", "quantized linear"]
    (line,) = doctor._shown_cuda(dataclasses.asdict(found))
    assert line.startswith("CUDA: no device here; Triton 9 would run rms norm, ")
    assert line.endswith("; torch linear, quantized linear")
    monkeypatch.setattr(report, "missing", lambda: "Triton cannot be imported")
    (line,) = doctor._shown_cuda(dataclasses.asdict(report.on_cuda()))
    assert line == "CUDA: no device here; plain torch for every operation: Triton cannot be imported"


def test_programs_get_numbers(capsys):
    assert main(["doctor", "--json"]) == 0
    machine = json.loads(capsys.readouterr().out)
    assert machine["level"] == level.level()
    assert machine["available"] == level.available()
    assert machine["threads"] > 0
    assert set(machine["runs"]) == {"fp32", "bf16"}
    assert "missing" in machine
    assert "kernels" not in machine
    assert main(["doctor", "--kernels", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kernels, given, tuned = found.pop("kernels"), found.pop("limits"), found.pop("tuned")
    cuda = found.pop("cuda")
    for moving in (found, machine):
        del moving["memory"], moving["home"]
    assert found == machine
    assert {*cuda["kernels"], *cuda["plain"]} > {"linear", "rms norm", "paged decode"}
    assert given == {"read_bytes_per_second": 1e10, "flops": {"fp32": 1e11, "bf16": 1e12}}
    assert {
        "few": 24,
        "columns": 512,
        "times_with_few_rows": 1.25,
        "times_with_many_rows": 1.0,
    } in tuned.values()
    assert sorted((kernel["operation"], kernel["type"]) for kernel in kernels) == [
        (operation, dtype) for operation in ("linear", "rms norm") for dtype in ("bf16", "fp32")
    ]
    for kernel in kernels:
        limit = given["flops"][kernel["type"]] if kernel["unit"] == "flop/s" else 1e10
        assert kernel["rate"] == pytest.approx(kernel["share"] * limit)
        assert kernel["rate"] > 0
        assert kernel["share"] > 0
        assert kernel["sizes"]
        assert kernel["version"]
        assert kernel["why"]


def test_what_is_missing_is_said(capsys, monkeypatch):
    monkeypatch.setattr("rondo.ops.native.build.ahead.compiler", list)
    doctor.run([])
    assert lines_of(capsys.readouterr().out)["missing"].startswith("there is no C compiler")


def test_an_impossible_level_is_one_line(monkeypatch):
    monkeypatch.setenv("RONDO_CPU", "sse9")
    with pytest.raises(ConfigError, match="sse9 is no level"):
        doctor.run([])


def test_memory_is_that_of_the_container(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    limit.write_text(f"{1 << 30}\n")
    groups = {name: (str(tmp_path), "memory.max") for name in plan_machine.CGROUPS}
    monkeypatch.setattr(plan_machine, "CGROUPS", groups)
    memory = doctor_machine.machine()["memory"]
    assert memory["total_bytes"] == 1 << 30
    assert memory["available_bytes"] <= 1 << 30
