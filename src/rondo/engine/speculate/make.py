"""Construction of speculative decoding from the config."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from rondo.base.errors import ConfigError, InvalidRequest, NotFound
from rondo.engine.config import EngineConfig
from rondo.engine.kv.cache import KVCache, kv_dtype
from rondo.engine.runner.runner import Runner
from rondo.engine.schedule.scheduler import Scheduler
from rondo.engine.speculate.controller import Controller
from rondo.engine.speculate.draft import DraftProposer
from rondo.engine.speculate.ngram import NgramProposer
from rondo.engine.speculate.speculation import Proposer, Speculation
from rondo.engine.weights.sleep import Sleeper
from rondo.models import Decoder, load
from rondo.models.store import resolve
from rondo.text.tokenizer import Tokenizer


def make_speculation(
    config: EngineConfig, scheduler: Scheduler, runner: Runner, draft: Decoder | None
) -> Speculation | None:
    if config.speculation == "off":
        return None
    if config.ngram_min > config.ngram_max:
        raise ConfigError(
            f"ngram_min is {config.ngram_min} and ngram_max {config.ngram_max}: lower ngram_min or raise ngram_max.",
            param="ngram_min",
        )
    proposer: Proposer
    if draft is None:
        proposer = NgramProposer(config.max_num_seqs, config.ngram_min, config.ngram_max)
    else:
        proposer = _draft_proposer(config, runner, draft)
    controller = Controller() if config.speculation_adaptive else None
    return Speculation(scheduler, runner, proposer, config.speculation_tokens, controller)


def load_draft(config: EngineConfig, model: Decoder) -> Decoder | None:
    if config.speculation != "draft":
        return None
    if config.draft_model is None:
        raise ConfigError(
            "speculation 'draft' needs a draft_model: a model's name, or its folder.", param="draft_model"
        )
    draft = _read(config, model)
    if draft.config.vocab_size != model.config.vocab_size:
        raise ConfigError(
            f"draft_model {config.draft_model!r} has a vocabulary of {draft.config.vocab_size} tokens, but the model "
            f"one of {model.config.vocab_size}. Take a draft of the same family.",
            param="draft_model",
        )
    return draft


def check_tokenizer(config: EngineConfig, tokenizer: Tokenizer) -> None:
    """Raises an error for a draft model with another tokenizer, which a vocabulary of the same size
    does not exclude."""
    if config.speculation != "draft" or config.draft_model is None:
        return
    if Tokenizer.load(_folder(config.draft_model)).vocabulary != tokenizer.vocabulary:
        raise ConfigError(
            f"draft_model {config.draft_model!r} has another tokenizer than the model: the same ids mean other tokens. "
            "Take a draft of the same family.",
            param="draft_model",
        )


def _folder(draft_model: str) -> Path:
    try:
        return resolve(draft_model)
    except (NotFound, InvalidRequest) as error:
        raise ConfigError(f"draft_model: {error.message}", param="draft_model") from error


def _read(config: EngineConfig, model: Decoder) -> Decoder:
    assert config.draft_model is not None
    return load(_folder(config.draft_model), dtype=model.dtype, device=model.device).eval()


def _draft_proposer(config: EngineConfig, target: Runner, draft: Decoder) -> DraftProposer:
    size, first = target.cache.block_size, target.cache.num_blocks[:1]
    cache = KVCache(draft.attention_specs(), first, size, kv_dtype(config, draft.dtype), draft.device)
    runner = Runner(draft, cache, target.sampler, config.max_num_seqs, target.max_model_len)
    sleeper = Sleeper(draft, cache, partial(_read, config, draft))
    return DraftProposer(runner, sleeper, config.max_step_tokens, draft.config.max_positions)
