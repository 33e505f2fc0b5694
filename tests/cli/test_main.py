import os
import subprocess
import sys
from pathlib import Path

import pytest

import rondo
from rondo.base.errors import NotFound
from rondo.cli import main as command
from rondo.cli.main import VERBS, main
from support.terminal import Terminal

HEAVY = (
    *("torch", "pydantic", "rich", "starlette", "uvicorn", "httpx", "numpy", "tokenizers", "jinja2"),
    *("sqlalchemy", "alembic", "psycopg"),
)


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **env},
        check=False,
    )


@pytest.mark.parametrize(
    "code",
    [
        "import rondo",
        "from rondo.cli.main import main; main(['--help'])",
        "from rondo.cli.main import main; main(['--version'])",
        "from rondo.cli.main import main; main(['servee'])",
        "from rondo.cli.main import main; main(['model', '--help'])",
    ],
)
def test_nothing_heavy_is_imported(code: str):
    done = python(f"import sys\n{code}\nprint([name for name in {HEAVY} if name in sys.modules])")
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_a_server_without_a_store_imports_no_database():
    code = "import sys, rondo, rondo.cli.commands.serve, rondo.server.app"
    done = python(f"{code}\nprint([name for name in ('sqlalchemy', 'alembic') if name in sys.modules])")
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_verb(argv: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {verb} " in out for verb in VERBS)


@pytest.mark.parametrize("argv", [["--version"], ["-V"], ["version"]])
def test_version(argv: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(argv) == 0
    assert capsys.readouterr().out == f"rondo {rondo.__version__}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]):
    try:
        code = main([verb, "--help"])
    except SystemExit as leaving:  # how argparse ends after its help
        code = int(leaving.code or 0)
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert f"rondo {verb}" in captured.out


@pytest.mark.parametrize("argv", [["frobnicate"], ["job", "x"], ["train", "rm"]])
def test_nothing_is_suggested_that_is_not_similar(argv: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert "Did you mean" not in said
    assert f"See rondo {argv[0] + ' ' if len(argv) == 2 else ''}--help." in said


def test_the_demo_has_tasks_that_it_learns(capsys: pytest.CaptureFixture[str]):
    assert main(["demo", "--task", "countdown", "--no-serve"]) == 2
    assert "invalid choice: 'countdown'" in capsys.readouterr().err
    for verb in ("demo", "rl"):
        assert main([verb, "--help"]) == 0
    assert "countdown" not in capsys.readouterr().out


def test_unknown_verb_names_the_nearest(capsys: pytest.CaptureFixture[str]):
    assert main(["sreve"]) == 2
    assert capsys.readouterr().err == (
        "error: There is no verb 'sreve'. Did you mean `rondo serve`? See rondo --help.\n"
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("serve ~nobody-here/x", "model '~nobody-here/x' is no path"),
        ("serve " + "x" * 300, "longer than the file system allows"),
        ("serve tiny --config ~nobody-here/x", "--config '~nobody-here/x' is no path"),
        ("model inspect ~nobody-here/x", "model '~nobody-here/x' is no path"),
        ("model import ~nobody-here/x", "FOLDER '~nobody-here/x' is no path"),
        ("model new x --hf-config ~nobody-here/x", "--hf-config '~nobody-here/x' is no path"),
        ("model new x --preset tiny --tokenizer ~nobody-here/x", "--tokenizer '~nobody-here/x' is no path"),
    ],
)
def test_a_path_that_cannot_be_is_no_bug(line: str, says: str, capsys: pytest.CaptureFixture[str]):
    assert main([*line.split(), "--server.port=0"] if line.startswith("serve") else line.split()) == 2
    assert says in capsys.readouterr().err


def failing(error: BaseException):
    def run(_: list[str]) -> int:
        raise error

    return run


def test_an_error_is_one_line_and_a_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(command, "dispatch", failing(NotFound("no model 'x'.\nTry another.")))
    assert main(["model"]) == NotFound.exit_code
    assert capsys.readouterr().err == "error: no model 'x'. Try another.\n"


def test_a_bug_is_one_line_and_a_hint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(command, "dispatch", failing(ZeroDivisionError("division by zero")))
    monkeypatch.delenv("RONDO_DEBUG", raising=False)
    assert main(["model"]) == 70
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "ZeroDivisionError: division by zero (this is a bug; run again with RONDO_DEBUG=1" in line
    monkeypatch.setenv("RONDO_DEBUG", "1")
    main(["model"])
    assert "Traceback" in capsys.readouterr().err


def test_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(command, "dispatch", failing(KeyboardInterrupt()))
    assert main(["serve"]) == 130
    assert capsys.readouterr().err == ""


def test_a_closed_pipe_is_quiet():
    script = f'"{sys.executable}" -m rondo.cli --help | true; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")  # 0 where it had written before the reader left


def test_a_pipe_that_closes_early_is_quiet():
    code = "import sys, rondo.cli.main as m; m.usage = lambda: 'x' * 10**7; sys.exit(m.main(['--help']))"
    script = f'"{sys.executable}" -c "{code}" | head -c 1; echo " ${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("x 141\n", "")


def test_a_full_output_device_is_one_line():
    code = "import sys; from rondo.cli.main import main; sys.exit(main(['--help']))"
    script = f'"{sys.executable}" -c "{code}" > /dev/full'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 6
    assert done.stderr == "error: No space left to write the output.\n"


@pytest.mark.parametrize(
    "line",
    ["model list", "job list", "plan llama-3-8b", "config", "config --explain train.lr", "--help=lr", "ls"],
)
def test_quick_verbs_import_no_torch_and_no_http(line: str, tmp_path):
    heavy = (
        "torch",
        "rich",
        "httpx",
        "starlette",
        "numpy",
        "tokenizers",
        "jinja2",
        "sqlalchemy",
        "transformers",
    )
    code = f"from rondo.cli.main import main; main({line.split()})"
    done = python(
        f"import sys\n{code}\nprint([name for name in {heavy} if name in sys.modules])",
        RONDO_HOME=str(tmp_path),
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(("alias", "verb"), [("ls", ["model", "list"])])
def test_aliases(alias: str, verb: list[str], capsys: pytest.CaptureFixture[str], monkeypatch, tmp_path):
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    assert main([*verb, "--json"]) == 0
    expected = capsys.readouterr().out
    assert main([alias, "--json"]) == 0
    assert capsys.readouterr().out == expected


def test_rm_removes_jobs_and_models(monkeypatch, tmp_path, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    job = tmp_path / "jobs" / ("ab" * 32)
    job.mkdir(parents=True)
    (job / "spec.json").write_text('{"kind": "sft"}')
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "models" / "mine" / "config.json").write_text("{}")
    assert main(["rm", "abababab", "--yes"]) == 0
    assert not job.exists()
    assert main(["rm", "mine", "--yes"]) == 0
    assert not (tmp_path / "models" / "mine").exists()
    assert main(["rm", "nothing", "--yes"]) != 0


def test_errors_are_wrapped_on_a_terminal_and_their_commands_are_not(tmp_path: Path) -> None:
    with Terminal("serve", "nothing-here", environment={"RONDO_HOME": str(tmp_path)}) as terminal:
        assert terminal.end() == 4
        lines = terminal.text.splitlines()
    assert len(lines) > 1
    assert all(len(line) <= 80 or str(tmp_path) in line for line in lines)
    assert "`rondo pull ORG/NAME`" in terminal.text
