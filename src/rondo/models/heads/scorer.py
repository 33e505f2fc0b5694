"""Reward models: a decoder whose head outputs one score for the text up to a token. In transformers they are sequence
classification with one label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rondo.base.errors import ModelError

if TYPE_CHECKING:
    from rondo.models.architecture import ModelConfig

ARCHITECTURE = "ForSequenceClassification"
LANGUAGE_MODEL = "ForCausalLM"
LABELS: dict[str, Any] = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
"""Config fields with which transformers declares a single label."""


def is_scorer(hf: Mapping[str, Any]) -> bool:
    if not any(str(name).endswith(ARCHITECTURE) for name in hf.get("architectures") or ()):
        return False
    labels = hf.get("num_labels") or len(hf.get("id2label") or (0, 1))
    if labels != 1:
        raise ModelError(
            f"config.json: a model that sorts texts into {labels} classes is not supported, only one with one label, "
            "which is a reward model",
            param="num_labels",
        )
    return True


def scoring(config: ModelConfig) -> ModelConfig:
    """The config with a score head, which is neither tied nor soft-capped."""
    return replace(config, scores=True, tied=False, logit_softcap=None)


def check_writes(config: ModelConfig) -> None:
    """Raises if the model is a reward model, for callers that need a language model."""
    if config.scores:
        raise ModelError("this is a reward model: it scores texts, and writes none", param="model")
