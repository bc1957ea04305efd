"""Datasets from datasets, against the same done by hand."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpo.data import combine
from acpo.data.dataset import Dataset, from_arrays, from_stream
from acpo.data.features import Features
from acpo.data.options import DataOptions
from acpo.data.pairing import Steps, Transitions
from acpo.data.source import Source, Stream, from_steps
from acpo.errors import UserError
from structures import Log, logs


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
    best = combine.apply(data, DataOptions(top=30))
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


def test_an_expression_means_the_datas_own_columns_and_units() -> None:
    """Whatever they are called: names like ours, counted from 1, or that of the reward."""
    data = replace(
        made(4, dim=3),
        features=Features(
            observations=("observation_1", "action_0", "reward"),
            actions=("valve",),
            action_low=(0.0,),
            action_high=(90.0,),
        ),
    )
    unit = data.actions[:, 0]
    for text, expected in {
        "observation_1": data.observations[:, 0],
        "observation_0": data.observations[:, 0],
        "observation_2": data.observations[:, 2],
        "action_0": data.observations[:, 1],
        "reward": data.rewards,
        "valve": 45.0 * (unit + 1.0),
        "next_observation_1": data.next_observations[:, 1],
    }.items():
        found = combine.relabel(data, text).rewards
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=text)


def test_a_choice_without_transitions_is_refused_in_memory_and_as_a_stream() -> None:
    """Eight episodes of ten have one row, and so no transition."""
    lengths = [1] * 8 + [5, 5]
    rows = sum(lengths)
    arrays = {
        "observations": np.arange(rows)[:, None],
        "actions": np.linspace(-1, 1, rows)[:, None],
        "rewards": np.repeat(np.arange(10.0)[::-1], lengths),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.isin(np.arange(rows), np.cumsum(lengths) - 1),
    }
    data = from_arrays(**arrays, name="singles", source="singles")
    assert data.num_episodes == 10
    for options, says in (
        (DataOptions(top=30), "3 would be kept, with 0 transitions"),
        (DataOptions(validation=0.1), "1 would be held out, with 0 transitions"),
    ):
        with pytest.raises(UserError, match=f"^singles: of 10 episodes {says} in all"):
            combine.apply(data, options)
    with pytest.raises(UserError, match="3 would be kept, with 0 transitions"):
        list(combine.stream(data.stream, DataOptions(top=30), "singles").blocks)
    assert len(combine.apply(data, DataOptions(top=90))) == 4


def test_held_out_episodes_leave_the_data() -> None:
    data = made(10)
    kept = combine.apply(data, DataOptions(validation=0.3))
    assert kept.validation is not None
    assert (kept.num_episodes, kept.validation.num_episodes) == (7, 3)
    returns = sorted([*kept.episode_returns, *kept.validation.episode_returns])
    assert returns == sorted(data.episode_returns)
    assert not set(kept.observations[:, 0]) & set(kept.validation.observations[:, 0])


def test_a_single_episode_cannot_be_held_out() -> None:
    with pytest.raises(UserError, match="a single episode"):
        combine.apply(made(1), DataOptions(validation=0.5))


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
    with pytest.raises(UserError, match=flag):
        # Before anything is opened.
        combine.stream(lambda: pytest.fail("opened"), options, "made")


def test_half_of_two_episodes_is_never_both() -> None:
    found = combine.apply(made(2), DataOptions(validation=0.9))
    assert found.validation is not None
    np.testing.assert_array_equal(
        (found.episode_returns, found.validation.episode_returns), [[3], [0]]
    )


def test_options_are_applied_in_the_order_documented() -> None:
    data = made(10)
    found = combine.apply(data, DataOptions(relabel="-reward", top=50, take=0.4, validation=0.5))
    assert found.validation is not None
    assert found.num_episodes + found.validation.num_episodes == 2
    worst = {-e * (e + 2) for e in range(5)}
    assert {*found.episode_returns, *found.validation.episode_returns} <= worst


OPTIONS = st.builds(
    DataOptions,
    relabel=st.sampled_from(
        [None, "7", "exp(reward) * u - 3*terminal", "next_observation_1 % 0.3"]
    ),
    top=st.sampled_from([100.0, 60.0, 1.0]),
    take=st.sampled_from([1.0, 0.5]),
    validation=st.sampled_from([0.0, 0.4, 0.99]),
)


def opened(log: Log, name: str) -> Source:
    return from_steps(log.steps, name, name, features=Features(("x", "y"), actions=("u", "v")))


@settings(max_examples=150, deadline=None)
@given(parts=st.lists(logs(), min_size=1, max_size=3), options=OPTIONS, rows=st.integers(1, 9))
def test_a_stream_is_what_is_loaded_however_it_is_cut(
    parts: list[Log], options: DataOptions, rows: int
) -> None:
    sources = [opened(log, f"part{i}") for i, log in enumerate(parts)]
    data = combine.concatenate([source.read() for source in sources])
    stream = combine.stream(
        lambda: combine.joined([source.stream(rows) for source in sources]), options, data.source
    )
    kept = max(round(options.take * max(round(options.top / 100 * data.num_episodes), 1)), 1)
    if kept == 1 and options.validation:
        for refused in (lambda: combine.apply(data, options), lambda: list(stream.blocks)):
            with pytest.raises(UserError, match="a single episode"):
                refused()
        return
    try:
        loaded = combine.apply(data, options)
    except UserError:
        with pytest.raises(UserError, match="transitions in all"):
            list(stream.blocks)
        return
    found = from_stream(stream, "stream")
    for name in (*Transitions._fields, "episode_returns", "episode_lengths"):
        ours, theirs = getattr(found, name), getattr(loaded, name)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    np.testing.assert_array_equal(stream.episodes().rows, loaded.episodes.rows)
    assert found.features == loaded.features
    assert found.name == loaded.name == "+".join(source.name for source in sources)


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_a_stream_names_the_row_of_a_reward_that_is_no_number(rows: int) -> None:
    a, b = made(3), made(4, seed=1, name="b")
    # Reward 3 is that of b's last episode, after nine rows of a and nine of b.
    options = DataOptions(relabel="1/(reward != 3)")
    stream = combine.stream(
        lambda: combine.joined([a.stream(rows), b.stream(rows)]), options, "made+b"
    )
    with pytest.raises(UserError, match="is inf at row 18;") as streamed:
        list(stream.blocks)
    with pytest.raises(UserError) as loaded:
        combine.apply(combine.concatenate([a, b]), options)
    assert str(streamed.value) == str(loaded.value)


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_relabelled_returns_do_not_depend_on_the_blocks(rows: int) -> None:
    last = np.arange(6) >= 4
    steps = Steps(np.random.default_rng(0).normal(size=(6, 2)), np.zeros((6, 1)), np.ones(6), last)
    # The second episode is a single row that was cut off, so that no transition is left of it.
    source = from_steps(
        steps._replace(terminals=last & (np.arange(6) < 5), timeouts=last), "x", "x"
    )
    # One after another each 1 is lost beside 1e16; added up in a block first, they are not.
    first = float(source.read().observations[0, 0])
    options = DataOptions(relabel=f"where(observation_0 == {first}, 1e16, 1)")
    stream = combine.stream(lambda: source.stream(rows), options, "x")
    found = from_stream(stream, "x")
    np.testing.assert_array_equal(found.episode_returns, [np.float64(np.float32(1e16)), 0])
    np.testing.assert_array_equal(found.rewards[1:], [1, 1, 1, 1])


def test_streams_that_differ_are_refused_as_datasets_are() -> None:
    with pytest.raises(UserError, match="made and b cannot be joined: their observation_dim is 2"):
        list(combine.joined([made(3).stream(2), made(3, dim=3, name="b").stream(2)]).blocks)
    named = replace(made(3, name="b"), features=Features(actions=("u",)))
    for parts in ([made(3), named], [named, made(3)]):
        with pytest.raises(UserError, match="columns, categories or action ranges differ"):
            list(combine.joined([part.stream() for part in parts]).blocks)
        with pytest.raises(UserError, match="columns, categories or action ranges differ"):
            combine.concatenate(parts)


def test_a_stream_holds_a_few_blocks_and_not_the_set() -> None:
    alive: list[weakref.ref[Any]] = []
    most = 0

    def watched(data: Dataset) -> Stream:
        def blocks() -> Iterator[Transitions]:
            nonlocal most
            for block in data.blocks(2):
                most = max(most, sum(array() is not None for array in alive))
                copy = Transitions(*(array.copy() for array in block))
                alive.append(weakref.ref(copy.observations))
                yield copy

        return replace(data.stream(), blocks=blocks())

    parts = made(7), made(7, seed=1)
    options = DataOptions(relabel="reward + 1", top=90, take=0.9, validation=0.2)
    stream = combine.stream(
        lambda: combine.joined([watched(part) for part in parts]), options, "made"
    )
    kept = sum(len(block.rewards) for block in stream.blocks)
    assert len(alive) == 2 * sum(-(-len(part) // 2) for part in parts)
    assert 40 < kept < 70
    # The one at hand, and the one before it while it is made.
    assert most <= 2
