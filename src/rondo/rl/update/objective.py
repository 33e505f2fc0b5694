"""The policy loss of a config."""

from __future__ import annotations

from rondo.rl.config import RlConfig
from rondo.train.losses.policy import Correction, PolicyLoss


def policy_loss(config: RlConfig, kl: float | None = None) -> PolicyLoss:
    """The configured loss; `kl` overrides the coefficient if it is adaptive."""
    return PolicyLoss(
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        kl=(config.kl if kl is None else kl) if config.kl_in == "loss" else 0.0,
        surrogate=config.surrogate,
        ratio=config.ratio,
        dual_clip=config.dual_clip,
        kl_estimator=config.kl_estimator,
        kl_unbiased=config.kl_unbiased,
        correction=_correction(config),
        entropy=config.entropy,
        measure_entropy=config.measure_entropy,
    )


def _correction(config: RlConfig) -> Correction | None:
    if config.correction == "none":
        return None
    return Correction(
        config.correction, config.correction_level, config.correction_cap, config.correction_floor
    )
