"""Settings of each verb: which sections it uses, which of them its plain help page has, and its short flags.

A verb with a `prefix` takes the settings of that section without it: `--lr` of `rondo train` is `--train.lr`. `SHORT`
has the flags with other names, `GUESSES` names from other trainers that an error message corrects.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rondo.base.errors import ConfigError
from rondo.cli.options.flags import FLAGS, Flag
from rondo.cli.options.help import HelpEntry, setting_entry
from rondo.cli.options.tree import setting_keys

if TYPE_CHECKING:
    from rondo.base.settings.config_keys import SettingKey
    from rondo.train.config import Kind

LEAST_BATCH = 256
"""Tokens; a smaller number after --batch is meant as a number of records."""

GUESSES = {
    "--learning-rate": "--lr",
    "--num-train-epochs": "--epochs",
    "--num-epochs": "--epochs",
    "--max-steps": "--steps",
    "--batch-size": "--batch",
    "--per-device-train-batch-size": "--batch",
    "--train-batch-size": "--batch",
    "--max-seq-length": "--max-length",
    "--max-seq-len": "--max-length",
    "--seq-len": "--max-length",
    "--cutoff-len": "--max-length",
    "--load-in-4bit": "--qlora",
    "--lora-rank": "--lora=16",
    "--lora-r": "--lora=16",
    "--lora-alpha": "--adapter.alpha",
    "--lora-target": "--adapter.targets",
    "--target-modules": "--adapter.targets",
    "--dataset": "--data",
    "--model-name-or-path": "--model",
    "--base-model": "--model",
    "--num-generations": "--samples-per-prompt",
    "--beta": "--kl",
    "--gradient-checkpointing": "--checkpointing=full",
    "--bf16": "--precision=bfloat16",
    "--save-steps": "--save-every",
    "--eval-steps": "--evaluate.every",
    "--report-to": "--metrics.wandb",
}


@dataclass(frozen=True)
class SettingScope:
    """Settings that a verb uses, and how its flags spell them."""

    sections: tuple[str, ...]
    essential: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Settings and flags of the plain help page, by heading."""
    flags: Mapping[str, Flag] = field(default_factory=dict)
    prefix: str = ""
    without: tuple[str, ...] = ()
    """Sections within `sections` that the verb does not use."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of the verb that differ from those of the settings; None for a setting that the verb computes."""
    vllm: bool = False
    """Whether flags of `vllm serve` without an effect are refused with their remedy."""

    def settings(self) -> dict[str, SettingKey]:
        return {
            path: replace(key, default=self.defaults.get(path, key.default))
            for path, key in setting_keys().items()
            if not key.sections and _within(path, self.sections) and not _within(path, self.without)
        }

    def spelled(self, path: str) -> str:
        """The shortest flag that sets `path`."""
        for name, flag in self.flags.items():
            if flag.path == path and flag.alone != "false" and not flag.text:
                return name
        return self._bare(path) if self.prefix and path.startswith(f"{self.prefix}.") else f"--{path}"

    def _bare(self, path: str) -> str:
        return "--" + path.removeprefix(f"{self.prefix}.").replace("_", "-")

    def path_of(self, flag: str) -> str | None:
        """Path of the setting that a flag without its section's prefix sets."""
        name = flag.removeprefix("--").replace("-", "_")
        path = f"{self.prefix}.{name}"
        keys = setting_keys()
        return path if self.prefix and name not in keys and path in keys and not keys[path].sections else None

    def entries(self) -> Iterator[HelpEntry]:
        """All flags and settings, grouped by section."""
        for name, flag in self.flags.items():
            if flag.text:
                yield self._flag(name, flag.group or "short forms")
        keys = self.settings()
        for path, key in keys.items():
            yield setting_entry(section_title(path, key), self.spelled(path), path, key)

    def essentials(self) -> Iterator[HelpEntry]:
        keys = self.settings()
        for group, names in self.essential.items():
            for name in names:
                if name in self.flags:
                    yield self._flag(name, group)
                else:
                    yield setting_entry(group, self.spelled(name), name, keys[name])

    def _flag(self, name: str, group: str) -> HelpEntry:
        flag = self.flags[name]
        if not flag.text:
            entry = setting_entry(group, name, flag.path, setting_keys()[flag.path])
            return entry._replace(flag=name) if flag.alone else entry
        return HelpEntry(group, name if flag.alone else f"{name} {flag.name}", flag.text)

    def nearest(self, flag: str, own: Sequence[str]) -> str | None:
        """The flag that was most likely meant: by another trainer's name, by spelling, or deeper in the tree."""
        spelled = "--" + flag.lstrip("-").replace("_", "-")
        paths = {path: self.spelled(path) for path in self.settings()}
        whole = [self._bare(path) for path in paths if self.prefix and path.startswith(f"{self.prefix}.")]
        known = [*own, *self.flags, *paths.values(), *whole]
        meant = GUESSES.get(spelled)
        if meant and meant.partition("=")[0] in known:
            return meant
        inner = {path.rpartition(".")[2].replace("_", "-"): right for path, right in reversed(paths.items())}
        close = difflib.get_close_matches(spelled, known, n=1) or difflib.get_close_matches(
            spelled[2:], inner, n=1
        )
        return inner.get(close[0], close[0]) if close else None


def section_title(path: str, key: SettingKey) -> str:
    """Heading of a setting: its section and, for the verb's own section, the class that declares it."""
    section = path.rpartition(".")[0]
    above = setting_keys().get(section)
    if "." not in section:
        about = (key.owner.__doc__ or "").strip().split("\n\n")[0].rstrip(".")
        about = f"{about[:1].lower()}{about[1:]}" or above.description if above else about
        return f"{section}: {about}" if about else section
    return f"{section}: {above.description}" if above else section


def _within(path: str, sections: Sequence[str]) -> bool:
    return any(path == section or path.startswith(f"{section}.") for section in sections)


def _batch(path: str) -> Flag:
    def read(values: Sequence[str]) -> Mapping[str, str]:
        if values[-1].isdecimal() and int(values[-1]) < LEAST_BATCH:
            raise ConfigError(
                f"--batch counts tokens, not records, and {values[-1]} are less than one record: write --batch 16k, or "
                f"--{path}={values[-1]}.",
                param=path,
            )
        return {path: values[-1]}

    return Flag("", "", read, "N", path=path)


def _lora(section: str, qlora: bool = False) -> Flag:
    def read(values: Sequence[str]) -> Mapping[str, str]:
        found = {f"{section}.adapter.kind": "lora"}
        if values[-1] != "true":
            found[f"{section}.adapter.r"] = values[-1]
        return found | ({f"{section}.adapter.quantize_base": "nf4"} if qlora else {})

    if qlora:
        text = "train a LoRA adapter over 4-bit base weights; --qlora=R sets its rank (16)"
        return Flag(text, "", read, alone="true")

    return Flag(
        "train a LoRA adapter instead of the full weights; --lora=R sets its rank (16)",
        "",
        read,
        alone="true",
    )


def _same(path: str) -> Flag:
    return Flag("", "", lambda values: {path: values[-1]}, "N", path=path)


_TRAIN_GROUPS = {
    "training": ("train.epochs", "train.steps", "--batch", "train.max_length", "train.lr", "train.seed"),
    "adapter": ("--lora", "--qlora", "train.adapter.targets"),
    "memory and devices": ("train.precision", "train.checkpointing", "train.device"),
    "results": ("train.evaluate.data", "train.evaluate.held_out", "train.evaluate.every", "train.save_every"),
}
_TRAIN_FLAGS = {
    "--batch": _batch("train.tokens_per_step"),
    "--lora": _lora("train"),
    "--qlora": _lora("train", qlora=True),
}


def train_scope(kind: Kind | None = None) -> SettingScope:
    """Settings of `rondo train KIND` with its defaults; those of other recipes are left out."""
    own: dict[str | None, tuple[str, ...]] = {
        "preference": ("train.preference.loss", "train.preference.beta"),
        "reward": ("train.reward.center",),
    }
    groups = {"recipe": own[kind], **_TRAIN_GROUPS} if kind in own else _TRAIN_GROUPS
    others = tuple(f"train.{name}" for name in own if name != kind)
    without = ("train.model", "train.data", "train.name", *others)
    defaults = {} if kind is None else _train_defaults(kind)
    return SettingScope(("train", "log"), groups, _TRAIN_FLAGS, "train", without, defaults)


def _train_defaults(kind: Kind) -> dict[str, Any]:
    from rondo.train.config import TrainConfig

    config = TrainConfig().of_kind(kind)
    epochs = config.epochs_of(kind)
    return {
        "train.epochs": epochs,
        "train.steps": config.steps if epochs is None else None,
        "train.lr": config.lr,
        "train.evaluate.held_out": config.held_out_of(kind),
    }


RL = SettingScope(
    ("rl", "log"),
    {
        "training": ("rl.algorithm", "rl.steps", "--batch", "--group", "rl.lr", "rl.kl", "--lora", "rl.seed"),
        "sampling and grading": ("rl.temperature", "rl.max_tokens", "rl.engine.url", "rl.grader"),
        "memory and devices": ("rl.precision", "rl.device"),
        "results": ("rl.evaluate.every", "rl.save_every"),
    },
    {
        "--batch": _same("rl.prompts_per_step"),
        "--group": _same("rl.samples_per_prompt"),
        "--lora": _lora("rl"),
    },
    "rl",
    ("rl.model", "rl.task", "rl.name"),
)

EVALUATE = SettingScope(
    (
        "train.evaluate",
        "train.device",
        "train.precision",
        "train.tokens_per_microbatch",
        "train.loader",
        "log",
    ),
    {
        "settings": (
            "train.evaluate.max_tokens",
            "train.device",
            "train.precision",
            "train.tokens_per_microbatch",
        )
    },
    prefix="train.evaluate",
    without=("train.evaluate.data", "train.evaluate.tasks", "train.evaluate.every"),
)

SERVE = SettingScope(
    ("engine", "server", "worker", "log"),
    {
        "server": ("--host", "--port", "--api-key", "--served-model-name"),
        "model": ("--dtype", "--max-model-len", "--lora-modules", "--chat-template", "--engine"),
        "memory and speed": (
            *("--max-num-seqs", "--kv-cache-dtype", "--kv-cache-memory-bytes"),
            *("--speculative-config", "--device", "--tensor-parallel-size"),
        ),
    },
    FLAGS,
    without=("worker.engine", "worker.engine_key", "worker.shape"),
    vllm=True,
)


_ADDRESS = {"--host": _same("gateway.host"), "--port": _same("gateway.port")}
GATEWAY = SettingScope(
    ("gateway", "log"),
    {
        "address": ("--host", "--port", "gateway.tls_certificate", "gateway.tls_key"),
        "access": ("gateway.keys", "gateway.cors_origins", "gateway.max_body_bytes"),
    },
    _ADDRESS,
    "gateway",
    ("gateway.engines",),
)
WORKER = SettingScope(
    ("worker", "log"),
    {
        "addresses": ("--gateway", "worker.key", "--engine", "worker.engine_key"),
        "requests": ("worker.concurrency", "worker.request_seconds", "worker.shape"),
    },
    {"--gateway": _same("worker.gateway"), "--engine": _same("worker.engine")},
    "worker",
)
UP = SettingScope(
    ("up", "gateway", "engine", "server", "worker", "log"),
    {"gateway": ("--host", "--port", "gateway.keys"), "engines": ("up.pools", "up.first_port")},
    _ADDRESS,
    without=(
        *("gateway.engines", "server.host", "server.port"),
        *(
            "worker.gateway",
            "worker.key",
            "worker.engine",
            "worker.engine_key",
            "worker.name",
            "worker.shape",
        ),
    ),
)


def flags_scope(names: Sequence[str]) -> SettingScope:
    """Scope of a verb that takes some of `FLAGS`."""
    flags = {name: FLAGS[name] for name in names}
    sections = dict.fromkeys(flag.path.partition(".")[0] or "server" for flag in flags.values())
    groups: dict[str, tuple[str, ...]] = {}
    for name, flag in flags.items():
        groups[flag.group] = (*groups.get(flag.group, ()), name)
    return SettingScope((*sections, "log"), groups, flags)
