"""Rows to transitions: the same wherever blocks are cut, and never across an episode's end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpo.data.dataset import Fingerprint, from_stream
from acpo.data.features import Features
from acpo.data.pairing import Pairing, Steps
from acpo.data.source import Source, from_steps
from acpo.errors import UserError
from structures import Log, assert_reads, logs

LOG_SETTINGS = settings(max_examples=150, deadline=None)


def opened(log: Log) -> Source:
    return from_steps(log.steps, "log", "log")


@LOG_SETTINGS
@given(logs())
def test_every_transition_of_a_random_log_is_found_and_none_crosses_an_end(log: Log) -> None:
    data = opened(log).read()
    assert_reads(data, log)
    starts = np.cumsum([0, *log.lengths[:-1]])
    np.testing.assert_allclose(
        data.episode_returns, np.add.reduceat(log.steps.rewards.astype(float), starts), atol=1e-9
    )
    np.testing.assert_array_equal(data.episode_lengths, log.lengths)


@LOG_SETTINGS
@given(logs(), st.integers(1, 12))
def test_the_blocks_borders_change_nothing(log: Log, rows: int) -> None:
    whole, stream = opened(log).read(), opened(log).stream(rows)
    parts = from_stream(stream, "log")
    assert parts.fingerprint == whole.fingerprint
    for name in ("observations", "next_observations", "episode_ids", "episode_returns"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    np.testing.assert_array_equal(parts.episode_lengths, whole.episode_lengths)
    np.testing.assert_array_equal(parts.episodes.rows, whole.episodes.rows)


def test_errors_name_the_row_of_the_source_and_not_of_the_block() -> None:
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(10, 2))
    observations[7, 1] = np.nan
    steps = Steps(observations, np.zeros((10, 1)), np.zeros(10), np.arange(10) == 9)
    with pytest.raises(UserError, match="'observations' is nan at row 7, column 1"):
        list(from_steps(steps, "x", "x").stream(4).blocks)


def test_a_source_without_rows_is_empty() -> None:
    pairing = Pairing("x.csv")
    with pytest.raises(UserError, match="the dataset is empty"):
        pairing.close()


@settings(max_examples=30, deadline=None)
@given(logs(with_next=True), st.integers(0, 4), st.data())
def test_the_fingerprint_sees_every_field(log: Log, field: int, data: st.DataObject) -> None:
    whole = opened(log).read()
    name = ("observations", "actions", "rewards", "next_observations", "terminals")[field]
    row = data.draw(st.integers(0, len(whole) - 1))
    blocks = [block._replace(**{name: getattr(block, name).copy()}) for block in whole.blocks()]
    changed = getattr(blocks[0], name)
    changed[row] = ~changed[row] if changed.dtype == bool else changed[row] + 1
    digest = Fingerprint()
    digest.add(blocks[0])
    assert digest.finish(whole.episodes) != whole.fingerprint


@LOG_SETTINGS
@given(logs(), st.integers(1, 9), st.floats(0.1, 100), st.floats(-50, 50))
def test_scaling_actions_is_undone_by_the_features(
    log: Log, rows: int, factor: float, shift: float
) -> None:
    actions = (log.steps.actions * factor + shift).astype(np.float32)
    source = from_steps(log.steps._replace(actions=actions), "log", "log").with_scaled_actions()
    data = from_stream(source.stream(rows), "log")
    assert np.abs(data.actions).max() <= 1
    kept = opened(log).read()
    back = data.features.to_units(data.actions)
    np.testing.assert_allclose(
        back, kept.actions * factor + shift, atol=1e-4 * (factor + abs(shift))
    )


def test_an_action_that_never_changes_cannot_be_scaled() -> None:
    steps = Steps(np.ones((4, 1)), np.full((4, 1), 7.0), np.zeros(4), np.arange(4) == 3)
    with pytest.raises(UserError, match="the action 0 never changes \\(always 7\\)"):
        from_steps(steps, "x", "x").with_scaled_actions()


def test_actions_that_have_units_are_not_scaled_again() -> None:
    features = Features(action_low=(0.0,), action_high=(5.0,))
    steps = Steps(np.eye(4), np.linspace(-1, 1, 4)[:, None], np.zeros(4), np.arange(4) == 3)
    with pytest.raises(UserError, match="scaled by known bounds already"):
        from_steps(steps, "x", "x", features=features).with_scaled_actions()


def test_columns_that_never_change_are_called_by_their_names() -> None:
    steps = Steps(
        np.column_stack([np.arange(4), np.ones(4)]),
        np.linspace(-1, 1, 4)[:, None],
        np.zeros(4),
        np.arange(4) == 3,
    )
    with pytest.raises(UserError, match="never change: 'mode'"):
        from_steps(steps, "x", "x", features=Features(("t", "mode"))).read()
