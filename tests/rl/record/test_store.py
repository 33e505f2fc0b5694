"""Rollouts on the disk: what comes back, what is read for it, what goes, and what a full disk and a kill do."""

import errno
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rl._rollouts import asked, equally, judged, said
from rondo.base.errors import InvalidRequest, NotFound, StorageError
from rondo.base.storage import files
from rondo.graders import Score
from rondo.rl.record import rollout_json
from rondo.rl.record.query import Condition
from rondo.rl.record.reader import RolloutReader
from rondo.rl.record.store import COLUMNS, RolloutStore, encode, file_of, steps_in
from rondo.rl.rollout.types import SampleGroup

GROUPS = [
    asked(
        "abc",
        [said("cba", judged(1.0, correct=1.0, format=1.0)), said("c", judged(0.25, correct=0.0, format=1.0))],
    ),
    asked("xy", [said("sorry", Score("timeout", 0.0, {}, "took too long")), said("yx!", None)]),
]
BIG = 1 << 40


def store(folder: Path, keep: int = 100, max_bytes: int = BIG) -> RolloutStore:
    return RolloutStore(folder, keep, max_bytes)


def filled(folder: Path, steps: range, groups: list[SampleGroup] | None = None) -> RolloutReader:
    own, groups = store(folder), groups or GROUPS
    for step in steps:
        own.put(step, groups, equally(groups))
    return RolloutReader(folder)


def ids(stored: RolloutReader, *where: str, **options: object) -> list[str]:
    found = stored.find([Condition.of(text) for text in where], **{"limit": 1000, **options})  # type: ignore[arg-type]
    return [entry.id for entry in found.entries]


def test_all_of_a_rollout_comes_back(tmp_path: Path) -> None:
    stored = filled(tmp_path, range(7, 8))
    whole = stored.show("7-0-1")
    assert whole.entry.reward == 0.25
    assert whole.entry.parts == {"correct": 0.0, "format": 1.0}
    assert (whole.texts.prompt, whole.texts.text, whole.texts.facts) == ("abc", "c", {"word": "abc"})
    [piece] = whole.pieces
    assert piece.prompt_ids == [97, 98, 99]
    assert (piece.token_ids, piece.sampled, piece.versions) == ([99], [True], [3])
    assert (piece.logprobs, piece.advantages) == ([-0.125], [0.5])
    failed = stored.show("7-1-0")
    assert (failed.entry.outcome, failed.entry.reward, failed.texts.detail) == (
        "timeout",
        None,
        "took too long",
    )
    assert stored.show("7-1-1").entry.outcome is None


def test_log_probabilities_keep_all_their_bits(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).normal(size=50).astype(np.float32)
    groups = [asked("q", [said("a" * 50, judged(1.0), logprobs=drawn.tolist())])]
    [piece] = filled(tmp_path, range(1, 2), groups).show("1-0-0").pieces
    assert piece.logprobs == drawn.tolist()


def test_an_episode_in_pieces_has_the_tokens_of_each(tmp_path: Path) -> None:
    """The first piece has a prompt of its own, the last one its group's; a tool's tokens were not sampled."""
    first = said("left", None, prompt_ids=[1, 2])
    last = said("tool", judged(1.0), sampled=[True, False, False, True], earlier=(first,))
    advantages = [[[1.0] * 4 + [2.0, 0.0, 0.0, 4.0]]]
    store(tmp_path).put(1, [asked("go", [last])], advantages)
    whole = RolloutReader(tmp_path).show("1-0-0")
    assert [piece.prompt_ids for piece in whole.pieces] == [[1, 2], [ord("g"), ord("o")]]
    assert [len(piece.token_ids) for piece in whole.pieces] == [4, 4]
    assert whole.pieces[1].sampled == [True, False, False, True]
    assert [piece.advantages for piece in whole.pieces] == [[1.0] * 4, [2.0, 0.0, 0.0, 4.0]]
    assert (whole.entry.tokens, whole.entry.sampled) == (8, 6)
    assert whole.entry.advantage == pytest.approx((4 * 1.0 + 2.0 + 4.0) / 6)


def test_who_was_not_trained_on_has_no_advantage(tmp_path: Path) -> None:
    store(tmp_path).put(1, GROUPS[:1], [[[], [0.5]]])
    assert RolloutReader(tmp_path).show("1-0-0").pieces[0].advantages == []
    assert ids(RolloutReader(tmp_path), "advantage=none") == ["1-0-0"]


def test_anybody_can_open_it(tmp_path: Path) -> None:
    """With numpy and a reader of JSON alone."""
    filled(tmp_path, range(4, 5))
    with np.load(file_of(tmp_path, 4)) as archive:
        tokens = archive["tokens/0"]
        facts = [json.loads(line) for line in archive["facts.jsonl"].decode().splitlines()]
    assert tokens.shape == (len(COLUMNS), 3 + 3 + 1)
    assert tokens[0].tolist() == [97, 98, 99, 99, 98, 97, 99]
    assert tokens[3].view(np.float32)[3:].tolist() == [-0.125, -0.25, -0.375, -0.125]
    assert [fact["id"] for fact in facts] == ["4-0-0", "4-0-1", "4-1-0", "4-1-1"]


def test_equal_rollouts_are_equal_bytes() -> None:
    assert encode(3, GROUPS, equally(GROUPS)) == encode(3, GROUPS, equally(GROUPS))


def test_they_are_found_by_what_is_known_of_them(tmp_path: Path) -> None:
    stored = filled(tmp_path, range(1, 4))
    assert ids(stored, "reward>0.5") == ["3-0-0", "2-0-0", "1-0-0"]
    assert ids(stored, "reward=none", "step=2") == ["2-1-0", "2-1-1"]
    assert ids(stored, "correct=1", "step>=2", order="asc") == ["2-0-0", "3-0-0"]
    assert ids(stored, "text~SORRY", "step<2") == ["1-1-0"]
    assert ids(stored, "prompt~xy", "outcome=timeout", "step!=1") == ["3-1-0", "2-1-0"]
    assert ids(stored, "detail~too long", "step=3") == ["3-1-0"]
    assert ids(stored, "tokens>=3", "tokens<5", "step=1") == ["1-0-0", "1-1-1"]
    problem = stored.show("1-0-0").entry.problem
    assert ids(stored, f"problem={problem[:4]}", "sample=1") == ["3-0-1", "2-0-1", "1-0-1"]


def test_what_is_not_asked_for_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = filled(tmp_path, range(1, 9))
    read: list[tuple[str, str]] = []
    original = zipfile.ZipFile.read

    def counted(archive: zipfile.ZipFile, name: str, *rest: object) -> bytes:
        read.append((Path(str(archive.filename)).stem, name))
        return original(archive, name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(zipfile.ZipFile, "read", counted)
    assert ids(stored, "step=5", "reward>0.5") == ["5-0-0"]
    assert read == [("step_5", "facts.jsonl")]
    read.clear()
    stored.find(limit=5)
    assert read == [("step_8", "facts.jsonl"), ("step_7", "facts.jsonl")]
    read.clear()
    assert ids(stored, "text~sorry", "reward>2") == []
    assert {name for _, name in read} == {"facts.jsonl"}, "no text is read where the facts do not fit"
    read.clear()
    stored.show("6-0-1")
    assert read == [("step_6", "facts.jsonl"), ("step_6", "texts.jsonl"), ("step_6", "tokens/0.npy")]


@pytest.mark.parametrize("sort", ["step", "reward", "tokens", "correct"])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_together_are_the_whole_list(tmp_path: Path, sort: str, order: str) -> None:
    stored = filled(tmp_path, range(1, 6))
    whole = ids(stored, sort=sort, order=order)
    assert len(whole) == 20
    paged: list[str] = []
    after, more = None, True
    while more:
        page = stored.find(sort=sort, order=order, limit=3, after=after)  # type: ignore[arg-type]
        paged += [entry.id for entry in page.entries]
        after, more = paged[-1], page.more
    assert paged == whole


def test_the_best_come_first_and_what_has_no_reward_last(tmp_path: Path) -> None:
    assert ids(filled(tmp_path, range(1, 2)), sort="reward") == ["1-0-0", "1-0-1", "1-1-0", "1-1-1"]
    assert ids(RolloutReader(tmp_path), sort="reward", order="asc")[:2] == ["1-0-1", "1-0-0"]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("reward", "is no condition"),
        ("reward>high", "is a number"),
        ("outcome>ok", "has no meaning"),
        ("reward>none", "has no meaning"),
        ("reward~1", "has no meaning"),
        ("fromat=1", "rollouts have no 'fromat'; they have step, .*correct, format"),
    ],
)
def test_a_condition_that_cannot_be_is_named(tmp_path: Path, where: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        ids(filled(tmp_path, range(1, 2)), where)


def test_who_is_not_there_is_said_to_be_gone(tmp_path: Path) -> None:
    stored = filled(tmp_path, range(3, 6))
    with pytest.raises(NotFound, match="steps 3 to 5 are kept"):
        stored.show("1-0-0")
    with pytest.raises(NotFound, match="no rollout '4-9-9'"):
        stored.show("4-9-9")
    with pytest.raises(InvalidRequest, match="names no rollout"):
        stored.show("four")
    with pytest.raises(InvalidRequest, match="sorted by a number"):
        stored.find(sort="text")


def test_the_oldest_go_by_number_and_by_bytes(tmp_path: Path) -> None:
    own = store(tmp_path, keep=3)
    for step in range(1, 8):
        own.put(step, GROUPS, equally(GROUPS))
    assert steps_in(tmp_path) == [7, 6, 5]
    size = file_of(tmp_path, 7).stat().st_size
    store(tmp_path, max_bytes=int(2.5 * size)).put(8, GROUPS, equally(GROUPS))
    assert steps_in(tmp_path) == [8, 7]
    store(tmp_path, max_bytes=1).put(9, GROUPS, equally(GROUPS))
    assert steps_in(tmp_path) == [9], "the last one stays, however large"
    store(tmp_path, keep=0).put(10, GROUPS, equally(GROUPS))
    assert steps_in(tmp_path) == [9]


def test_steps_after_the_checkpoint_are_forgotten(tmp_path: Path) -> None:
    filled(tmp_path, range(1, 6))
    (tmp_path / ".step_6.zip.0a1b2c.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("somebody's own")
    store(tmp_path).forget_after(3)
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "step_1.zip", "step_2.zip", "step_3.zip"]
    store(tmp_path / "absent").forget_after(3)


def test_a_full_disk_leaves_nothing_of_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = store(tmp_path)
    own.put(1, GROUPS, equally(GROUPS))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        own.put(2, GROUPS, equally(GROUPS))
    assert os.listdir(tmp_path) == ["step_1.zip"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    stored = filled(tmp_path, range(1, 3))
    file = file_of(tmp_path, 1)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(StorageError, match=r"step_1\.zip is damaged"):
        ids(stored)
    assert ids(stored, "step=2", "reward>0.5") == ["2-0-0"]


def test_a_step_that_goes_while_it_is_looked_for_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = filled(tmp_path, range(1, 4))
    monkeypatch.setattr(stored, "steps", lambda: [4, 3, 2, 1])
    assert ids(stored, "reward>0.5") == ["3-0-0", "2-0-0", "1-0-0"]


def test_numbers_that_are_none_are_none_in_json(tmp_path: Path) -> None:
    """Of a policy that diverged."""
    group = asked("q", [said("ab", judged(1.0), logprobs=[float("nan"), float("-inf")])])
    store(tmp_path).put(1, [group], [[[float("nan")] * 2]])
    stored = RolloutReader(tmp_path)
    assert rollout_json.whole(stored.show("1-0-0"))["pieces"][0]["logprobs"] == [None, None]
    page = stored.find(sort="advantage")
    assert rollout_json.page(page, {})["data"][0]["advantage"] is None
    assert ids(stored, "advantage>0") == []


def test_odd_texts_and_facts_come_back(tmp_path: Path) -> None:
    """A surrogate without its partner, a line's end that JSON lines are not split at, facts that are no JSON."""
    text = "a\ud800b\u2028c\x85\n\x00d"
    group = asked("q", [said(text, judged(1.0))])
    group.problem.facts["tests"] = {1}
    whole = filled(tmp_path, range(1, 2), [group]).show("1-0-0")
    assert whole.texts.text == text
    assert whole.texts.facts["tests"] == "{1}"
