"""`rondo gateway` as a process with HTTPS, and its mistakes."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from rondo.cli.main import main
from support.ports import free_port
from support.served import SOURCES
from support.waiting import scaled, wait_until


def gateway(folder: Path, *flags: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(SOURCES), "RONDO_HOME": str(folder)}
    command = [sys.executable, "-m", "rondo.cli", "gateway", *flags]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_https_with_a_certificate(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ),
            *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    port = free_port()
    process = gateway(tmp_path, f"--port={port}", f"--tls-certificate={certificate}", f"--tls-key={key}")
    try:
        wait_until(lambda: _status(port, certificate) == 200)
    finally:
        process.terminate()
        process.communicate(timeout=scaled(60))
    assert process.returncode == 0


def _status(port: int, certificate: Path) -> int:
    import ssl

    try:
        context = ssl.create_default_context(cafile=certificate)
        return httpx.get(f"https://127.0.0.1:{port}/health", verify=context).status_code
    except httpx.TransportError:
        return 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--tls-key=x"], "tls_certificate and tls_key are set together"),
        (["--tls-key=x", "--tls-certificate=y"], "there is no file y"),
        (["--port=0", "--host=0.0.0.0", "--keys=optional"], "--keys required"),
        (["--prot=1"], "--port"),
    ],
)
def test_mistakes_name_their_setting(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    says: str,
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    assert main(["gateway", "--port=0", *flags]) == 2
    assert says in capsys.readouterr().err
