"""The planner's choices among the settings of `rondo train`, for the commands that show settings."""

from __future__ import annotations

from dataclasses import replace

from rondo.base.settings.config import SettingSource
from rondo.cli.options.tree import CommandLine

PLANNER = SettingSource("default", "planner")


def with_planner(line: CommandLine) -> CommandLine:
    """The settings as `rondo train sft` would fill them, if a model is set. Imports no torch."""
    train = line.config.tree.train
    if not train.model:
        return line
    from rondo.models.store import resolve
    from rondo.train.recipes.defaults import planned

    chosen = planned("sft", train, resolve(train.model))
    if not chosen.choices:
        return line
    sources = line.config.sources | {f"train.{choice.setting}": PLANNER for choice in chosen.choices}
    tree = line.config.tree.model_copy(update={"train": chosen.config})
    return replace(line, config=replace(line.config, tree=tree, sources=sources))
