"""Ranks as processes: they return results, and whoever fails or is late is named."""

import pytest

from parallel import _launched, _unlucky
from support.launch import RankFailed, fork, launch


def test_ranks_have_torchs_default_group() -> None:
    for found in launch(_launched.of_default_group, 2):
        assert found["found"] == [3.0] * 4
        assert found["gradient"] == [2.0 * 2] * 2
        assert set(found["timeouts"]) == {7.0}, "the groups of a mesh wait as long as the layout says"


def test_the_rank_that_failed_is_shown() -> None:
    with pytest.raises(RankFailed, match=r"(?s)rank 1 of 2 failed.*out of luck"):
        launch(_unlucky.fails, 2, 1, backend=None)


def test_ranks_do_not_outlive_their_time() -> None:
    with pytest.raises(RankFailed, match=r"ranks \[0\] were not done"):
        launch(_unlucky.sleeps, 1, seconds=1, backend=None)


def test_forks_return_results_and_whoever_fails_ends_them() -> None:
    for found in fork(_launched.of_default_group, 2, imports=["rondo.parallel.ranks.mesh"]):
        assert found["found"] == [3.0] * 4
    with pytest.raises(RankFailed, match=r"(?s)2 ranks failed.*out of luck"):
        fork(_unlucky.fails, 2, 1, backend=None)
    with pytest.raises(RankFailed, match="1 ranks were not done"):
        fork(_unlucky.sleeps, 1, seconds=1, backend=None)
