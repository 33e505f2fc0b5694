"""The admission rule, on runs in which groups take any time and end in any order."""

from hypothesis import given
from hypothesis import strategies as st

from rondo.rl.rollout.staleness import admitted


@given(
    per_step=st.integers(1, 5),
    most=st.integers(0, 4),
    steps=st.integers(1, 8),
    source=st.randoms(use_true_random=False),
)
def test_no_token_is_older_than_the_bound_and_nobody_waits_for_ever(
    per_step: int, most: int, steps: int, source: "object"
) -> None:
    """Any interleaving of groups that begin, groups that end, and steps that train once their groups are done."""
    random = source
    done, begun, ended = 0, dict[int, int](), set[int]()
    following = 0
    while done < steps:
        wanted = set(range(done * per_step, (done + 1) * per_step))
        moves = []
        if following < admitted(done, per_step, most):
            moves.append("begin")
        if begun.keys() - ended:
            moves.append("end")
        if wanted <= ended:
            moves.append("train")
        assert moves, "the run is stuck"
        move = random.choice(moves)  # type: ignore[attr-defined]
        if move == "begin":
            begun[following] = done
            following += 1
        elif move == "end":
            ended.add(random.choice(sorted(begun.keys() - ended)))  # type: ignore[attr-defined]
        else:
            assert all(0 <= done - begun[number] <= most for number in wanted)
            done += 1
    assert len(begun) <= admitted(steps, per_step, most)


@given(st.integers(0, 1000), st.integers(0, 50), st.integers(1, 20), st.integers(0, 5))
def test_the_rule_is_what_it_says(number: int, done: int, per_step: int, most: int) -> None:
    assert (number < admitted(done, per_step, most)) == (number // per_step <= done + most)


def test_without_staleness_a_step_begins_when_the_one_before_is_done() -> None:
    assert admitted(1, 4, 0) == 8
