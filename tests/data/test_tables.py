from __future__ import annotations

import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpo.data import checks, tables
from acpo.data.dataset import Dataset, from_arrays, from_stream
from acpo.data.options import DataOptions
from acpo.data.pairing import Steps
from acpo.data.tables import rows as table_rows
from acpo.data.tables.order import reordered
from acpo.errors import UserError


@pytest.fixture(autouse=True, scope="module")
def trusted() -> Iterator[None]:
    """Starts no process to try each Parquet file, which would take long and is tested elsewhere."""
    with mock.patch.object(checks, "decodable_parquet"):
        yield


def log(**changes: Any) -> dict[str, Any]:
    """Three runs of four rows: 'b' ends by itself, the others are cut."""
    columns: dict[str, Any] = {
        "obs_0": np.arange(12) * 1.0,
        "obs_1": np.arange(12)[::-1] * 0.5,
        "u_1": np.tile([10.0, 20.0, 30.0, 20.0], 3),
        "reward": np.arange(12) * 0.1,
        "run_id": np.repeat(["a", "b", "c"], 4).tolist(),
        "done": np.arange(12) == 7,
    }
    return {name: value for name, value in {**columns, **changes}.items() if value is not None}


def written(path: Path, columns: dict[str, Any]) -> Path:
    frame = pl.DataFrame(columns, strict=False)
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, separator="\t" if path.suffix == ".tsv" else ",")
    return path


def options(**given: Any) -> DataOptions:
    return DataOptions(**given)


def load(table: Any, **given: Any) -> Dataset:
    opened = tables.open_file if isinstance(table, Path) else tables.open_frame
    return opened(table, options(**given)).read()


def refusal(table: Any, **given: Any) -> str:
    with pytest.raises(UserError) as caught:
        load(table, **given)
    return str(caught.value)


def same(one: Dataset, other: Dataset) -> None:
    assert one.fingerprint == other.fingerprint
    np.testing.assert_array_equal(one.episode_lengths, other.episode_lengths)


# What is read


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_a_file_gives_the_pairs_of_its_episodes(tmp_path: Path, suffix: str) -> None:
    data = load(written(tmp_path / f"plant{suffix}", log()))
    assert data.name == "plant"
    assert data.episode_ids.tolist() == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert data.observations[:, 0].tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert data.next_observations[:, 0].tolist() == [1, 2, 3, 5, 6, 7, 7, 9, 10, 11]
    assert np.flatnonzero(data.terminals).tolist() == [6]
    np.testing.assert_allclose(data.episode_returns, [0.6, 2.2, 3.8], rtol=1e-6)
    assert data.features.observations == ("obs_0", "obs_1")


def test_actions_are_scaled_by_the_data_and_their_units_are_kept() -> None:
    data = load(log())
    assert data.actions[:4, 0].tolist() == [-1, 0, 1, -1]
    assert (data.features.actions, data.features.action_low) == (("u_1",), (10.0,))
    assert data.features.to_units(data.actions)[:4, 0].tolist() == [10, 20, 30, 10]


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pl.LazyFrame, dict])
def test_frames_and_arrays_are_read_like_files(tmp_path: Path, make: Callable[..., Any]) -> None:
    same(load(make(log())), load(written(tmp_path / "x.csv", log())))


def test_matrices_become_numbered_columns_of_which_d4rls_names_are_guessed() -> None:
    columns = log()
    arrays = {
        "observations": np.stack([columns["obs_0"], columns["obs_1"]], axis=1),
        "actions": columns["u_1"][:, None].astype(np.float16),
        "rewards": columns["reward"][:, None],
        "terminals": columns["done"],
        "timeouts": np.arange(12) % 4 == 3,
    }
    data = load(arrays)
    assert data.features.observations == ("observations_0", "observations_1")
    same(data, load(columns))


def test_an_npz_with_other_keys_is_a_table(tmp_path: Path) -> None:
    columns = log()
    path = tmp_path / "plant.npz"
    np.savez(path, **columns)
    source = tables.open_npz(path, options())
    assert source.name == "plant"
    same(source.read(), load(columns))
    assert "action            u_1 (guessed)" in tables.chosen(path, options())


def test_an_array_that_needs_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, **log(obs_0=np.arange(12).astype(object)))
    with pytest.raises(UserError, match=r"array of Python objects.*can run any code"):
        tables.open_npz(path, options())


def test_pandas_is_read_without_arrow() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import pandas as pd; from acpo.data import tables; from acpo.data.options import *\n"
        "frame = pd.DataFrame({'obs': [1., 2, 4, 5], 'mode': ['a', 'b', 'a', 'b'],\n"
        "    'n': pd.array([1, 2, 3, 4], dtype='Int64'), 'u_1': [0, 1, 0, 1], 'r': [1, 2, 3, 4],\n"
        "    'day': pd.date_range('2026-01-01', periods=4, tz='UTC'),\n"
        "    'kind': pd.Categorical(['x', 'x', 'y', 'y'])})\n"
        "options = DataOptions(observation=('obs', 'mode', 'n', 'kind'), time='day')\n"
        "data = tables.open_frame(frame, options).read()\n"
        "print(data.observations[0].tolist(), data.features.observation_names)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "[1.0, 1.0, 0.0, 1.0, 1.0, 0.0]" in done.stdout, done.stderr
    assert "'mode=b', 'n', 'kind=x'" in done.stdout


def test_opening_a_table_module_does_not_import_polars() -> None:
    code = "import sys, acpo.data.tables; assert 'polars' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# Which columns


def test_patterns_are_in_natural_order_and_names_as_given() -> None:
    columns = log(obs_10=np.arange(12) % 5, obs_2=np.arange(12) % 7)
    data = load(columns, observation=["obs_10", "obs_*"])
    assert data.features.observations == ("obs_10", "obs_0", "obs_1", "obs_2")
    assert load(columns).features.observations == ("obs_0", "obs_1", "obs_2", "obs_10")


def test_a_name_that_looks_like_a_pattern_is_a_name() -> None:
    columns = {("x[0]" if name == "obs_0" else name): value for name, value in log().items()}
    assert load(columns, observation="x[0]").features.observations == ("x[0]",)


def test_what_was_chosen_is_told_with_what_was_guessed(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", log(comment=["x"] * 12))
    assert tables.chosen(path, options(observation=("obs_1",), reward="-obs_0")) == [
        "observation       obs_1",
        "action            u_1 (guessed)",
        "reward            -obs_0",
        "episode           run_id (guessed)",
        "terminal          done (guessed)",
        "unused            reward, comment",
    ]
    assert tables.chosen(log(), options())[0] == "observation       obs_0, obs_1 (guessed)"


def test_stored_next_observations_are_used_and_no_row_is_dropped() -> None:
    columns = log(next_obs_0=np.arange(12) + 1.0, next_obs_1=np.arange(12) * -1.0)
    data = load(columns)
    assert len(data) == 12
    assert data.next_observations[3].tolist() == [4, -3]


def test_successors_are_not_guessed_for_columns_named_by_hand() -> None:
    columns = log(next_obs_0=np.arange(12) + 1.0, next_obs_1=np.arange(12) * -1.0)
    assert len(load(columns, observation=["obs_1", "obs_0"])) == 10


def test_next_observations_of_another_number_are_refused_or_not_guessed() -> None:
    columns = log(next_obs_0=np.arange(12) + 1.0)
    assert len(load(columns)) == 10
    message = refusal(columns, next_observation=["next_obs_0"])
    assert "the next observation has 1 columns but the observation 2" in message


def test_observation_columns_that_cannot_be_guessed_are_asked_for() -> None:
    columns = {name.replace("obs_", "sensor_"): value for name, value in log().items()}
    message = refusal(columns, action=["u_1"])
    assert "no column is called like the observation, so name it with --observation" in message
    assert "'sensor_0', 'sensor_1', 'u_1'" in message
    assert load(columns, observation=["sensor_*"]).observation_dim == 2


def test_actions_and_reward_that_cannot_be_guessed_are_asked_for() -> None:
    columns = log(valve=log()["u_1"], u_1=None)
    assert "like the action, so name it with --action" in refusal(columns)
    assert "like the reward, so name it with --reward" in refusal(log(reward=None))


def test_an_unknown_column_is_answered_with_the_nearest() -> None:
    assert "--action: there is no column 'u_2'; did you mean 'u_1'?" in refusal(
        log(), action=["u_2"]
    )
    assert "--reward: there is no column 'rewrd'; did you mean 'reward'?" in refusal(
        log(), reward="2*rewrd"
    )
    assert "--episode: there is no column 'run'" in refusal(log(), episode="run")


def test_a_column_cannot_be_observation_and_action() -> None:
    assert "'u_1' cannot be observation and action at once" in refusal(
        log(), observation=["obs_0", "u_1"], action=["u_1"]
    )


def test_a_reward_expression_is_computed_from_columns() -> None:
    columns = {**log(), "T in": np.arange(12) * 2.0}
    data = load(columns, reward="`T in` - (u_1 > 20)")
    assert data.rewards[:3].tolist() == [0, 2, 3]
    np.testing.assert_array_equal(load(log(), reward="1").rewards, 1)


def test_a_bad_reward_expression_is_refused_before_reading() -> None:
    with mock.patch.object(table_rows.Rows, "frames", side_effect=AssertionError):
        assert "'obs_0.x' is not allowed" in refusal(log(), reward="obs_0.x")


def test_a_reward_that_is_not_finite_is_named_by_its_expression() -> None:
    assert "'log(obs_0)' is -inf at row 0" in refusal(log(), reward="log(obs_0)")


# Where episodes end


def test_an_id_that_comes_back_is_the_same_episode(tmp_path: Path) -> None:
    order = np.array([4, 0, 5, 1, 8, 2, 6, 9, 7, 3, 10, 11])
    frame = pl.DataFrame(log())[order]
    expected = pl.DataFrame(log())[[4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 10, 11]]
    same(load(frame), load(expected))
    frame.write_csv(tmp_path / "x.csv")
    same(load(tmp_path / "x.csv"), load(expected))


def test_rows_are_sorted_by_time_within_their_id() -> None:
    frame = pl.DataFrame(log(time=np.tile([0, 1, 2, 3], 3)))
    shuffled = frame[np.random.default_rng(0).permutation(12)]
    starts = shuffled.unique("run_id", keep="first", maintain_order=True)["run_id"]
    expected = pl.concat(frame.filter(pl.col("run_id") == run) for run in starts)
    same(load(shuffled, time="time"), load(expected))


def test_rows_without_an_id_are_sorted_by_time() -> None:
    frame = pl.DataFrame(log(run_id=None, done=None, time=np.arange(12)))
    shuffled = frame[np.random.default_rng(0).permutation(12)]
    same(load(shuffled), load(frame))


def test_a_clock_that_begins_anew_begins_an_episode_and_is_not_sorted() -> None:
    data = load(log(run_id=None, done=None, t=np.tile([0, 1, 2, 3], 3)))
    assert data.episode_lengths.tolist() == [4, 4, 4]
    assert data.observations[:4, 0].tolist() == [0, 1, 2, 4]


def test_a_pause_of_more_than_ten_usual_steps_ends_an_episode() -> None:
    times = np.arange(12) * 60.0
    times[8:] += 9 * 60  # a step of ten minutes still goes on
    columns = log(run_id=None, done=None, time=times)
    assert load(columns).episode_lengths.tolist() == [12]
    times[4:] += 9.5 * 60
    assert load(columns).episode_lengths.tolist() == [4, 8]
    assert load(columns, gap=300).episode_lengths.tolist() == [4, 4, 4]
    assert load(columns, gap=3000).episode_lengths.tolist() == [12]


MINUTES = [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]


@pytest.mark.parametrize(
    "times",
    [
        pd.Timestamp("2026-03-01").to_numpy() + np.array(MINUTES).astype("m8[m]"),
        np.array(MINUTES).astype("m8[m]"),
        [f"2026-03-01T00:{i:02d}:00" for i in MINUTES],
        [f"2026-03-01 00:{i:02d}" for i in MINUTES],
        [f"2026-03-01T00:{i:02d}:00+01:00" for i in MINUTES],
        [f" {60 * i}" for i in MINUTES],
    ],
)
def test_dates_are_times_in_seconds(times: Any) -> None:
    columns = log(run_id=None, done=None, time=times)
    for frame in (columns, pd.DataFrame(columns)):
        assert load(frame, gap=179).episode_lengths.tolist() == [6, 6]
        assert load(frame, gap=181).episode_lengths.tolist() == [12]


@pytest.mark.parametrize("unit", [pl.Date, pl.Time])
def test_days_and_times_of_day_are_times(unit: Any) -> None:
    times = pl.Series(MINUTES).cast(pl.Int32 if unit == pl.Date else pl.Int64)
    seconds = 86_400 if unit == pl.Date else 1e-9
    frame = pl.DataFrame(log(run_id=None, done=None)).with_columns(time=times.cast(unit))
    assert load(frame, gap=2.9 * seconds).episode_lengths.tolist() == [6, 6]
    assert load(frame, gap=3.1 * seconds).episode_lengths.tolist() == [12]


def test_a_gap_of_dates_is_in_seconds(tmp_path: Path) -> None:
    times = [f"2026-03-01T00:{i + 2 * (i > 5):02d}:00" for i in range(12)]
    path = written(tmp_path / "x.csv", log(run_id=None, done=None, time=times))
    assert load(path, gap=100).episode_lengths.tolist() == [6, 6]
    assert load(path, gap=200).episode_lengths.tolist() == [12]


def test_times_that_repeat_do_not_make_every_step_a_pause() -> None:
    data = load(log(time=np.repeat(np.arange(3), 4)), time="time")
    assert data.episode_lengths.tolist() == [4, 4, 4]


def test_a_time_is_not_guessed_where_episodes_are_told_otherwise() -> None:
    assert not any("time " in line for line in tables.chosen(log(time=np.arange(12)), options()))


def test_flags_end_episodes_in_the_middle_of_an_id() -> None:
    data = load(log(done=np.arange(12) == 5, truncated=np.arange(12) == 1))
    assert data.episode_lengths.tolist() == [2, 2, 2, 2, 4]
    assert np.flatnonzero(data.terminals).tolist() == [3]


@pytest.mark.parametrize(
    "flags", [["False", "True"], ["0", "1"], ["0.0", "1.0"], [" false", "TRUE"]]
)
def test_flags_may_be_written_in_any_usual_way(tmp_path: Path, flags: list[str]) -> None:
    path = written(tmp_path / "x.csv", log(done=[flags[i == 7] for i in range(12)]))
    assert np.flatnonzero(load(path).terminals).tolist() == [6]


def test_no_row_is_both_terminal_and_timeout_unless_the_table_says_so() -> None:
    (steps,) = tables.open_frame(log(), options()).blocks(None)
    assert np.flatnonzero(steps.terminals).tolist() == [7]
    assert np.flatnonzero(steps.timeouts).tolist() == [3, 11]


def test_nothing_that_ends_episodes_is_refused_with_the_remedies() -> None:
    message = refusal(log(run_id=None, done=None))
    assert "nothing tells where an episode ends" in message
    assert all(flag in message for flag in ("--episode", "--terminal", "--timeout", "--time"))


def test_flags_that_are_never_true_are_refused() -> None:
    message = refusal(log(run_id=None, done=np.zeros(12)))
    assert "no row of 'done' or 'timeout' is true" in message


def test_a_gap_needs_a_time_and_must_be_above_0() -> None:
    assert "like the time, so name it with --time" in refusal(log(), gap=3.0)
    assert "The gap must be above 0" in refusal(log(time=np.arange(12)), gap=0.0)


# Folders


def test_a_folder_is_read_in_natural_order_and_each_file_begins_an_episode(tmp_path: Path) -> None:
    frame = pl.DataFrame(log(run_id=None, done=None))
    for number, name in enumerate(["day_1", "day_2", "day_10"]):
        frame[4 * number : 4 * number + 4].write_csv(tmp_path / f"{name}.csv")
    (tmp_path / "notes.txt").write_text("ignored")
    data = load(tmp_path)
    assert data.episode_lengths.tolist() == [4, 4, 4]
    assert data.observations[:, 0].tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert data.name == tmp_path.name


def test_an_id_in_two_files_is_two_episodes(tmp_path: Path) -> None:
    frame = pl.DataFrame(log())
    frame[:6].write_parquet(tmp_path / "1.parquet")
    frame[6:].write_parquet(tmp_path / "2.parquet")
    assert load(tmp_path).episode_lengths.tolist() == [4, 2, 2, 4]


def test_categories_and_ranges_are_those_of_all_files(tmp_path: Path) -> None:
    frame = pl.DataFrame(log(obs_1=["2"] * 4 + ["on"] * 4 + ["off"] * 4))
    for number in range(3):
        frame[4 * number : 4 * number + 4].write_csv(tmp_path / f"{number}.csv")
    assert load(tmp_path).features.categories == {"obs_1": ("2", "off", "on")}


def test_errors_in_a_folder_name_the_file_and_its_row(tmp_path: Path) -> None:
    written(tmp_path / "1.csv", log())
    path = written(tmp_path / "2.csv", log(obs_1=[None, *range(11)]))
    assert f"{path}: column 'obs_1' has no value at row 0" in refusal(tmp_path)
    written(path, log(obs_1=None))
    assert f"{path}: there is no column 'obs_1'; did you mean 'obs_0'?" in refusal(tmp_path)


def test_a_folder_without_tables_or_of_two_kinds_is_refused(tmp_path: Path) -> None:
    assert "holds no tables" in refusal(tmp_path)
    written(tmp_path / "1.csv", log())
    written(tmp_path / "2.parquet", log())
    assert "holds .csv and .parquet files; a folder needs files of one kind" in refusal(tmp_path)


# Categories


def test_text_becomes_one_hot_and_booleans_numbers(tmp_path: Path) -> None:
    columns = log(obs_1=["heat", "off", "heat", "cool"] * 3, obs_2=np.arange(12) % 2 == 0)
    for table in (columns, pd.DataFrame(columns), written(tmp_path / "x.csv", columns)):
        data = load(table)
        assert data.features.categories == {"obs_1": ("cool", "heat", "off")}
        assert data.observations[1].tolist() == [1, 0, 0, 1, 0]
        assert data.features.observation_names[1:] == (
            "obs_1=cool",
            "obs_1=heat",
            "obs_1=off",
            "obs_2",
        )
        record = {"obs_0": 1, "obs_1": "off", "obs_2": False}
        np.testing.assert_array_equal(data.features.encode(record), data.observations[1])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_numbers_are_categories_where_asked_for(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path / f"x{suffix}", log(obs_1=[1, 2, 10, 2] * 3))
    data = load(path, categorical=["obs_1"])
    assert data.features.categories == {"obs_1": ("1", "10", "2")}
    assert data.observations[2].tolist() == [2, 0, 1, 0]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_missing_number_is_no_category(tmp_path: Path, suffix: str) -> None:
    """pandas makes floats of integers with gaps, and writes a gap as NaN."""
    path = written(tmp_path / f"x{suffix}", log(obs_1=[1.0, float("nan"), 2.0, 1.0] * 3))
    message = refusal(path, categorical=["obs_1"])
    assert "column 'obs_1' has no value at row 1; 3 of its 12 values are missing" in message


def test_dates_that_mean_two_days_are_refused() -> None:
    times = [f"03/04/2026 22:{minute:02}" for minute in range(12)]
    message = refusal(log(run_id=None, clock=times), time="clock")
    assert "'clock' is no time ('03/04/2026 22:00' at row 0" in message
    assert "dates such as 2026-05-31T14:00:00" in message
    iso = [f"2026-04-03 22:{minute:02}" for minute in range(12)]
    assert load(log(run_id=None, clock=iso), time="clock").num_episodes == 2


def test_successors_share_the_categories_of_their_column() -> None:
    columns = log(obs_1=["a", "b"] * 6, next_obs_0=np.arange(12), next_obs_1=["b", "c"] * 6)
    source = tables.open_frame(columns, options())
    assert source.features.categories == {"obs_1": ("a", "b", "c")}
    (steps,) = source.blocks(None)
    assert steps.observations[1].tolist() == [1, 0, 1, 0]
    assert steps.next_observations[1].tolist() == [1, 0, 0, 1]


def test_categories_are_only_for_the_observation() -> None:
    assert "'u_1' is to be categorical (--categorical) but is no column of the observation" in (
        refusal(log(), categorical=["u_1"])
    )


def test_more_than_fifty_categories_are_refused() -> None:
    columns = {name: np.tile(value, 5) for name, value in log(run_id=None).items()}
    message = refusal({**columns, "obs_1": [f"batch {i}" for i in range(60)]})
    assert "column 'obs_1' holds more than 50 different texts" in message
    assert "Leave it out" in message


# Damaged values


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    "column", ["obs_0", "obs_1", "u_1", "reward", "run_id", "done", "time", "extra"]
)
def test_a_missing_value_is_named_by_column_row_and_count(
    tmp_path: Path, suffix: str, column: str
) -> None:
    columns = log(time=np.arange(12) * 1.0, obs_1=["a", "b", "c"] * 4, extra=np.arange(12))
    columns[column] = [None if i in (5, 7) else v for i, v in enumerate(list(columns[column]))]
    message = refusal(
        written(tmp_path / f"x{suffix}", columns), time="time", reward="reward + extra"
    )
    assert f"x{suffix}: column '{column}' has no value at row 5; 2 of its 12 values" in message
    assert "Fill them in" in message


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, dict])
def test_nan_is_a_missing_value(make: Callable[..., Any]) -> None:
    columns = log()
    columns["obs_1"][3] = np.nan
    assert "table: column 'obs_1' has no value at row 3; 1 of its 12" in refusal(make(columns))


def test_rows_are_counted_as_in_the_file_even_if_they_are_sorted() -> None:
    columns = log(run_id=["a", "b"] * 6)
    columns["obs_0"][5] = np.nan
    assert "column 'obs_0' has no value at row 5" in refusal(columns)


def test_columns_that_are_not_used_may_lack_values() -> None:
    assert len(load(log(comment=[None] * 11 + ["x"], other=[None] * 12))) == 10


@pytest.mark.parametrize("column", ["obs_0", "u_1", "reward"])
@pytest.mark.parametrize("row", [3, 2900])
def test_text_in_a_column_of_numbers_is_shown(tmp_path: Path, column: str, row: int) -> None:
    columns = {name: list(np.tile(value, 250)) for name, value in log(run_id=None).items()}
    columns[column] = [str(value) for value in columns[column]]
    columns[column][row] = "n/a"
    message = refusal(written(tmp_path / "x.csv", columns))
    assert f"column '{column}' holds text ('n/a' at row {row}; 1 of its 3,000 values" in message
    assert "Correct these values" in message


def test_text_among_actions_and_rewards_is_refused() -> None:
    texts = ["low", "high", "low"] * 4
    for values in (texts, pl.Series(texts, dtype=pl.Categorical)):
        message = refusal(pl.DataFrame(log(u_1=values)))
        assert "column 'u_1' holds text ('low' at row 0; 12 of its 12" in message
    assert "column 'reward' holds text" in refusal(log(reward=texts))
    assert "column 'mode' holds text" in refusal({**log(), "mode": texts}, reward="reward + mode")


def test_categories_that_begin_as_numbers_are_told_to_be_named(tmp_path: Path) -> None:
    columns = {name: list(np.tile(value, 250)) for name, value in log(run_id=None).items()}
    columns["obs_1"] = ["1"] * 1200 + ["heat"] * 1800
    path = written(tmp_path / "x.csv", columns)
    message = refusal(path)
    assert "column 'obs_1' holds text ('heat' at row 1200" in message
    assert "--categorical" in message
    assert load(path, categorical=["obs_1"]).features.categories == {"obs_1": ("1", "heat")}


def test_numbers_with_spaces_or_quotes_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('obs_0,u_1,r,done\n"1.5", 1,2,0\n2.5, 2,"3",0\n3.5, -3,4,1\n', encoding="utf-8")
    data = load(path)
    assert data.observations[:, 0].tolist() == [1.5, 2.5, 3.5]
    assert data.features.action_low == (-3.0,)


def test_an_infinite_value_is_named() -> None:
    columns = log()
    columns["obs_1"][2] = 1e300
    assert "column 'obs_1' is infinite or too large at row 2; 1 of its 12" in refusal(columns)


def test_a_flag_that_is_no_flag_is_named() -> None:
    assert "column 'done' is 2.0 at row 4; 1 of its 12" in refusal(
        log(done=[0.0] * 4 + [2.0] + [0.0] * 7)
    )
    assert "column 'done' holds text ('maybe' at row 1" in refusal(
        log(done=["true", "maybe"] + ["false"] * 10)
    )


def test_a_time_that_is_none_is_shown(tmp_path: Path) -> None:
    for times in (["noon"] * 12, ["2026-01-01"] * 4 + ["noon"] * 8):
        row = times.index("noon")
        message = refusal(written(tmp_path / "x.csv", log(time=times)), time="time")
        assert f"column 'time' is no time ('noon' at row {row}; " in message
        assert "2026-05-31T14:00:00" in message


def test_dates_and_lists_where_numbers_belong_are_refused() -> None:
    dates = pd.date_range("2026-01-01", periods=12).to_numpy()
    assert "column 'obs_1' holds times" in refusal(log(obs_1=dates))
    lists = pl.DataFrame(log()).with_columns(obs_1=pl.concat_list("obs_0", "obs_1"))
    assert "column 'obs_1' holds values of type List(Float64)" in refusal(lists)


def test_an_action_that_never_changes_is_refused_by_name() -> None:
    assert "the action 'u_1' never changes" in refusal(log(u_1=np.ones(12)))


def test_an_empty_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("obs,act,reward,done\n")
    assert "the table is empty" in refusal(path)
    path.write_text("")
    assert "cannot be read as CSV" in refusal(path)
    assert "no column is called like the observation" in refusal({})


def test_tables_of_a_wrong_form_are_refused() -> None:
    assert "'obs_0' has shape (12, 1, 1)" in refusal(log(obs_0=np.zeros((12, 1, 1))))
    assert "'u_1' has 11 rows but 'obs_0' has 12" in refusal(log(u_1=np.zeros(11)))
    assert "'obs_0' holds values of type complex128" in refusal(log(obs_0=np.zeros(12, complex)))
    assert "two columns are called 'obs_0'" in refusal(log(obs=np.zeros((12, 1))))
    assert "a list is no table" in refusal([1, 2])
    doubled = pd.DataFrame(np.zeros((3, 2)), columns=["x", "x"])
    assert "two columns have the same name" in refusal(doubled)


def test_a_path_that_is_no_table_is_refused(tmp_path: Path) -> None:
    assert "File not found" in refusal(tmp_path / "x.csv")
    (tmp_path / "x.xlsx").write_text("")
    assert "is no table; these are .csv, .tsv, .parquet files" in refusal(tmp_path / "x.xlsx")


def test_a_line_with_too_many_fields_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", log())
    path.write_text(path.read_text() + "1,2,10,0.1,c,false,7,8\n")
    assert "cannot be read as CSV" in refusal(path)


# Blocks


class Plan:
    """Random episodes; the first number of an observation is its row."""

    def __init__(self, lengths: list[int], terminal: list[bool], seed: int) -> None:
        rng, count = np.random.default_rng(seed), sum(lengths)
        self.last = np.cumsum(lengths) - 1
        self.episode = np.repeat(np.arange(len(lengths)), lengths)
        self.observations = np.stack(
            [np.arange(count), rng.normal(size=count)], 1, dtype=np.float32
        )
        self.actions = rng.uniform(-5, 9, size=(count, 2)).astype(np.float32)
        self.rewards = rng.normal(size=count).astype(np.float32)
        self.terminals = np.isin(np.arange(count), self.last[np.array(terminal)])
        self.timeouts = np.isin(np.arange(count), self.last) & ~self.terminals
        self.times = np.cumsum(np.where(np.diff(self.episode, prepend=0) > 0, 100.0, 1.0))

    def frame(self, layout: str) -> pl.DataFrame:
        columns = {f"obs_{i}": self.observations[:, i] for i in range(2)}
        columns |= {f"act_{i}": self.actions[:, i] for i in range(2)}
        columns |= {"reward": self.rewards, "terminal": self.terminals}
        if layout == "flags":
            return pl.DataFrame({**columns, "timeout": self.timeouts})
        if layout == "time":
            return pl.DataFrame({**columns, "time": self.times})
        frame = pl.DataFrame({**columns, "episode": [f"run {i % 100}" for i in self.episode]})
        if layout == "id":
            return frame
        # Runs that were recorded side by side, in the order of their first rows.
        within = np.arange(len(frame)) - (self.last + 1 - np.bincount(self.episode))[self.episode]
        return frame[np.lexsort([self.episode, within + 0.4 * self.episode])]

    def expected(self, actions: np.ndarray) -> Dataset:
        return from_arrays(
            observations=self.observations,
            actions=actions,
            rewards=self.rewards,
            terminals=self.terminals,
            timeouts=self.timeouts,
            name="plan",
            source="plan",
            constant_columns="keep",
        )


plans = st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=8).flatmap(
    lambda ends: st.builds(
        Plan,
        st.just([length for length, _ in ends]),
        st.just([terminal for _, terminal in ends]),
        st.integers(0, 2**32 - 1),
    )
)


@settings(max_examples=120, deadline=None)
@given(
    plan=plans.filter(lambda plan: len(plan.rewards) > 1),
    layout=st.sampled_from(["id", "side by side", "flags", "time"]),
    suffix=st.sampled_from([".csv", ".parquet"]),
    rows=st.none() | st.integers(1, 20),
    held=st.booleans(),
)
def test_any_episodes_in_any_layout_and_blocks_are_the_same_dataset(
    tmp_path_factory: pytest.TempPathFactory,
    plan: Plan,
    layout: str,
    suffix: str,
    rows: int | None,
    held: bool,
) -> None:
    path = tmp_path_factory.mktemp("tables") / f"plan{suffix}"
    frame = plan.frame(layout)
    written(path, frame.to_dict(as_series=False) if suffix == ".csv" else frame.to_dict())
    given_options = options(gap=50.0 if layout == "time" else None)
    source = tables.open_file(path, given_options, hold=held)
    try:
        expected = plan.expected(source.features.to_unit_range(plan.actions))
    except UserError as refused:
        with pytest.raises(UserError, match=str(refused).rpartition(";")[2][:20]):
            from_stream(source.stream(rows, keep_constant=True), "plan")
        return
    data = from_stream(source.stream(rows, keep_constant=True), "plan")
    same(data, expected)
    for field in ("observations", "next_observations", "actions", "rewards", "terminals"):
        np.testing.assert_array_equal(getattr(data, field), getattr(expected, field))
    np.testing.assert_array_equal(data.episode_ids, expected.episode_ids)
    np.testing.assert_array_equal(data.episode_returns, expected.episode_returns)
    here, there = data.observations[:, 0].astype(int), data.next_observations[:, 0].astype(int)
    np.testing.assert_array_equal(plan.episode[here], plan.episode[there])
    np.testing.assert_array_equal(there - here, ~data.terminals)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_table_is_never_held_whole_unless_it_will_be_anyway(
    tmp_path: Path, suffix: str, shuffled: bool
) -> None:
    count = 20_000
    row = np.random.default_rng(0).permutation(count) if shuffled else np.arange(count)
    frame = {"obs": row, "act": row % 7, "r": np.ones(count), "time": row, "run_id": row // 50}
    path = tmp_path / f"x{suffix}"
    if suffix == ".npz":
        np.savez_compressed(path, **frame)
    else:
        written(path, frame)
    collect, sizes = pl.LazyFrame.collect, [0]

    def watched(self: pl.LazyFrame, *args: Any, **kwargs: Any) -> Any:
        found = collect(self, *args, **kwargs)
        sizes.append(len(found))
        return found

    opener = tables.open_npz if suffix == ".npz" else tables.open_file
    given_options = options(time="time", gap=1e9)
    with (
        mock.patch.object(table_rows, "BLOCK_ROWS", 512),
        mock.patch.object(pl.LazyFrame, "collect", watched),
    ):
        source = opener(path, given_options)
        blocks = list(source.blocks(512))
    assert [len(block.rewards) for block in blocks] == [512] * 39 + [32]
    assert max(sizes) <= 512
    found = np.concatenate([block.observations[:, 0] // 50 for block in blocks])
    # Runs stay together, in the order in which they begin in the file.
    np.testing.assert_array_equal(found, np.repeat(pd.unique(row // 50), 50))
    held = opener(path, given_options, hold=True)
    assert held.read().fingerprint == from_stream(source.stream(512), "x").fingerprint


def test_a_source_can_be_read_again(tmp_path: Path) -> None:
    for held in (False, True):
        source = tables.open_file(written(tmp_path / "x.csv", log()), options(), hold=held)
        same(source.read(), source.read())


def test_a_table_too_large_to_be_held_is_streamed(tmp_path: Path) -> None:
    path = written(tmp_path / "x.csv", log())
    with mock.patch.object(table_rows, "HELD_NUMBERS", 71):  # 12 rows of 6 columns are 72
        source = tables.open_file(path, options(), hold=True)
        path.unlink()
        with pytest.raises(UserError, match="cannot be read as CSV"):
            source.read()
    path = written(tmp_path / "x.csv", log())
    source = tables.open_file(path, options(), hold=True)
    path.unlink()
    assert len(source.read()) == 10


@pytest.mark.parametrize("rows", [1, 3, 7, 100, 1000])
@pytest.mark.parametrize("size", [1, 4, 50])
def test_rows_are_put_in_any_order_from_blocks_of_any_size(rows: int, size: int) -> None:
    rng = np.random.default_rng(rows + size)
    count, alive = 100, []
    order = rng.permutation(count)
    whole = Steps(
        rng.normal(size=(count, 3)).astype(np.float32),
        rng.normal(size=(count, 1)).astype(np.float32),
        np.arange(count) * 1.0,
        np.arange(count) % 2 == 0,
        np.arange(count) % 3 == 0,
    )

    def blocks() -> Iterator[Steps]:
        for first in range(0, count, size):
            assert sum(array() is not None for array in alive) <= 1
            block = Steps(*(f if f is None else f[first : first + size].copy() for f in whole))
            alive.append(weakref.ref(block.observations))
            yield block

    found = list(reordered(blocks(), order, rows))
    assert [len(block.rewards) for block in found[:-1]] == [rows] * (len(found) - 1)
    for field, expected in whole._asdict().items():
        if expected is None:
            assert getattr(found[0], field) is None
        else:
            parts = np.concatenate([getattr(block, field) for block in found])
            assert parts.dtype == expected.dtype
            np.testing.assert_array_equal(parts, expected[order])
    for wrong in (order[:-1], np.append(order, count)):
        alive.clear()
        with pytest.raises(UserError, match="changed while it was read"):
            list(reordered(blocks(), np.argsort(wrong), rows))


def test_a_full_disk_is_named_when_rows_are_put_in_order() -> None:
    steps = Steps(*(np.zeros((10, 1)) for _ in range(5)))
    with (
        mock.patch.object(tempfile, "TemporaryFile", side_effect=OSError(28, "No space left")),
        pytest.raises(UserError, match=r"put in order in .*: No space left[.] Free some space"),
    ):
        list(reordered([steps], np.arange(10), 5))


def test_a_file_that_is_spoilt_after_opening_is_a_user_error(tmp_path: Path) -> None:
    path = written(tmp_path / "x.parquet", log())
    source = tables.open_file(path, options())
    path.unlink()
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        source.read()


# Damaged files


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
@pytest.mark.parametrize("held", [True, False])
def test_damaged_bytes_give_a_dataset_or_a_user_error(
    tmp_path: Path, suffix: str, held: bool
) -> None:
    path = tmp_path / f"x{suffix}"
    columns = log(obs_2=["on", "off", "on"] * 4, obs_3=np.arange(12))
    if suffix == ".npz":
        np.savez_compressed(path, **columns)
    else:
        written(path, columns)
    whole = path.read_bytes()
    opener = tables.open_npz if suffix == ".npz" else tables.open_file
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), size=rng.integers(1, 6)):
            damaged[place] = rng.integers(0, 256)
        if rng.random() < 0.3:
            del damaged[rng.integers(0, len(whole)) :]
        path.write_bytes(damaged)
        try:
            assert isinstance(opener(path, options(), hold=held).read(), Dataset)
        except UserError:
            refused += 1
    assert refused > 10
