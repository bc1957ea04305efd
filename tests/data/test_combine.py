"""Datasets from datasets, against the same done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from acpo.data import combine
from acpo.data.dataset import Dataset, from_arrays
from acpo.data.options import DataOptions
from acpo.errors import UserError


def made(episodes: int, seed: int = 0, dim: int = 2, name: str = "made") -> Dataset:
    """Episode e has e + 2 rows and reward e in each."""
    rng = np.random.default_rng(seed)
    lengths = np.arange(episodes) + 2
    ends = np.cumsum(lengths) - 1
    rows = int(lengths.sum())
    return from_arrays(
        observations=rng.normal(size=(rows, dim)),
        actions=rng.uniform(-1, 1, (rows, 1)),
        rewards=np.repeat(np.arange(episodes), lengths),
        terminals=np.isin(np.arange(rows), ends),
        name=name,
        source=name,
        environment="Hopper-v4",
    )


def test_joined_datasets_keep_their_episodes_in_order() -> None:
    a, b = made(3), made(4, seed=1, name="b")
    joined = combine.concatenate([a, b])
    assert (joined.name, joined.environment, joined.num_episodes) == ("made+b", "Hopper-v4", 7)
    np.testing.assert_array_equal(joined.observations[: len(a)], a.observations)
    np.testing.assert_array_equal(joined.episode_ids[len(a) :], b.episode_ids + 3)
    np.testing.assert_array_equal(joined.episode_returns, [*a.episode_returns, *b.episode_returns])


def test_datasets_of_different_sizes_cannot_be_joined() -> None:
    with pytest.raises(UserError, match="observation_dim is 2 and 3"):
        combine.concatenate([made(3), made(3, dim=3)])


def test_the_top_episodes_are_those_with_the_largest_returns() -> None:
    data = made(10)
    best = combine.top(data, 30)
    np.testing.assert_array_equal(best.episode_returns, data.episode_returns[7:])
    np.testing.assert_array_equal(best.rewards, data.rewards[data.episode_ids >= 7])
    assert best.episode_ids.min() == 0
    assert best.episode_ids.max() == 2


def test_a_share_of_the_episodes_comes_whole_and_the_same_each_time() -> None:
    data = made(10)
    half = combine.take(data, 0.5)
    assert half.num_episodes == 5
    np.testing.assert_array_equal(half.episode_lengths, np.bincount(half.episode_ids))
    assert half.fingerprint == combine.take(data, 0.5).fingerprint
    assert half.fingerprint != combine.take(data, 0.5, seed=1).fingerprint


def test_rewards_are_relabelled_and_returns_follow() -> None:
    data = made(4)
    changed = combine.relabel(data, "2*reward - terminal + observation_0")
    expected = 2 * data.rewards - data.terminals + data.observations[:, 0]
    np.testing.assert_allclose(changed.rewards, expected, rtol=1e-6)
    sums = [expected[data.episode_ids == e].sum() for e in range(4)]
    np.testing.assert_allclose(changed.episode_returns, sums, rtol=1e-5)


def test_a_relabelled_reward_that_is_no_number_names_its_row() -> None:
    with pytest.raises(UserError, match="is inf at row 0"):
        combine.relabel(made(3), "1/reward")


def test_held_out_episodes_leave_the_data() -> None:
    data = made(10)
    kept = combine.hold_out(data, 0.3)
    assert kept.validation is not None
    assert (kept.num_episodes, kept.validation.num_episodes) == (7, 3)
    returns = sorted([*kept.episode_returns, *kept.validation.episode_returns])
    assert returns == sorted(data.episode_returns)
    assert not set(kept.observations[:, 0]) & set(kept.validation.observations[:, 0])


def test_a_single_episode_cannot_be_held_out() -> None:
    with pytest.raises(UserError, match="a single episode"):
        combine.hold_out(made(1), 0.5)


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        (DataOptions(take=0), "--take"),
        (DataOptions(top=101), "--top"),
        (DataOptions(validation=1), "--validation"),
    ],
)
def test_impossible_shares_name_their_flag(options: DataOptions, flag: str) -> None:
    with pytest.raises(UserError, match=flag):
        combine.apply(made(3), options)


def test_options_are_applied_in_the_order_documented() -> None:
    data = made(10)
    found = combine.apply(data, DataOptions(relabel="-reward", top=50, take=0.4, validation=0.5))
    assert found.validation is not None
    assert found.num_episodes + found.validation.num_episodes == 2
    worst = {-e * (e + 2) for e in range(5)}
    assert {*found.episode_returns, *found.validation.episode_returns} <= worst
