"""LoRA settings (covered modules, rank, scale), read from and written to PEFT's `adapter_config.json`."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rondo.base.errors import ModelError

ALL_LINEAR = "all-linear"
HEAD = "lm_head"

READ = {
    "base_model_name_or_path",
    "bias",
    "exclude_modules",
    "init_lora_weights",
    "lora_alpha",
    "lora_dropout",
    "peft_type",
    "r",
    "rank_pattern",
    "alpha_pattern",
    "target_modules",
    "use_rslora",
}
INERT = {
    "auto_mapping",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "inference_mode",
    "loftq_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
}
"""Fields without effect on the outputs of the finished adapter."""

INITS_THAT_KEEP_THE_BASE = (True, False, None, "gaussian", "eva", "orthogonal")
"""The other initializations (PiSSA, OLoRA, ...) change the base's weights, and the adapter's files do not contain that
change."""


@dataclass(frozen=True)
class LoraSpec:
    """LoRA settings. `targets` and `excluded` have PEFT's form: module names or their last components, "all-linear", or
    a regular expression."""

    r: int = 8
    alpha: float = 16
    targets: tuple[str, ...] | str = ALL_LINEAR
    excluded: tuple[str, ...] | str = ()
    rslora: bool = False
    dropout: float = 0.0
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    base: str | None = None
    file: Mapping[str, Any] | None = None
    """The original `adapter_config.json`, written back unchanged."""

    def __post_init__(self) -> None:
        """Validates the fields. Errors contain PEFT's field names, for files and Python callers alike."""
        _require(_is_rank(self.r), "r", self.r, "ranks should be whole numbers above 0")
        _require(_is_number(self.alpha), "lora_alpha", self.alpha, "should be a number")
        names = "should be a list of module names, 'all-linear' or a regular expression"
        _require(_is_names(self.targets), "target_modules", self.targets, names)
        _require(_is_names(self.excluded), "exclude_modules", self.excluded, names)
        dropout = _is_number(self.dropout) and 0 <= self.dropout <= 1
        _require(dropout, "lora_dropout", self.dropout, "should be a number from 0 to 1")
        for key, pattern in (("rank_pattern", self.rank_pattern), ("alpha_pattern", self.alpha_pattern)):
            _require(_is_pattern(pattern), key, pattern, "should map module names to positive numbers")
            for expression in pattern:
                wrong = _why_no_expression(rf"(.*\.)?({expression})$")
                _require(not wrong, key, pattern, f"{expression!r} is not a regular expression: {wrong}")
        whole = all(map(_is_rank, self.rank_pattern.values()))
        _require(whole, "rank_pattern", self.rank_pattern, "ranks should be whole numbers above 0")

    @property
    def covers_all(self) -> bool:
        return isinstance(self.targets, str) and self.targets.lower() == ALL_LINEAR

    def rank(self, module: str) -> int:
        return self.rank_pattern.get(_key_for(self.rank_pattern, module), self.r)

    def scale(self, module: str) -> float:
        alpha = self.alpha_pattern.get(_key_for(self.alpha_pattern, module), self.alpha)
        rank = self.rank(module)
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    def modules(self, linears: Iterable[str]) -> list[str]:
        """Names of the model's linear modules that the adapter covers. A target without a match raises an error."""
        linears = list(linears)
        excluded = set() if not self.excluded else set(_matching(self.excluded, linears, "exclude_modules"))
        if self.covers_all:
            return [name for name in linears if name != HEAD and name not in excluded]
        if not isinstance(self.targets, str):
            unknown = [target for target in self.targets if not _matching((target,), linears, "")]
            if unknown:
                raise _unknown(unknown, linears)
        found = [name for name in _matching(self.targets, linears, "target_modules") if name not in excluded]
        if not found:
            raise _unknown([str(self.targets)], linears)
        if HEAD in found:
            raise ModelError(
                f"target_modules: LoRA over {HEAD} is not supported; leave it out", param="target_modules"
            )
        return found


def _key_for(pattern: Mapping[str, Any], module: str) -> str:
    return next((key for key in pattern if re.match(rf"(.*\.)?({key})$", module)), module)


def _matching(targets: tuple[str, ...] | str, names: list[str], param: str) -> list[str]:
    if isinstance(targets, str):
        if wrong := _why_no_expression(targets):
            raise ModelError(f"{param} {targets!r} is not a regular expression: {wrong}", param=param)
        return [name for name in names if re.fullmatch(targets, name)]
    return [name for name in names if any(name == t or name.endswith(f".{t}") for t in targets)]


def _unknown(targets: list[str], linears: list[str]) -> ModelError:
    known = sorted({name.rpartition(".")[2] for name in linears} - {HEAD})
    return ModelError(
        f"target_modules: no linear module of the model is {' or '.join(map(repr, targets))}; "
        f"there are {', '.join(known)}",
        param="target_modules",
    )


def parse(config: Mapping[str, Any], where: str) -> LoraSpec:
    """Converts PEFT's fields to a spec. An unknown field that may change the result raises an error."""

    def fail(key: str, expected: str) -> ModelError:
        return ModelError(f"{where}: {key} is {config.get(key)!r}; {expected}", param=key)

    if config.get("peft_type") != "LORA":
        raise fail("peft_type", "should be 'LORA'")
    if config.get("bias", "none") != "none":
        raise fail("bias", "only 'none' is supported")
    if not _one_of(config.get("init_lora_weights", True), INITS_THAT_KEEP_THE_BASE):
        raise fail("init_lora_weights", "it changes the base model, so convert the adapter to plain LoRA")
    for key, value in config.items():
        if value and key not in READ and key not in INERT:
            raise ModelError(f"{where}: {key} is not supported (it is {value!r})", param=key)
    targets: Any = config.get("target_modules")
    excluded: Any = config.get("exclude_modules") or ()
    try:
        return LoraSpec(
            r=config.get("r", 8),
            alpha=config.get("lora_alpha", 8),
            targets=tuple(targets) if isinstance(targets, list) else targets,
            excluded=tuple(excluded) if isinstance(excluded, list) else excluded,
            rslora=bool(config.get("use_rslora")),
            dropout=config.get("lora_dropout") or 0.0,
            rank_pattern=config.get("rank_pattern") or {},
            alpha_pattern=config.get("alpha_pattern") or {},
            base=config.get("base_model_name_or_path"),
            file=dict(config),
        )
    except ModelError as error:
        raise ModelError(f"{where}: {error.message}", param=error.param) from error


def _require(right: bool, key: str, value: object, expected: str) -> None:
    if not right:
        raise ModelError(f"{key} is {value!r}; {expected}", param=key)


def _why_no_expression(pattern: object) -> str | None:
    try:
        re.compile(str(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return None


def _one_of(value: object, allowed: tuple[object, ...]) -> bool:
    return any(value is one or (isinstance(one, str) and value == one) for one in allowed)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_names(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(name, str) for name in value)
    return isinstance(value, str)


def _is_pattern(value: object) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(key, str) for key in value)
        and all(_is_number(number) and number > 0 for number in value.values())
    )


def dump(spec: LoraSpec, modules: Iterable[str], linears: Iterable[str]) -> dict[str, Any]:
    """The spec as PEFT's fields. "all-linear" is expanded to names, because PEFT may count other modules as linear."""
    if spec.file is not None:
        return dict(spec.file)
    targets = spec.targets if isinstance(spec.targets, str) else list(spec.targets)
    if spec.covers_all:
        targets = _shortest(set(modules), list(linears))
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": spec.base,
        "bias": "none",
        "exclude_modules": (spec.excluded if isinstance(spec.excluded, str) else list(spec.excluded)) or None,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": spec.alpha,
        "lora_dropout": spec.dropout,
        "modules_to_save": None,
        "r": spec.r,
        "rank_pattern": dict(spec.rank_pattern),
        "alpha_pattern": dict(spec.alpha_pattern),
        "target_modules": targets,
        "use_dora": False,
        "use_rslora": spec.rslora,
    }


def _shortest(modules: set[str], linears: list[str]) -> list[str]:
    """The last components of the names, as users write them, if they select the same modules; else the full names."""
    last = sorted({name.rpartition(".")[2] for name in modules})
    return last if set(_matching(tuple(last), linears, "")) == modules else sorted(modules)
