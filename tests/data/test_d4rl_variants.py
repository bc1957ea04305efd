"""The layouts that D4RL's suites and versions have given their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from acpo.data import d4rl
from acpo.data.dataset import Dataset, from_stream
from acpo.errors import UserError


def written(path: Path, **arrays: Any) -> Path:
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file[key.replace("__", "/")] = array
    return path


def steps_of_walks(lengths: list[int], width: int = 29) -> np.ndarray:
    """Trajectories whose first two numbers move by less than 1 a step and begin far apart."""
    rng = np.random.default_rng(0)
    rows = []
    for number, length in enumerate(lengths):
        walk = rng.normal(size=(length, width))
        walk[:, :2] = 10.0 * number + np.linspace(0, 0.3 * length, length)[:, None]
        rows.append(walk)
    return np.concatenate(rows).astype(np.float32)


def pairs_stay_within(data: Dataset, observations: np.ndarray, ends: list[int]) -> bool:
    """Is each pair of one trajectory? A terminal's next observation is a mere placeholder."""
    trajectory = np.searchsorted(ends, np.arange(len(observations)))
    number = {row.tobytes(): index for index, row in enumerate(observations)}
    rows = [number[row.tobytes()] for row in data.observations]
    nexts = [number[row.tobytes()] for row in data.next_observations]
    kept = zip(rows, nexts, data.terminals, strict=True)
    return all(
        (b == a) if ended else (b == a + 1 and trajectory[a] == trajectory[b])
        for a, b, ended in kept
    )


def maze(path: Path, flags: dict[str, Any], lengths: list[int]) -> tuple[Path, np.ndarray]:
    observations = steps_of_walks(lengths)
    rows = len(observations)
    actions = np.random.default_rng(1).uniform(-1, 1, (rows, 8)).astype(np.float32)
    arrays = {key: np.zeros(rows, np.float32) for key in ("rewards", "terminals")} | flags
    infos = {"infos__goal": np.zeros((rows, 2)), "infos__qpos": np.zeros((rows, 15))}
    return written(
        path, observations=observations, actions=actions, **arrays, **infos
    ), observations


def flagged(rows: int, where: list[int], kind: type = bool) -> np.ndarray:
    flags = np.zeros(rows, kind)
    flags[where] = 1
    return flags


def test_antmaze_v2_goes_on_after_the_goal_and_ends_at_its_timeouts(tmp_path: Path) -> None:
    """Terminals stand wherever the next row is at the goal, here for three steps in a row."""
    success = flagged(30, [4, 5, 6], np.float32)
    flags = {"terminals": success, "rewards": success, "timeouts": flagged(30, [9, 19])}
    path, observations = maze(tmp_path / "x.hdf5", flags, [10, 10, 10])
    data = d4rl.load(path)
    # All rows but the last of each trajectory, as D4RL's own loader has them.
    np.testing.assert_array_equal(data.observations, np.delete(observations, [9, 19, 29], axis=0))
    assert np.flatnonzero(data.terminals).tolist() == [4, 5, 6]
    assert data.rewards.sum() == 3
    assert pairs_stay_within(data, observations, [9, 19])


def test_an_antmaze_terminal_at_a_timeout_speaks_of_the_next_start_and_is_dropped(
    tmp_path: Path,
) -> None:
    flags = {"terminals": flagged(20, [9], np.float32), "timeouts": flagged(20, [9])}
    path, observations = maze(tmp_path / "x.hdf5", flags, [10, 10])
    data = d4rl.load(path)
    assert not data.terminals.any()
    assert len(data) == 18
    assert pairs_stay_within(data, observations, [9])


@pytest.mark.parametrize("timeouts", [[14], [], None])
def test_antmaze_v0_is_cut_at_resets_that_its_timeouts_miss(
    tmp_path: Path, timeouts: list[int] | None
) -> None:
    flags = {"terminals": flagged(30, [25], np.float32)}
    if timeouts is not None:
        flags["timeouts"] = flagged(30, timeouts)
    path, observations = maze(tmp_path / "x.hdf5", flags, [10, 10, 10])
    data = d4rl.load(path)
    assert pairs_stay_within(data, observations, [9, 19])
    assert len(data) == 30 - 3 - len(timeouts or [])
    assert data.terminals.sum() == 1


def test_an_antmaze_terminal_before_a_reset_remains(tmp_path: Path) -> None:
    """In umaze-diverse a trajectory really ends at the goal."""
    flags = {"terminals": flagged(20, [9], np.float32), "timeouts": flagged(20, [])}
    path, observations = maze(tmp_path / "x.hdf5", flags, [10, 10])
    data = d4rl.load(path)
    assert np.flatnonzero(data.terminals).tolist() == [9]
    assert data.episode_lengths.tolist() == [10, 10]
    assert pairs_stay_within(data, observations, [9])


@pytest.mark.parametrize("rows", [1, 3, 9, 10, 11, 100])
def test_antmaze_reads_the_same_in_blocks(tmp_path: Path, rows: int) -> None:
    flags = {"terminals": flagged(30, [4, 25], np.float32), "timeouts": flagged(30, [9])}
    path, _ = maze(tmp_path / "x.hdf5", flags, [10, 10, 10])
    source = d4rl.open_file(path)
    assert from_stream(source.stream(rows), "x").fingerprint == source.read().fingerprint


def test_antmaze_with_arrays_of_other_lengths_is_refused(tmp_path: Path) -> None:
    flags = {"terminals": flagged(19, [9], np.float32), "timeouts": flagged(20, [9])}
    path, _ = maze(tmp_path / "x.hdf5", flags, [10, 10])
    with pytest.raises(UserError, match="'terminals' has 19 rows but 'observations' has 20"):
        d4rl.load(path)


def test_leaps_are_no_ends_in_other_suites(tmp_path: Path) -> None:
    """Only AntMaze has positions there."""
    observations = steps_of_walks([10, 10], width=11)
    actions = np.random.default_rng(1).uniform(-1, 1, (20, 3))
    flags = {"terminals": flagged(20, [19]), "timeouts": flagged(20, [])}
    path = written(
        tmp_path / "x.hdf5",
        observations=observations,
        actions=actions,
        rewards=np.ones(20),
        infos__goal=np.zeros((20, 2)),
        **flags,
    )
    assert d4rl.load(path).num_episodes == 1


def locomotion(**changes: Any) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    return {
        "observations": rng.normal(size=(20, 11)),
        "actions": rng.uniform(-1, 1, size=(20, 3)),
        "rewards": rng.normal(size=20),
        "terminals": flagged(20, [5]),
        "timeouts": flagged(20, [14]),
    } | changes


def test_gym_mujoco_v2_keeps_every_row(tmp_path: Path) -> None:
    """It has next_observations, and metadata that is no array of rows."""
    following = np.random.default_rng(3).normal(size=(20, 11))
    extra = {
        "infos__qpos": np.zeros((20, 6)),
        "metadata__algorithm": np.bytes_("SAC"),
        "metadata__policy__fc0__bias": np.zeros(256, np.float32),
    }
    path = written(tmp_path / "x.hdf5", **locomotion(next_observations=following), **extra)
    data = d4rl.load(path)
    assert len(data) == 20
    assert data.episode_lengths.tolist() == [6, 9, 5]
    np.testing.assert_array_equal(data.next_observations, following.astype(np.float32))


def test_gym_mujoco_v0_and_v1_lose_the_last_row_of_what_was_cut_off(tmp_path: Path) -> None:
    data = d4rl.load(written(tmp_path / "x.hdf5", **locomotion()))
    assert len(data) == 18
    assert data.episode_lengths.tolist() == [6, 9, 5]
    assert data.observations.dtype == np.float32


def test_rewards_and_flags_of_one_column_are_taken(tmp_path: Path) -> None:
    arrays = locomotion()
    columns = {key: arrays[key][:, None] for key in ("rewards", "terminals")}
    data = d4rl.load(written(tmp_path / "x.hdf5", **(arrays | columns)))
    assert data.episode_lengths.tolist() == [6, 9, 5]


def test_kitchen_needs_no_timeouts(tmp_path: Path) -> None:
    """Every demonstration ends in a terminal; `infos` is an array there, not a group."""
    arrays = locomotion(terminals=flagged(20, [8, 19]), infos=np.zeros(20, int))
    del arrays["timeouts"]
    data = d4rl.load(written(tmp_path / "x.hdf5", **arrays))
    assert len(data) == 20
    assert data.episode_lengths.tolist() == [9, 11]


def test_a_file_without_any_end_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """As HalfCheetah's would be, were it without timeouts: it never terminates."""
    arrays = locomotion(terminals=flagged(20, []))
    del arrays["timeouts"]
    with pytest.raises(UserError, match="Add a boolean array 'timeouts'"):
        d4rl.load(written(tmp_path / "x.hdf5", **arrays))
