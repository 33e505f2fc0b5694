import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, model_validator

from rondo.base.errors import ConfigError
from rondo.base.settings.config import RESERVED, Section, leaves, load, split_flags


class GRPO(Section):
    kind: Literal["grpo"] = "grpo"
    clip: float = 0.2


class DPO(Section):
    kind: Literal["dpo"] = "dpo"
    beta: float = 0.1


class Train(Section):
    lr: float = Field(1e-3, gt=0, description="peak learning rate")
    steps: int = Field(100, ge=1, description="steps")
    name: str = Field("run", description="name")
    compile: bool = Field(False, description="compile")
    betas: tuple[float, float] = Field((0.9, 0.95), description="betas")
    stop: tuple[str, ...] = Field((), description="stop strings")
    seed: int | None = Field(None, description="seed")
    level: Literal[0, 1, "auto"] = Field("auto", description="level")
    extra: dict[str, int] = Field(default_factory=dict, description="anything")

    @model_validator(mode="after")
    def check(self) -> "Train":
        if self.steps > 1000 and self.lr > 1:
            raise ValueError("steps over 1000 need lr at most 1")
        return self


class Log(Section):
    level: str = Field("info", description="level")
    a_b: int = Field(0, description="collides with log.a.b as a variable")


class Tree(Section):
    train: Train = Field(default_factory=Train, description="training")
    log: Log = Field(default_factory=Log, description="logs")
    loss: GRPO | DPO = Field(default_factory=GRPO, description="loss", discriminator="kind")
    spare: Log | None = Field(None, description="a section that may be absent")


@pytest.fixture
def toml(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        (tmp_path / "c.toml").write_text(text)
        return tmp_path / "c.toml"

    return write


def of(path: str, **kwargs: object) -> tuple[object, str]:
    """A value and its source, as `rondo config` has them."""
    loaded = load(Tree, **{"env": {}, **kwargs})  # type: ignore[arg-type]
    return next((value, str(source)) for name, value, source in loaded.rows() if name == path)


def error(**kwargs: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(Tree, **{"env": {}, **kwargs})  # type: ignore[arg-type]
    return str(caught.value)


def test_defaults():
    loaded = load(Tree, env={})
    assert loaded.tree == Tree()
    assert {source.kind for source in loaded.sources.values()} == {"default"}
    assert set(loaded.sources) == {path for path, _ in leaves(Tree())}


def test_later_sources_win(toml: Callable[[str], Path]):
    sources: dict[str, object] = {"file": toml("# a comment\n[train]\nlr = 2\n")}
    assert of("train.lr", **sources) == (2.0, f"{sources['file']}:3")
    sources["env"] = {"RONDO_TRAIN_LR": "3"}
    assert of("train.lr", **sources) == (3.0, "RONDO_TRAIN_LR")
    sources["flags"] = ["--train.lr=4"]
    assert of("train.lr", **sources) == (4.0, "--train.lr")
    assert of("train.steps", **sources) == (100, "default")
    sources["flags"] = ["--train.lr=4", "--train.lr", "5e-1"]
    assert of("train.lr", **sources) == (0.5, "--train.lr")


@pytest.mark.parametrize(
    ("flag", "path", "expected"),
    [
        ("--train.steps=7", "train.steps", 7),
        ("--train.name=7", "train.name", "7"),
        ("--train.name=", "train.name", ""),
        ("--train.name=a=b, c", "train.name", "a=b, c"),
        ("--train.compile", "train.compile", True),
        ("--train.compile=no", "train.compile", False),
        ("--train.compile=ON", "train.compile", True),
        ("--train.betas=0.8,0.9", "train.betas", (0.8, 0.9)),
        ("--train.betas=[0.8, 0.9]", "train.betas", (0.8, 0.9)),
        ("--train.stop=a, b", "train.stop", ("a", "b")),
        ('--train.stop=["a,b"]', "train.stop", ("a,b",)),
        ("--train.stop=", "train.stop", ()),
        ("--train.seed=3", "train.seed", 3),
        ("--train.seed=None", "train.seed", None),
        ("--train.level=1", "train.level", 1),
        ("--train.level=auto", "train.level", "auto"),
        ('--train.extra={"x": 1}', "train.extra", {"x": 1}),
        ("--log.a-b=3", "log.a_b", 3),
    ],
)
def test_text_values(flag: str, path: str, expected: object):
    value, _ = of(path, flags=[flag])
    assert value == expected
    assert type(value) is type(expected)
    name, _, text = flag[2:].partition("=")
    variable = "RONDO_" + name.replace(".", "__").replace("-", "_").upper()
    assert of(path, env={variable: text or ("true" if name == "train.compile" else "")})[0] == expected


def test_lone_boolean_flag_does_not_eat_the_next_flag():
    loaded = load(Tree, env={}, flags=["--train.compile", "--train.steps", "3"])
    assert (loaded.tree.train.compile, loaded.tree.train.steps) == (True, 3)
    assert load(Tree, env={}, flags=["--train.compile", "false"]).tree.train.compile is False


def test_sections_that_vary(toml: Callable[[str], Path]):
    assert of("loss.beta", flags=["--loss.kind=dpo", "--loss.beta=0.5"]) == (0.5, "--loss.beta")
    file = toml('[loss]\nkind = "dpo"\n[spare]\n')
    loaded = load(Tree, file, env={})
    assert loaded.tree.loss == DPO()
    assert loaded.tree.spare == Log()
    assert str(loaded.sources["spare.level"]) == f"{file}:3"
    assert load(Tree, file, env={}, flags=["--spare=none"]).tree.spare is None
    assert load(Tree, env={}, flags=['--loss={"kind": "dpo", "beta": 2}']).tree.loss == DPO(beta=2)
    assert "clip" in error(flags=["--loss.kind=dpo", "--loss.clip=0.5"])


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("train.lrr", "train.lr"),
        ("train.beta", "train.betas"),
        ("train.level_", "train.level"),
        ("trian.lr", "train.lr"),
        ("lr", "train.lr"),
        ("log.steps", "train.steps"),
        ("trainn", "train"),
    ],
)
def test_wrong_key_names_the_nearest(wrong: str, right: str, toml: Callable[[str], Path]):
    section, _, name = wrong.rpartition(".")
    file = toml("\n\n" + (f"[{section}]\n{name} = 1\n" if section else f"{name} = 1\n"))
    line = 4 if section and section != "trian" else 3
    assert error(file=file) == (
        f"Unknown config key {wrong if section != 'trian' else 'trian'} ({file}:{line})."
        f" Did you mean {right if section != 'trian' else 'train'}?"
    )
    if section:
        message = error(flags=[f"--{wrong}=1"])
        assert message == f"Unknown config key {wrong} (the flag --{wrong}). Did you mean {right}?"


@pytest.mark.parametrize(
    ("variable", "right"),
    [
        ("RONDO_TRAIN_LRR", "train.lr"),
        ("RONDO_TRAIN__LRR", "train.lr"),
        ("RONDO_TRAIN_STEP", "train.steps"),
        ("RONDO_LOG_A__C", "log.a_b"),
    ],
)
def test_wrong_variable_names_the_nearest(variable: str, right: str):
    message = error(env={variable: "1"})
    assert f"the environment variable {variable}" in message
    assert message.endswith(f"Did you mean {right}?")


def test_variables_outside_the_tree(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        load(Tree, env={"RONDO_HOME": "/x", "RONDO_DEBUG": "1", "RONDO_TRAINING": "x", "PATH": "/bin"})
    assert [record.args for record in caplog.records] == [("RONDO_TRAINING",)]


@pytest.mark.parametrize("folder", ["src", "bench", "tests"])
def test_every_variable_that_is_read_is_known(folder: str):
    root = Path(__file__).parents[2] / folder
    files = [path for path in root.rglob("*") if path.suffix in (".py", ".sh")]
    read = re.compile(r"""(?:environ(?:\.get\(|\[)|getenv\()["'](RONDO_\w+)|\$\{?(RONDO_\w+)""")
    names = {name for file in files for found in read.findall(file.read_text()) for name in found if name}
    assert names <= RESERVED


def test_a_variable_that_could_mean_two_keys_is_refused():
    class B(Section):
        c: int = 0

    class A(Section):
        b: B = Field(default_factory=B)
        b_c: int = 0

    class Two(Section):
        a: A = Field(default_factory=A)

    with pytest.raises(ConfigError, match="RONDO_A__B__C or RONDO_A__B_C"):
        load(Two, env={"RONDO_A_B_C": "1"})
    assert load(Two, env={"RONDO_A__B_C": "1"}).tree.a.b_c == 1
    assert load(Two, env={"RONDO_A__B__C": "1"}).tree.a.b.c == 1


@pytest.mark.parametrize(
    ("flag", "parts"),
    [
        ("--train.lr=fast", ["train.lr = 'fast' (--train.lr)", "valid number"]),
        ("--train.lr=-1", ["train.lr = '-1' (--train.lr)", "greater than 0"]),
        ("--train.steps=1.5", ["train.steps = '1.5'", "integer"]),
        ("--train.level=2", ["train.level = '2'", "0, 1 or 'auto'"]),
        ("--train.betas=0.1", ["train.betas", "position 1", "required"]),
        ("--train.betas=0.1,x", ["train.betas", "position 1", "valid number"]),
        ("--train.compile=maybe", ["train.compile = 'maybe'", "boolean"]),
        ("--train.stop=[oops", ["train.stop = '[oops'", "not valid JSON"]),
        ("--train=3", ["train (--train) is a section", "train.lr"]),
        ("--train.lr", ["--train.lr needs a value"]),
        ("--", ["'--' is not a setting"]),
        ("train.lr=3", ["'train.lr=3' is not a setting"]),
        ("--loss.kind=ppo", ["loss", "ppo", "grpo", "dpo"]),
    ],
)
def test_wrong_value_says_what_is_allowed(flag: str, parts: list[str]):
    message = error(flags=[flag])
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_wrong_values_in_a_file_and_across_fields(toml: Callable[[str], Path]):
    file = toml('[train]\nsteps = "many"\nname = """\nlr = 1\n"""\nlr = -1\n')
    message = error(file=file)
    assert f"train.steps = 'many' ({file}:2)" in message
    assert f"train.lr = -1 ({file}:6)" in message
    assert "steps over 1000 need lr at most 1" in error(flags=["--train.steps=2000", "--train.lr=2"])
    assert "is a section" in error(file=toml("train = 3"))


def test_file_errors(tmp_path: Path, toml: Callable[[str], Path]):
    assert "There is no config file" in error(file=tmp_path / "absent.toml")
    assert "is not valid TOML" in error(file=toml("[train\n"))
    assert "Cannot read the config file" in error(file=tmp_path)


class Numbers(Section):
    port: int = 1
    rate: float | None = None
    rates: tuple[float, ...] = ()
    limits: dict[str, int] = Field(default_factory=dict)
    level: Literal[0, 1] = 0
    mixed: dict[str, bool | int] = Field(default_factory=dict)
    api_key: str | None = None


class Secretive(Section):
    server: Numbers = Field(default_factory=Numbers)


@pytest.mark.parametrize(
    "line", ["port = true", "rate = false", "rates = [0.5, true]", "limits = {a = true}", "level = true"]
)
def test_true_is_no_number(toml: Callable[[str], Path], line: str):
    with pytest.raises(ConfigError, match=r"^server\.\w+ = .*true and false have no meaning here\.$"):
        load(Secretive, toml("[server]\n" + line), env={})
    assert load(Secretive, toml("[server]\nmixed = {a = true}"), env={}).tree.server.mixed == {"a": True}


def test_a_quoted_key_is_one_name(toml: Callable[[str], Path]):
    file = toml('"train.lr" = 3')
    said = f"'train.lr' in quotes is one name, which no key has ({file}:1). Write train.lr without quotes."
    assert error(file=file) == said
    assert "Unknown config key loss.a.b" in error(flags=['--loss={"a.b": 1}'])


def test_errors_do_not_tell_secrets(toml: Callable[[str], Path]):
    for file, flags in [
        (toml("[server]\napi_key = 123456"), []),
        (None, ['--server={"api_key": "123456"']),
        (None, ['--server={"api_key": 123456}']),
    ]:
        with pytest.raises(ConfigError, match="server") as caught:
            load(Secretive, file, env={}, flags=flags)
        assert "123456" not in str(caught.value)


def test_nesting_too_deep_is_an_error(toml: Callable[[str], Path]):
    assert "is not valid TOML" in error(file=toml("a = " + "[" * 100_000))
    assert "is not valid JSON" in error(flags=["--train.stop=" + "[" * 100_000])


def test_split_flags():
    argv = [
        "serve",
        "--json",
        "--train.lr",
        "3",
        "--out",
        "a.b",
        "--train.compile",
        "--log.level=x",
        "--",
        "--a.b=1",
    ]
    flags, rest = split_flags(Tree, argv)
    assert flags == ["--train.lr=3", "--train.compile=true", "--log.level=x"]
    assert rest == ["serve", "--json", "--out", "a.b", "--", "--a.b=1"]
    assert "Did you mean train.lr" in error(flags=split_flags(Tree, ["--train.lrr", "3"])[0])


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]))
TRAIN = st.builds(
    Train,
    lr=st.floats(1e-9, 1),
    steps=st.integers(1, 10**9),
    name=TEXT,
    compile=st.booleans(),
    betas=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    seed=st.none() | st.integers(),
    level=st.sampled_from([0, 1, "auto"]),
)


@settings(max_examples=50)
@given(TRAIN)
def test_every_value_survives_being_written_as_flags_and_as_variables(train: Train):
    texts = {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in train.model_dump().items()
        if name not in ("stop", "extra")
    }
    by_flag = load(Tree, env={}, flags=[f"--train.{name}={text}" for name, text in texts.items()])
    by_env = load(Tree, env={f"RONDO_TRAIN_{name.upper()}": text for name, text in texts.items()})
    assert by_flag.tree.train == by_env.tree.train == train


@given(TEXT)
def test_any_unknown_key_ends_in_a_config_error(name: str):
    flag = f"--train.{name.replace('=', '_')}=1"
    if flag[2:-2].replace("-", "_").removeprefix("train.") in Train.model_fields:
        return
    assert "Unknown config key" in error(flags=[flag])
