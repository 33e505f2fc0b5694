"""Alarms for reward hacking, collapse and other failures of training: pure functions of the metrics.

A detector compares the median of the last `alarms.window` steps with the medians of earlier windows. A change is
reported if it exceeds both the threshold and `alarms.certainty` standard errors of the medians.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from rondo.rl.record.change_detection import Levels, levels
from rondo.rl.record.config import AlarmsConfig

HISTORY = 1000
"""Number of steps in the history."""
SHORT_ANSWER = 32
"""Tokens up to which equal samples of one problem are unsuspicious."""
SMALL_KL = 1e-4
"""KL divergence below which growth is attributed to rounding."""
NEARLY = 0.9
"""Share of solved groups from which on the policy counts as converged, so that its low entropy is expected."""
LATELY = 3
"""Windows in which a rising reward suppresses the alarm of a low entropy."""
NO_SCALE = 1e-6
FEW = 3
"""Steps for the check of grader failures. Short, because samples without a score are not trained on meanwhile."""


@dataclass(frozen=True)
class Alarm:
    kind: str
    step: int
    since: int
    """First step of the changed metrics."""
    saw: str
    advice: str


@dataclass(frozen=True)
class Seen:
    """The metrics of the last steps."""

    config: AlarmsConfig
    rows: Sequence[Mapping[str, float]]
    _known: dict[str, Levels | None] = field(default_factory=dict)

    @property
    def step(self) -> int:
        return int(self.rows[-1]["step"])

    def of(self, name: str) -> Levels | None:
        """Levels of a metric, or None without enough values for a comparison."""
        if name not in self._known:
            self._known[name] = levels(self.rows, name, self.config.window, self.config.certainty)
        return self._known[name]

    def names(self, prefix: str) -> list[str]:
        return sorted({name for name in self.rows[-1] if name.startswith(prefix)})

    def scale(self, name: str) -> float:
        """The larger of the earlier and the current standard deviation of a reward within a step."""
        spread = self.of(name.replace("reward", "reward_std", 1))
        return 1.0 if spread is None else max(spread.highest.level, spread.now, NO_SCALE)

    def improves(self, since: int, by: float = 0.0) -> bool:
        """Whether the reward is significantly above its minimum over the windows from step `since` on."""
        own = self.of("reward")
        return own is not None and own.rises(by * self.scale("reward"), since) is not None

    def solved(self) -> bool:
        shares = self.of("solve_all")
        return shares is not None and shares.now >= NEARLY


Detector = Callable[[Seen], Alarm | None]


class Alarms:
    """Reports each alarm once, at its start. An alarm is over when it has not recurred for a window."""

    def __init__(self, config: AlarmsConfig) -> None:
        self._config = config
        self._rows: deque[Mapping[str, float]] = deque(maxlen=HISTORY)
        self._last: dict[str, int] = {}

    @property
    def standing(self) -> list[str]:
        return list(self._last)

    @classmethod
    def after(cls, config: AlarmsConfig, rows: Sequence[Mapping[str, float]]) -> Alarms:
        """The alarms after these rows of a job. The evaluation before the first step is excluded, because it has no
        rollouts.
        """
        alarms, trained = cls(config), [row for row in rows if row["step"] > 0]
        alarms._rows.extend(trained[: -config.window])
        for row in trained[-config.window :]:
            alarms.check(int(row["step"]), row)
        return alarms

    def check(self, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        self._rows.append({**metrics, "step": step})
        found = [alarm for detect in DETECTORS if (alarm := detect(Seen(self._config, list(self._rows))))]
        begun = [alarm for alarm in found if alarm.kind not in self._last]
        self._last |= {alarm.kind: step for alarm in found}
        self._last = {kind: at for kind, at in self._last.items() if step - at < self._config.window}
        return begun


def hacking(seen: Seen) -> Alarm | None:
    """One part of the reward rises while another falls, and the total does not fall."""
    least = seen.config.hacking
    total = seen.of("reward")
    if not least or total is None:
        return None
    parts = [(name, of) for name in seen.names("reward/") if (of := seen.of(name)) is not None]
    worst: tuple[float, Alarm] | None = None
    for (up, rising), (down, falling) in permutations(parts, 2):
        fall = falling.falls(least * seen.scale(down))
        if fall is None or total.falls(0.0, since=fall.begin):
            continue
        rise = rising.rises(least * seen.scale(up), since=fall.begin)
        size = fall.size / seen.scale(down)
        if rise is None or (worst is not None and size <= worst[0]):
            continue
        saw = (
            f"{up} rose from {rise.level:.3g} to {rising.now:.3g} while {down} fell from {fall.level:.3g} to "
            f"{falling.now:.3g}"
        )
        advice = (
            f"read answers with a high {up} and a low {down} (rondo rl rollouts JOB --where '{_part(up)}>="
            f"{rising.now:.2g}' --where '{_part(down)}<={falling.now:.2g}'): if they earn what they should not, change "
            "the grader or the weights of its parts, and go on from a checkpoint before"
        )
        worst = size, Alarm("hacking", seen.step, max(fall.since, rise.since), saw, advice)
    return worst[1] if worst else None


def length(seen: Seen) -> Alarm | None:
    """Samples become longer without a higher reward."""
    factor, tokens = seen.config.length, seen.of("answer_tokens")
    if not factor or tokens is None:
        return None
    rise = tokens.rises((factor - 1) * max(tokens.lowest.level, 1.0))
    if rise is None or seen.improves(rise.since - seen.config.window, seen.config.hacking):
        return None
    saw = f"answers grew from {rise.level:.3g} to {tokens.now:.3g} tokens, and the reward did not rise"
    cut = seen.rows[-1].get("truncated", 0.0)
    if cut:
        saw += f"; {cut:.0%} are cut off"
    advice = (
        "read the longest (rondo rl rollouts JOB --sort tokens); punish length (rl.overlong), lower rl.max_tokens, or "
        "look whether a grader likes long answers"
    )
    return Alarm("length", seen.step, rise.since, saw, advice)


def duplicates(seen: Seen) -> Alarm | None:
    """The same answer to different problems, or repeated long answers to one problem."""
    least = seen.config.duplicated
    advice = (
        "read them (rondo rl rollouts JOB --sort reward): a grader may pay for an answer that is none, or the policy "
        "has collapsed; raise rl.entropy or rl.kl, or go on from a checkpoint before with a lower rl.lr"
    )
    same = seen.of("same_answer")
    if least and same is not None and same.now >= least and (rise := same.rises(least / 2)):
        saw = f"{same.now:.0%} of the problems get the same answer most often; it was {rise.level:.0%}"
        return Alarm("duplicates", seen.step, rise.since, saw, advice)
    again, tokens = seen.of("duplicated"), seen.of("answer_tokens")
    if not least or again is None or tokens is None or tokens.now <= SHORT_ANSWER or again.now < least:
        return None
    rise = again.rises(least / 2)
    if rise is None:
        return None
    saw = f"{again.now:.0%} of a group's answers are in it twice; it was {rise.level:.0%}"
    return Alarm("duplicates", seen.step, rise.since, saw, advice)


def mismatch(seen: Seen) -> Alarm | None:
    """Log-probabilities of learner and sampler differ."""
    config, kl = seen.config, seen.of("sampler_kl")
    if kl is None:
        return None
    advice = (
        "look at stale and at weight_version first: tokens of old weights differ by right, and rl.correction weighs "
        "them; on equal versions sampler and learner compute differently: compare precision and kernels of both"
    )
    if config.mismatch and kl.now >= config.mismatch:
        saw = f"the KL divergence between sampler and learner is {kl.now:.3g}, above {config.mismatch:g}"
        rise = kl.rises(0.0)
        return Alarm("mismatch", seen.step, rise.since if rise else kl.first, saw, advice)
    if not config.mismatch_growth or kl.now < SMALL_KL:
        return None
    rise = kl.rises((config.mismatch_growth - 1) * kl.lowest.level)
    if rise is None:
        return None
    saw = f"the KL divergence between sampler and learner grew from {rise.level:.3g} to {kl.now:.3g}"
    return Alarm("mismatch", seen.step, rise.since, saw, advice)


def entropy(seen: Seen) -> Alarm | None:
    """Entropy collapse before the problems are solved."""
    left = seen.config.entropy
    of = seen.of("entropy") or seen.of("sampled_entropy")
    if not left or of is None or of.now > left * of.highest.level:
        return None
    if seen.solved() or seen.improves(seen.step - LATELY * seen.config.window):
        return None
    fall = of.falls((1 - left) * of.highest.level)
    if fall is None:
        return None
    saw = (
        f"the entropy fell from {fall.level:.3g} to {of.now:.3g} nats a token, and problems are left unsolved"
    )
    advice = (
        "samples hardly differ any more, so little is learned from them: raise rl.clip_high or rl.entropy, or lower "
        "rl.lr and go on from a checkpoint before"
    )
    return Alarm("entropy", seen.step, fall.since, saw, advice)


def reward(seen: Seen) -> Alarm | None:
    """The reward has dropped."""
    least, of = seen.config.reward, seen.of("reward")
    if not least or of is None:
        return None
    fall = of.falls(least * seen.scale("reward"))
    if fall is None:
        return None
    saw = f"the reward fell from {fall.level:.3g} to {of.now:.3g}"
    advice = (
        "go on from a checkpoint before with a lower rl.lr or a higher rl.kl; look at mismatch and grad_norm around "
        "that step, and whether the grader or the problems changed there"
    )
    return Alarm("reward", seen.step, fall.since, saw, advice)


def no_signal(seen: Seen) -> Alarm | None:
    """Equal rewards in most groups, so that group-relative advantages are 0."""
    least, equal = seen.config.no_signal, seen.of("equal_groups")
    if not least or equal is None or equal.now < least or seen.solved():
        return None
    rise = equal.rises(0.0)
    saw = f"in {equal.now:.0%} of the groups all answers earn the same"
    advice = (
        "there is nothing to learn from them: take problems that are neither too hard nor too easy, more "
        "rl.samples_per_prompt, a reward with more steps, or rl.dynamic_sampling"
    )
    return Alarm("no_signal", seen.step, rise.since if rise else equal.first, saw, advice)


def graders(seen: Seen) -> Alarm | None:
    """Samples without a valid score."""
    least = seen.config.unjudged
    last = [row for row in seen.rows if math.isfinite(row.get("unjudged_share", math.nan))][-FEW:]
    shares = [row["unjudged_share"] for row in last]
    if not least or not shares or (sorted(shares)[len(shares) // 2] < least and shares[-1] < 1.0):
        return None
    slow, broken = (last[-1].get(f"failed/{how}", 0.0) for how in ("timeout", "error"))
    saw = (
        f"{shares[-1]:.0%} of the samples were not judged: {slow:g} graders took too long, {broken:g} failed"
    )
    advice = (
        "read why (rondo rl rollouts JOB --where outcome!=ok --show ID); what is not judged teaches nothing, and what "
        "is left may be the easier part"
    )
    since = next((int(row["step"]) for row in last if row["unjudged_share"] >= least), seen.step)
    return Alarm("graders", seen.step, since, saw, advice)


DETECTORS: Sequence[Detector] = (
    hacking,
    length,
    duplicates,
    mismatch,
    entropy,
    reward,
    no_signal,
    graders,
)


def _part(name: str) -> str:
    return name.removeprefix("reward/")
