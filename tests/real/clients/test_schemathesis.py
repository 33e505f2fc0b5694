"""Schemathesis's own command against a server process: the cases that it makes of `/openapi.json` never end in a server
error, and each answer has the described status, content type and schema."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from real.clients.plain import KEY
from support.served import ADMIN_KEY, Served

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
HELD = ("/sleep", "/pause")
"""After these every other request waits."""


def test_no_request_breaks_a_server(folder: Path, tmp_path: Path) -> None:
    """Its context is so short that every answer ends soon."""
    limits = ("--max-model-len=24", "--engine.max_num_seqs=4", "--engine.max_queued=6")
    keys = (f"--api-key={KEY}", "--server.allow_priority=true")
    server = Served(folder, tmp_path / "served", "--server.served_model_name=tiny", *keys, *limits)
    options = {
        "header": f"Authorization: Bearer {KEY}",
        "checks": ",".join(CHECKS),
        "phases": "examples,coverage,fuzzing",
        "max-examples": 15,
        "seed": 0,
        "generation-database": "none",
        "request-timeout": 60,
        "suppress-health-check": "all",
        "warnings": "off",
        "workers": 2,
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    flags += [f"--header=X-Admin-Key: {ADMIN_KEY}", *(f"--exclude-path={path}" for path in HELD)]
    try:
        server.start().wait()
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            f"{server.url}/openapi.json",
            "--no-color",
        ]
        done = subprocess.run([*command, *flags], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    finally:
        server.kill()
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    summary = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert summary is not None, done.stdout[-3000:]
    made, passed = map(int, summary.groups())
    assert made == passed > 1000
