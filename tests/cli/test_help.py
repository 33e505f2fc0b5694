"""Help pages: one screen of 80 columns, with defaults, and searchable."""

import itertools
import re
import subprocess
import sys
from typing import get_args

import pytest

from rondo.base.errors import ConfigError
from rondo.cli.completion.candidates import parsers
from rondo.cli.main import VERBS, main
from rondo.cli.options.arguments import VerbParser
from rondo.cli.options.examples import EXAMPLES
from rondo.cli.options.help import help_page, matching, shortened
from rondo.cli.options.reference import VERBS as SCOPES
from rondo.cli.options.scopes import GUESSES, RL, SERVE, train_scope
from rondo.cli.options.short import read_settings
from rondo.cli.options.tree import setting_keys
from rondo.train.config import Kind, TrainConfig

SCREEN = 50
"""Lines of a terminal window."""


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    monkeypatch.delenv("RONDO_CONFIG", raising=False)


@pytest.fixture(scope="module")
def every() -> dict[str, VerbParser]:
    return dict(itertools.chain.from_iterable(parsers(verb) for verb in VERBS))


def test_plain_help_is_one_screen(every: dict[str, VerbParser], capsys: pytest.CaptureFixture[str]):
    for verb in ("", *VERBS):
        main([verb, "--help"] if verb and f"rondo {verb}" not in every else ["--help"])
    pages = {prog: help_page(parser) for prog, parser in every.items()} | {"rondo": capsys.readouterr().out}
    assert len(pages) > 30
    for prog, page in pages.items():
        lines = page.splitlines()
        assert max(map(len, lines)) <= 80, prog
        assert prog == "rondo" or len(lines) <= SCREEN, prog


def test_full_help_has_every_setting_in_80_columns(every: dict[str, VerbParser]):
    for prog, parser in every.items():
        page = help_page(parser, "all")
        assert max(map(len, page.splitlines())) <= 80, prog
        for path in parser.scope.settings() if parser.scope else ():
            assert parser.scope.spelled(path) in page, (prog, path)


def test_every_option_is_described_and_every_verb_has_an_example(every: dict[str, VerbParser]):
    for prog, parser in every.items():
        bare = [action.dest for action in parser._actions if not action.help and action.dest != "help"]
        assert not bare, prog
        assert prog in EXAMPLES
        assert f"example:  {EXAMPLES[prog]}" in help_page(parser)
    assert EXAMPLES.keys() == every.keys()


def test_defaults_are_shown(every: dict[str, VerbParser]):
    assert "prompt tokens (1024)" in help_page(every["rondo plan"])


@pytest.mark.parametrize("recipe", get_args(Kind))
def test_defaults_of_a_recipe_are_those_that_it_trains_with(
    every: dict[str, VerbParser], recipe: Kind
) -> None:
    found = {entry.flag.split()[0]: entry.text for entry in train_scope(recipe).entries()}
    config = TrainConfig().of_kind(recipe)
    epochs = config.epochs_of(recipe)
    defaults = {
        "--lr": config.lr,
        "--evaluate.held-out": config.held_out_of(recipe),
        "--epochs": epochs,
        "--steps": config.steps if epochs is None else None,
    }
    for flag, value in defaults.items():
        noted = re.search(r" \(([^()]*)\)$", found[flag])
        assert (noted and noted[1]) == (None if value is None else f"{value:g}"), flag
    page = help_page(every[f"rondo train {recipe}"])
    assert ("passes over the training data (3)" in page) == (recipe == "sft")
    assert ("optimizer steps (100)" in page) == (recipe != "sft")


def test_search_by_name(capsys: pytest.CaptureFixture[str]):
    assert main(["train", "sft", "--help=lr"]) == 0
    out = capsys.readouterr().out
    assert "--lr X" in out
    assert "--lr-end X" in out
    assert "--batch" not in out


def test_search_by_description_and_over_all_verbs(capsys: pytest.CaptureFixture[str]):
    assert main(["rl", "--help=entropy bonus"]) == 0
    assert "--entropy X" in capsys.readouterr().out
    assert main(["--help=lr"]) == 0
    out = capsys.readouterr().out
    assert "--train.lr X" in out
    assert "--rl.critic.lr X" in out
    assert main(["serve", "--help=prefix caching"]) == 0
    assert "--enable-prefix-caching" in capsys.readouterr().out
    assert main(["model", "--help=quant"]) == 0
    assert capsys.readouterr().out.split()[0] == "quantize"
    assert main(["config", "--help=lr"]) == 0
    assert "--train.lr X" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--help=zzz"], ["rl", "--help=zzz"], ["model", "--help=zzz"]])
def test_a_search_without_a_match(argv: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(argv) == 2
    assert "'zzz'" in capsys.readouterr().err


def read(parser: VerbParser, *argv: str) -> dict[str, object]:
    command = read_settings(parser, list(argv))
    assert command is not None
    assert not command.rest
    return {path: value for path, value, source in command.config.rows() if source.kind == "flag"}


TRAIN = VerbParser("rondo train sft", "", train_scope("sft"))


@pytest.mark.parametrize(
    ("argv", "settings"),
    [
        (["--lr", "1e-3"], {"train.lr": 0.001}),
        (["--lr=1e-3", "--steps", "5"], {"train.lr": 0.001, "train.steps": 5}),
        (["--batch", "32k"], {"train.tokens_per_step": 32768}),
        (["--max-length", "1K"], {"train.max_length": 1024}),
        (["--max_length=1k"], {"train.max_length": 1024}),
        (["--lora"], {"train.adapter.kind": "lora"}),
        (["--lora=8"], {"train.adapter.kind": "lora", "train.adapter.r": 8}),
        (["--adapter.alpha", "4"], {"train.adapter.alpha": 4.0}),
        (["--lr", "1", "--train.lr=2"], {"train.lr": 2.0}),
    ],
)
def test_short_forms(argv: list[str], settings: dict[str, object]):
    assert read(TRAIN, *argv) == settings


def test_short_forms_of_rl():
    parser = VerbParser("rondo rl", "", RL)
    assert read(
        parser, "--batch", "4", "--group=2", "--lora", "--lr", "1e-4", "--engine.url", "http://x:1"
    ) == {
        "rl.prompts_per_step": 4,
        "rl.samples_per_prompt": 2,
        "rl.adapter.kind": "lora",
        "rl.lr": 1e-4,
        "rl.engine.url": ("http://x:1",),
    }


def test_a_batch_of_records_is_refused():
    with pytest.raises(ConfigError, match="--batch counts tokens, not records"):
        read(TRAIN, "--batch", "32")


def test_the_source_is_the_flag_that_was_written():
    command = read_settings(TRAIN, ["--lr", "1", "--batch=1k"])
    assert command is not None
    assert str(command.config.sources["train.lr"]) == "--lr"
    assert str(command.config.sources["train.tokens_per_step"]) == "--batch"
    with pytest.raises(ConfigError, match=r"\(--lr\)"):
        read(TRAIN, "--lr", "x")


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--learning-rate", "--lr"),
        ("--batch_size", "--batch"),
        ("--lora-alpha", "--adapter.alpha"),
        ("--tokens-per-stp", "--tokens-per-step"),
        ("--targets", "--adapter.targets"),
        ("--weight_decai", "--weight-decay"),
    ],
)
def test_an_unknown_flag_names_the_nearest(flag: str, meant: str, capsys: pytest.CaptureFixture[str]):
    assert main(["train", "sft", "--model", "m", "--data", "d", flag, "3"]) == 2
    assert f"Did you mean {meant}?" in capsys.readouterr().err


def test_guesses_lead_to_flags_that_exist():
    right = {meant.partition("=")[0] for meant in GUESSES.values()}
    own = {"--model", "--data", "--epochs"}
    scopes = (train_scope("sft"), RL)
    known = {name for scope in scopes for name in (*scope.flags, *own)}
    assert [name for name in right - known if not any(scope.path_of(name) for scope in scopes)] == []


def test_essential_settings_exist():
    for scope in (*(train_scope(kind) for kind in ("sft", "preference", "reward")), RL, SERVE):
        for names in scope.essential.values():
            assert all(name in scope.flags or name in scope.settings() for name in names)
    assert all(
        flag.path in setting_keys()
        for _, scope, _ in SCOPES.values()
        for flag in scope.flags.values()
        if flag.path
    )


def test_a_long_description_is_cut_at_a_clause():
    assert (
        shortened("batch size in tokens, independent of the number of devices (5)", 40)
        == "batch size in tokens (5)"
    )
    assert len(shortened("one two three four five six seven eight nine", 20)) <= 20


def test_names_come_before_descriptions():
    entries = list(RL.entries())
    found = [entry.key for entry in matching("kl", entries)]
    assert found[0] == "rl.kl"
    assert "rl.alarms.mismatch" in found[6:]


@pytest.mark.parametrize(
    "verb", ["train sft", "rl", "serve", "plan", "config", "evaluate", "model list", "job list"]
)
def test_help_imports_nothing_heavy(verb: str):
    heavy = ("torch", "rich", "httpx", "starlette", "numpy", "sqlalchemy", "tokenizers", "jinja2")
    code = (
        f"import sys\nfrom rondo.cli.main import main\ntry:\n    main({[*verb.split(), '--help']})\n"
        f"except SystemExit: pass\nprint([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
