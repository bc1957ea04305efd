from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from acpo.data import checks
from acpo.data.dataset import Dataset, from_arrays
from acpo.errors import UserError


def build(fields: dict[str, Any], **changes: Any) -> Dataset:
    return from_arrays(**{"name": "toy", "source": "toy.hdf5", **fields, **changes})


def refusal(fields: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        build(fields, **changes)
    message = str(caught.value)
    assert message.startswith("toy.hdf5: ")
    return message


def test_a_terminal_row_is_kept_and_cut_off_rows_are_dropped(fields: dict[str, Any]) -> None:
    data = build(fields)
    assert data.rewards.tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10]
    assert np.flatnonzero(data.terminals).tolist() == [3]
    assert data.episode_ids.tolist() == [0] * 4 + [1] * 3 + [2] * 3
    np.testing.assert_array_equal(data.next_observations[0], fields["observations"][1])
    np.testing.assert_array_equal(data.next_observations[3], fields["observations"][3])


def test_dropped_rows_still_count_in_returns_and_lengths(fields: dict[str, Any]) -> None:
    data = build(fields)
    assert data.episode_returns.tolist() == [0 + 1 + 2 + 3, 4 + 5 + 6 + 7, 8 + 9 + 10 + 11]
    assert data.episode_lengths.tolist() == [4, 4, 4]
    assert data.mean_return == 22
    assert data.num_episodes == 3


def test_all_rows_are_kept_when_next_observations_are_stored(fields: dict[str, Any]) -> None:
    following = fields["observations"] + 1
    data = build(fields, next_observations=following)
    assert len(data) == 12
    np.testing.assert_array_equal(data.next_observations, following)
    assert data.episode_ids.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_a_row_flagged_terminal_and_timeout_is_a_terminal(fields: dict[str, Any]) -> None:
    fields["terminals"][7] = True
    data = build(fields)
    assert data.rewards[data.terminals].tolist() == [3, 7]


def test_an_episode_of_one_cut_off_row_leaves_no_transition_but_keeps_its_return(
    fields: dict[str, Any],
) -> None:
    fields["timeouts"][8] = True
    data = build(fields)
    assert data.episode_returns.tolist() == [6, 22, 8, 30]
    assert np.unique(data.episode_ids).tolist() == [0, 1, 3]


def paired_by_loop(
    rewards: np.ndarray, terminals: np.ndarray, timeouts: np.ndarray
) -> list[tuple[int, int, int]]:
    """(row, its successor, its episode), a terminal being its own successor."""
    pairs, episode = [], 0
    for row in range(len(rewards)):
        if terminals[row]:
            pairs.append((row, row, episode))
        elif not timeouts[row] and row + 1 < len(rewards):
            pairs.append((row, row + 1, episode))
        episode += bool(terminals[row] or timeouts[row])
    return pairs


@pytest.mark.parametrize("seed", range(30))
def test_no_pair_crosses_an_episode_end(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(5, 80))
    observations = np.arange(rows, dtype=np.float32)[:, None]  # names its own row
    terminals, timeouts = rng.random((2, rows)) < rng.choice([0.05, 0.3], size=(2, 1))
    terminals[1] = terminals[2] = True
    data = build(
        {"observations": observations, "rewards": np.ones(rows), "actions": np.zeros((rows, 1))},
        terminals=terminals,
        timeouts=timeouts,
    )
    found = zip(
        data.observations[:, 0], data.next_observations[:, 0], data.episode_ids, strict=True
    )
    assert list(found) == paired_by_loop(observations, terminals, timeouts)
    assert data.episode_lengths.sum() == rows


def test_columns_of_rewards_and_flags_are_squeezed(fields: dict[str, Any]) -> None:
    columns = {key: fields[key][:, None] for key in ("rewards", "terminals", "timeouts")}
    assert build(fields, **columns).fingerprint == build(fields).fingerprint


def test_flags_may_be_numbers(fields: dict[str, Any]) -> None:
    data = build(fields, terminals=fields["terminals"].astype(np.float32))
    assert data.terminals.dtype == np.bool_
    assert data.fingerprint == build(fields).fingerprint


def test_float64_is_stored_as_float32(fields: dict[str, Any]) -> None:
    data = build(fields, observations=fields["observations"].astype(np.float64))
    assert data.observations.dtype == data.next_observations.dtype == np.float32
    assert data.fingerprint == build(fields).fingerprint


def test_float32_arrays_are_not_copied_when_no_row_is_dropped(fields: dict[str, Any]) -> None:
    following = fields["observations"] + 1
    data = build(fields, next_observations=following)
    assert np.shares_memory(data.observations, fields["observations"])
    assert np.shares_memory(data.next_observations, following)
    assert np.shares_memory(data.actions, fields["actions"])


def test_arrays_are_read_only_and_the_callers_stay_writable(fields: dict[str, Any]) -> None:
    data = build(fields, next_observations=fields["observations"])
    with pytest.raises(ValueError, match="read-only"):
        data.observations[0, 0] = 1
    fields["observations"][0, 0] = 1


def test_arrays_of_different_length_are_refused(fields: dict[str, Any]) -> None:
    message = refusal(fields, rewards=np.ones(11))
    assert "'rewards' has 11 rows but 'observations' has 12" in message


@pytest.mark.parametrize("field", ["observations", "actions"])
def test_one_dimensional_matrices_are_refused(fields: dict[str, Any], field: str) -> None:
    message = refusal(fields, **{field: fields[field][:, 0]})
    assert f"'{field}' is one-dimensional, shape (12,)" in message
    assert "reshape to (N, 1)" in message


@pytest.mark.parametrize(
    ("field", "shape"),
    [("observations", (12, 2, 2)), ("actions", (12, 0)), ("rewards", (12, 2)), ("terminals", ())],
)
def test_other_shapes_are_refused(
    fields: dict[str, Any], field: str, shape: tuple[int, ...]
) -> None:
    message = refusal(fields, **{field: np.zeros(shape)})
    assert f"'{field}' has shape {shape}" in message
    assert "reshape to (N" in message


def test_next_observations_of_another_width_are_refused(fields: dict[str, Any]) -> None:
    message = refusal(fields, next_observations=np.ones((12, 4)))
    assert "'next_observations' has 4 columns but 'observations' has 3" in message


def test_values_that_are_no_numbers_are_refused(fields: dict[str, Any]) -> None:
    message = refusal(fields, rewards=np.array(["one"] * 12))
    assert "'rewards' holds values of type <U3" in message


def test_an_empty_dataset_is_refused(fields: dict[str, Any]) -> None:
    empty = {key: array[:0] for key, array in fields.items()}
    assert "empty, 'observations' has no rows" in refusal(empty)


def test_a_dataset_of_one_row_is_refused(fields: dict[str, Any]) -> None:
    one_row = {key: array[3:4] for key, array in fields.items()}
    message = refusal(one_row)
    assert "'observations' has 1 rows, which give 1 transitions" in message
    assert "at least 2" in message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", ["observations", "actions", "next_observations"])
def test_a_matrix_with_a_value_that_is_not_finite_is_refused(
    fields: dict[str, Any], field: str, value: float
) -> None:
    fields["next_observations"] = fields["observations"].copy()
    fields[field][5, 1] = fields[field][9, 0] = value
    message = refusal(fields)
    assert f"'{field}' is {value} at row 5, column 1; 2 of its" in message


@pytest.mark.parametrize("field", ["rewards", "terminals", "timeouts"])
def test_a_vector_with_nan_is_refused(fields: dict[str, Any], field: str) -> None:
    fields[field] = fields[field].astype(np.float32)
    fields[field][4] = np.nan
    assert f"'{field}' is nan at row 4; 1 of its 12 values" in refusal(fields)


def test_a_number_beyond_float32_is_refused(fields: dict[str, Any]) -> None:
    rewards = fields["rewards"].astype(np.float64)
    rewards[2] = 1e300
    message = refusal(fields, rewards=rewards)
    assert "'rewards' is inf at row 2" in message
    assert "beyond float32" in message


def test_flags_other_than_zero_and_one_are_refused(fields: dict[str, Any]) -> None:
    message = refusal(fields, terminals=np.arange(12))
    assert "'terminals' is 2 at row 2" in message


def test_actions_outside_the_unit_range_are_refused(fields: dict[str, Any]) -> None:
    fields["actions"][:, 1] = np.linspace(-0.5, 2, 12)
    fields["actions"][8, 0] = -1.5
    message = refusal(fields)
    assert "'actions' must lie in [-1, 1], but column 1 ranges over [-0.5, 2]" in message
    assert "5 of 12 rows are outside, the first is row 7" in message
    assert "a = 2*(a-low)/(high-low)-1" in message


def test_actions_beyond_the_range_by_rounding_are_clipped_on_a_copy(
    fields: dict[str, Any],
) -> None:
    fields["actions"][2] = np.float32(1 + 1e-5), -np.float32(1 + 1e-5)
    data = build(fields)
    assert data.actions[2].tolist() == [1, -1]
    assert fields["actions"][2, 0] > 1


def test_constant_observation_columns_are_refused_unless_kept(fields: dict[str, Any]) -> None:
    fields["observations"][:, 1:] = 0.1
    message = refusal(fields)
    assert "'observations' has 2 of 3 columns that never change: 1-2" in message
    assert 'constant_columns="keep"' in message
    assert "--constant-columns keep" in message
    assert build(fields, constant_columns="keep").observation_dim == 3


@pytest.mark.parametrize("timeouts", [None, np.zeros(12, bool)])
def test_data_without_any_episode_end_are_refused(fields: dict[str, Any], timeouts: Any) -> None:
    message = refusal(fields, terminals=np.zeros(12, bool), timeouts=timeouts)
    assert "no row of 'terminals' or 'timeouts' is true" in message
    assert "Add a boolean array 'timeouts'" in message


def test_errors_use_the_sources_own_field_names(fields: dict[str, Any]) -> None:
    fields["observations"][5, 1] = np.nan
    assert "'obs' is nan at row 5" in refusal(fields, field_names={"observations": "obs"})


def many_episodes(episodes: int, length: int = 5) -> Dataset:
    rows = episodes * length
    timeouts = np.arange(1, rows + 1) % length == 0
    return build(
        {
            "observations": np.random.default_rng(0).normal(size=(rows, 2)),
            "actions": np.zeros((rows, 1)),
            "rewards": np.ones(rows),
            "terminals": np.zeros(rows, bool),
            "timeouts": timeouts,
        }
    )


@pytest.mark.parametrize("fraction", [0.001, 0.2, 0.999])
@pytest.mark.parametrize("episodes", [2, 3, 40])
def test_a_split_covers_all_rows_and_never_splits_an_episode(
    episodes: int, fraction: float
) -> None:
    data = many_episodes(episodes)
    train, held_out = data.split(fraction, seed=1)
    assert sorted([*train, *held_out]) == list(range(len(data)))
    assert len(train)
    assert len(held_out)
    assert not set(data.episode_ids[train]) & set(data.episode_ids[held_out])


def test_a_split_holds_out_the_fraction_of_episodes() -> None:
    data = many_episodes(40)
    _, held_out = data.split(0.2, seed=1)
    assert len(np.unique(data.episode_ids[held_out])) == 8


def test_a_split_repeats_with_its_seed_and_differs_with_another() -> None:
    data = many_episodes(40)
    np.testing.assert_array_equal(data.split(0.2, seed=1)[1], data.split(0.2, seed=1)[1])
    assert not np.array_equal(data.split(0.2, seed=1)[1], data.split(0.2, seed=2)[1])


def test_a_single_episode_holds_out_its_last_rows() -> None:
    train, held_out = many_episodes(1, length=11).split(0.2, seed=1)
    assert train.tolist() == list(range(8))
    assert held_out.tolist() == [8, 9]


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, np.nan])
def test_a_split_fraction_outside_zero_and_one_is_refused(fraction: float) -> None:
    with pytest.raises(UserError, match=re.escape(f"between 0 and 1, not {fraction:g}")):
        many_episodes(2).split(fraction, seed=0)


@pytest.mark.parametrize("field", ["observations", "actions", "rewards", "terminals"])
def test_the_fingerprint_changes_with_one_value(fields: dict[str, Any], field: str) -> None:
    before = build(fields).fingerprint
    changed = fields[field].copy()
    changed.flat[4] = not changed.flat[4] if field == "terminals" else changed.flat[4] / 2
    assert build(fields, **{field: changed}).fingerprint != before


def test_the_fingerprint_ignores_names(fields: dict[str, Any]) -> None:
    assert build(fields, name="other", source="o").fingerprint == build(fields).fingerprint


def test_the_repr_is_one_short_line(fields: dict[str, Any]) -> None:
    assert repr(build(fields)) == (
        "Dataset('toy': 10 transitions in 3 episodes, 3 observations, 2 actions, mean return 22.0)"
    )


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 1000])
def test_column_ranges_equal_the_plain_ones(rows: int) -> None:
    matrix = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
    low, high = checks.column_range(matrix)
    np.testing.assert_array_equal(low, matrix.min(axis=0))
    np.testing.assert_array_equal(high, matrix.max(axis=0))
