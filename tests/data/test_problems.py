"""Each fault is planted into sound data and found at its row; sound data give no alarm."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from acpo.data import d4rl, load_dataset, neorl2, problems
from acpo.data.dataset import Dataset, from_arrays
from acpo.data.pairing import Steps
from acpo.data.problems import Problem

ROWS = 1_500
some_row = st.integers(0, ROWS - 1)
examples = settings(deadline=None, max_examples=20)


def sound(seed: int = 0, rows: int = ROWS) -> dict[str, Any]:
    """Random walks of 20 to 60 steps; most end by themselves, some are cut off."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(rng.integers(20, 61, size=rows // 20)) - 1
    ends = np.append(ends[ends < rows - 20], rows - 1)
    cut = rng.random(len(ends)) < 0.3
    cut[-1] = True
    terminals, timeouts = np.zeros((2, rows), bool)
    terminals[ends[~cut]] = timeouts[ends[cut]] = True
    walk = rng.normal(size=(rows + 1, 3)).astype(np.float32)
    following = walk[1:].copy()
    following[ends] += rng.normal(size=(len(ends), 3)).astype(np.float32)
    return {
        "observations": walk[:-1].copy(),
        "next_observations": following,
        "actions": rng.uniform(-0.99, 0.99, size=(rows, 2)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": terminals,
        "timeouts": timeouts,
    }


def build(fields: dict[str, Any], **changes: Any) -> Dataset:
    options = {"name": "toy", "source": "toy.hdf5", "constant_columns": "keep"}
    return from_arrays(**{**options, **fields, **changes})


def only(found: list[Problem], text: str) -> Problem:
    """The one problem that says `text`."""
    matching = [problem for problem in found if text in problem.what]
    assert len(matching) == 1, problems.describe(found)
    return matching[0]


def silent(found: list[Problem], text: str) -> bool:
    return not any(text in problem.what for problem in found)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), stored=st.booleans(), rows=st.integers(200, 3_000))
def test_sound_data_give_no_alarm(seed: int, stored: bool, rows: int) -> None:
    fields = sound(seed, rows)
    if not stored:
        fields["next_observations"] = None
    found = problems.find(build(fields), Steps(**fields))
    assert not problems.fatal(found), problems.describe(found)
    unexpected = [p for p in found if p.severity == "warning" and "There are only" not in p.what]
    assert not unexpected, problems.describe(found)


def test_nothing_is_said_of_sound_data() -> None:
    assert problems.find(build(sound())) == []
    assert problems.describe([]) == ["No problems found."]


@examples
@given(first=some_row, second=some_row)
def test_a_repeated_row_is_found(first: int, second: int) -> None:
    assume(first < second)
    fields = sound()
    for key in ("observations", "actions", "rewards", "next_observations"):
        fields[key][second] = fields[key][first]
    problem = only(problems.find(build(fields)), "Rows that repeat an earlier one")
    assert problem.rows == (second,)
    assert f"1 of 1,500 (0.0667%); row {second} repeats row {first}." in problem.what
    assert problem.severity == "note"


def test_many_repeated_rows_are_a_warning_and_zeros_have_no_sign() -> None:
    fields = sound()
    for key in ("observations", "actions", "rewards", "next_observations"):
        fields[key][100:120] = 0.0
        fields[key][110:120] *= -1
    problem = only(problems.find(build(fields)), "Rows that repeat an earlier one")
    assert problem.severity == "warning"
    assert problem.rows == (101, 102, 103, 104, 105)
    assert "19 of 1,500" in problem.what


@pytest.mark.parametrize("stored", [True, False])
def test_a_repeated_episode_is_found(stored: bool) -> None:
    fields = sound()
    data = build(fields)
    third = np.flatnonzero(data.episode_ids == 3)
    longer = {key: np.concatenate([array, array[third]]) for key, array in fields.items()}
    if not stored:
        del longer["next_observations"]
    found = problems.find(build(longer))
    problem = only(found, "Episodes that repeat an earlier one")
    assert problem.severity == "warning"
    assert problem.rows == (ROWS,)
    assert f"{data.num_episodes} repeats 3." in problem.what
    assert silent(found, "Rows that repeat")  # they are told of already


@examples
@given(row=some_row, column=st.integers(0, 2))
def test_a_next_observation_that_is_not_the_next_row_is_found(row: int, column: int) -> None:
    fields = sound()
    ends = fields["terminals"] | fields["timeouts"]
    fields["next_observations"][row, column] += 0.01
    found = problems.find(build(fields))
    if ends[row]:
        assert silent(found, "not the observation of the row that follows")
        return
    problem = only(found, "not the observation of the row that follows")
    assert problem.severity == "error"
    assert problem.rows == (row,)
    assert found[0] is problem


def test_an_end_that_is_not_marked_is_found() -> None:
    fields = sound()
    end = int(np.flatnonzero(fields["timeouts"])[2])
    fields["timeouts"][end] = False
    problem = only(problems.find(build(fields)), "some episodes' ends are not marked")
    assert (problem.severity, problem.rows) == ("error", (end,))


def test_a_break_between_two_blocks_is_found() -> None:
    fields = sound(rows=70_000)
    fields["terminals"][65_535] = fields["timeouts"][65_535] = False
    fields["next_observations"][65_535] += 1
    problem = only(problems.find(build(fields)), "not the observation of the row that follows")
    assert problem.rows == (65_535,)


def test_shuffled_rows_are_a_warning() -> None:
    order = np.random.default_rng(1).permutation(ROWS)
    fields = {key: array[order] for key, array in sound().items()}
    problem = only(problems.find(build(fields)), "shuffled or thinned out")
    assert problem.severity == "warning"


def test_next_observations_may_differ_by_rounding() -> None:
    fields = sound()
    fields["observations"] += 1e4
    fields["next_observations"] = (fields["next_observations"].astype(np.float64) + 1e4).astype(
        "f4"
    )
    fields["next_observations"] *= np.float32(1 + 1e-7)
    assert (fields["next_observations"][:-1] != fields["observations"][1:]).mean() > 0.2
    assert problems.find(build(fields)) == []


@examples
@given(row=some_row, factor=st.sampled_from([1e-3, 100.0, 1e4]))
def test_rewards_on_another_scale_are_found(row: int, factor: float) -> None:
    fields = sound()
    ids = build(fields).episode_ids
    episode = ids[row]
    assume((ids == episode).sum() >= 20)
    fields["rewards"][ids == episode] *= factor
    problem = only(problems.find(build(fields)), "rewards on another scale")
    assert problem.severity == "warning"
    assert f"episode {episode};" in problem.what
    assert problem.rows == (int(np.flatnonzero(ids == episode)[0]),)


def test_sparse_rewards_are_on_one_scale() -> None:
    fields = sound()
    reached = np.random.default_rng(0).random(ROWS) < 0.5
    at_goal = dict(fields, rewards=(fields["terminals"] & reached).astype(np.float32))
    assert problems.find(build(at_goal)) == []
    fall = np.where(fields["terminals"] & reached, -100, 1)
    assert problems.find(build(fields, rewards=fall)) == []


def test_rewards_that_are_all_zero_are_found() -> None:
    problem = only(problems.find(build(sound(), rewards=np.zeros(ROWS))), "rewards are zero")
    assert problem.severity == "warning"


def with_ends(lengths: Any, ended: Any) -> dict[str, Any]:
    """Sound rows, cut into episodes of these lengths."""
    ends = np.cumsum(lengths) - 1
    fields = sound(rows=int(ends[-1]) + 1)
    del fields["next_observations"]
    flags = np.zeros((2, int(ends[-1]) + 1), bool)
    flags[1 - np.asarray(ended, int), ends] = True
    return fields | {"terminals": flags[0], "timeouts": flags[1]}


def test_terminals_at_the_time_limit_are_an_error() -> None:
    fields = with_ends([50] * 30, [True] * 30)
    found = problems.find(build(fields))
    problem = only(found, "look like time limits")
    assert problem.severity == "error"
    assert problem.rows == (49, 99, 149, 199, 249)
    assert "all 30 stand at step 50" in problem.what
    assert problems.fatal(found)


def test_terminals_of_which_many_are_at_the_time_limit_are_a_warning() -> None:
    lengths = np.append(np.random.default_rng(0).integers(20, 100, 40), [100] * 20)
    problem = only(problems.find(build(with_ends(lengths, [True] * 60))), "look like time limits")
    assert problem.severity == "warning"
    assert "20 of 60 stand at step 100" in problem.what
    assert problem.rows[0] == lengths[:41].sum() - 1


@pytest.mark.parametrize(
    ("lengths", "ended"),
    [
        (np.arange(40, 80), [True] * 40),  # demonstrations of different lengths
        ([40, 60] * 20, [True, False] * 20),  # real ends before the limit
        ([*range(30, 60), 60, 60], [True] * 32),  # two may agree by chance
        ([4, 5, 6] * 100, [True] * 300),  # short ones often do
        ([50] * 30, [False] * 30),  # time limits, marked as such
    ],
)
def test_true_ends_are_not_taken_for_time_limits(lengths: Any, ended: Any) -> None:
    assert silent(problems.find(build(with_ends(lengths, ended))), "time limits")


def test_single_decisions_are_not_taken_for_time_limits() -> None:
    found = problems.find(build(with_ends([1] * 1_200, [True] * 1_200)))
    assert silent(found, "time limits")
    assert only(found, "Episodes of a single row").severity == "warning"


def test_data_without_terminals_are_noted() -> None:
    problem = only(problems.find(build(with_ends([50] * 30, [False] * 30))), "No row is a terminal")
    assert problem.severity == "note"


def test_timeouts_that_are_terminals_too_are_found_in_the_sources_rows() -> None:
    fields = sound()
    cut = np.flatnonzero(fields["timeouts"])
    fields["terminals"][cut] = True
    problem = only(problems.find(build(fields), Steps(**fields)), "terminals too")
    assert problem.severity == "error"
    assert problem.rows == tuple(cut[:5].tolist())
    fields["terminals"][cut[1:]] = False
    fields["terminals"] = fields["terminals"][:, None].astype(np.float32)
    problem = only(problems.find(build(fields), Steps(**fields)), "terminals too")
    assert (problem.severity, problem.rows) == ("note", (cut[0],))


def test_constant_columns_are_found() -> None:
    fields = sound()
    fields["observations"][:, 1] = fields["next_observations"][:, 1] = 0.1
    fields["actions"][:, 0] = 1.0
    found = problems.find(build(fields))
    assert [problem.severity for problem in found] == ["error", "warning"]
    assert "Action columns that never change: 1 of 2, action_0." in found[0].what
    assert "Observation columns that never change: 1 of 3, observation_1." in found[1].what


def test_actions_at_the_bounds_are_told_by_share() -> None:
    fields = sound()
    fields["actions"][:300, 1] = -1
    problem = only(problems.find(build(fields)), "Actions lie at ±1")
    assert problem.severity == "note"
    assert "up to 20% of the rows: action_1;" in problem.what
    fields["actions"][:900, 0] = 1
    problem = only(problems.find(build(fields)), "Actions lie at ±1")
    assert problem.severity == "warning"
    assert "up to 60% of the rows: action_0, action_1;" in problem.what


def test_actions_that_use_little_of_the_box_are_found() -> None:
    fields = sound()
    fields["actions"][:, 1] *= 0.05
    problem = only(problems.find(build(fields)), "use little of")
    assert problem.severity == "warning"
    assert problem.what.endswith("action_1.")
    assert "--scale-actions" in problem.remedy


@examples
@given(row=some_row, value=st.sampled_from([-999.0, 1e7, -3e30]), stored=st.booleans())
def test_an_outlier_is_found_at_the_sources_row(row: int, value: float, stored: bool) -> None:
    fields = sound()
    assume(row > 0 and (stored or not fields["timeouts"][row]))
    fields["observations"][row, 2] = value
    fields["next_observations"][row - 1, 2] = value
    if not stored:
        del fields["next_observations"]
    problem = only(problems.find(build(fields)), "deviations from the rest")
    assert problem.severity == "warning"
    assert problem.rows == (row,)
    assert "the rest: 1 of 1," in problem.what
    assert "observation_2" in problem.what


def test_a_column_on_a_huge_scale_is_found() -> None:
    fields = sound()
    fields["observations"][:, 0] = 1.7e9 + 1e4 * np.arange(ROWS)
    del fields["next_observations"]
    found = problems.find(build(fields))
    assert "observation_0 (1.7e+09 to" in only(found, "beyond ±1e+06").what
    assert silent(found, "deviations from the rest")


def test_rare_events_are_no_outliers() -> None:
    fields = sound(rows=3_000)
    fields["observations"][:, 0] = np.arange(3_000) % 1_000 == 7
    del fields["next_observations"]
    assert problems.find(build(fields)) == []


def test_little_data_and_single_rows_are_told() -> None:
    fields = sound(rows=200)
    fields["timeouts"][[5, 6]] = True
    found = problems.find(build(fields))
    assert "only 200 rows" in only(found, "There are only").what
    single = only(found, "Episodes of a single row")
    assert single.rows == (6,)
    assert "episode 1." in single.what


def test_episodes_that_leak_into_validation_are_an_error() -> None:
    fields, other = sound(), sound(seed=1)
    data, held = build(fields), build(other)
    assert problems.find(replace(data, validation=held)) == []
    third = np.flatnonzero(data.episode_ids == 3)
    mixed = {key: np.concatenate([other[key], fields[key][third]]) for key in fields}
    found = problems.find(replace(data, validation=build(mixed)))
    problem = only(found, "Validation episodes that also occur")
    assert problem.severity == "error"
    assert problem.rows == (ROWS,)
    assert f"episode {held.num_episodes}." in problem.what
    assert silent(found, "Validation rows")


@examples
@given(row=some_row, at=some_row)
def test_a_row_that_leaks_into_validation_is_a_warning(row: int, at: int) -> None:
    fields, other = sound(), sound(seed=1)
    for key in ("observations", "actions", "rewards", "next_observations"):
        other[key][at] = fields[key][row]
    found = problems.find(replace(build(fields), validation=build(other)))
    assert len(found) == 1
    assert found[0].severity == "warning"
    assert found[0].rows == (at,)
    assert "1 of 1,500" in found[0].what


def test_the_worst_comes_first_and_all_fits_the_screen() -> None:
    fields = with_ends([50] * 15, [True] * 15)
    fields["actions"][:, 0] = 0.5
    fields["actions"][:400, 1] = 1.0
    fields["observations"][[7, 300], 1] = 1e5
    found = problems.find(build(fields))
    order = [("error", "warning", "note").index(problem.severity) for problem in found]
    assert order == sorted(order)
    assert problems.fatal(found)
    assert not problems.fatal([p for p in found if p.severity != "error"])
    lines = problems.describe(found)
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("error:   ")
    assert "         First rows: 7, 300" in lines
    assert lines[-1] == "2 errors, 3 warnings"
    assert json.loads(json.dumps([asdict(problem) for problem in found]))


def test_finding_leaves_the_data_alone() -> None:
    data = build(sound())
    before = data.fingerprint
    problems.find(data)
    assert build(sound()).fingerprint == before


def test_the_builtin_data_are_sound() -> None:
    assert problems.find(load_dataset("builtin/hopper-replay")) == []


HELD_OUT = ("DMSD", "SafetyHalfCheetah", "Simglucose")


@pytest.mark.parametrize("task", [*HELD_OUT, "Fusion", "RocketRecovery"])
def test_official_neorl2_files_have_no_errors(shared_data: Path, task: str) -> None:
    folder = shared_data / "neorl2"
    data = neorl2.load(folder / f"{task}-val.npz", constant_columns="keep")
    if task in HELD_OUT:
        train = neorl2.load(folder / f"{task}-train.npz", constant_columns="keep")
        data = replace(train, validation=data)
    found = problems.find(data)
    assert not problems.fatal(found), problems.describe(found)
    assert silent(found, "another scale")
    assert silent(found, "deviations from the rest")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mujoco/hopper_medium", []),
        ("mujoco/hopper_medium_replay", []),
        ("mujoco/hopper_medium_expert", []),
        ("mujoco/halfcheetah_medium_replay", ["note"]),
        ("d4rl/mini_kitchen_microwave_kettle_light_slider-v0", ["warning", "note"]),
    ],
)
def test_hdf5_files_have_no_errors(shared_data: Path, name: str, expected: list[str]) -> None:
    data = d4rl.load(shared_data / f"{name}.hdf5", constant_columns="keep")
    assert [problem.severity for problem in problems.find(data)] == expected
