from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from acpo.data import neorl2
from acpo.errors import UserError


@pytest.fixture
def arrays(fields: dict[str, Any]) -> dict[str, Any]:
    """The toy dataset under NeoRL2's keys and in its types."""
    following = fields["observations"] + 1
    return {
        neorl2.FIELD_NAMES[key]: array.astype(np.float32)
        for key, array in {**fields, "next_observations": following}.items()
    }


def written(folder: Path, arrays: dict[str, Any]) -> Path:
    path = folder / "toy.npz"
    np.savez_compressed(path, **arrays)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        neorl2.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_done_is_a_terminal_and_truncated_a_timeout(tmp_path: Path, arrays: dict[str, Any]) -> None:
    data = neorl2.load(written(tmp_path, arrays))
    assert np.flatnonzero(data.terminals).tolist() == [3]
    assert data.episode_lengths.tolist() == [4, 4, 4]
    np.testing.assert_array_equal(data.observations, arrays["obs"])
    np.testing.assert_array_equal(data.next_observations, arrays["next_obs"])
    np.testing.assert_array_equal(data.actions, arrays["action"])
    np.testing.assert_array_equal(data.rewards, arrays["reward"])
    assert data.name == "toy"
    assert data.environment is None


def test_d4rl_keys_are_accepted(tmp_path: Path, fields: dict[str, Any]) -> None:
    data = neorl2.load(written(tmp_path, fields))
    assert len(data) == 10
    assert data.num_episodes == 3


def test_a_missing_key_is_named_with_the_keys_there_are(
    tmp_path: Path, arrays: dict[str, Any]
) -> None:
    del arrays["reward"]
    message = refusal(written(tmp_path, arrays))
    assert "no array 'reward'" in message
    assert "The file has 'action', 'done', 'next_obs', 'obs', 'truncated'" in message


def test_a_missing_key_among_d4rls_is_named(tmp_path: Path, fields: dict[str, Any]) -> None:
    del fields["terminals"]
    assert "no array 'terminals'" in refusal(written(tmp_path, fields))


def test_errors_use_the_files_own_keys(tmp_path: Path, arrays: dict[str, Any]) -> None:
    arrays["action"][2, 1] = 3
    assert "'action' must lie in [-1, 1], but column 1" in refusal(written(tmp_path, arrays))


def test_an_array_that_needs_pickle_is_refused(tmp_path: Path, arrays: dict[str, Any]) -> None:
    arrays["reward"] = arrays["reward"].astype(object)
    message = refusal(written(tmp_path, arrays))
    assert "'reward' is an array of Python objects" in message
    assert "can run any code" in message


@pytest.mark.parametrize("kept", [0, 50, 0.5, 0.99])
def test_a_truncated_file_is_refused(
    tmp_path: Path, arrays: dict[str, Any], kept: int | float
) -> None:
    path = written(tmp_path, arrays)
    whole = path.read_bytes()
    path.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    assert "cut short" in refusal(path)


def test_a_damaged_array_is_refused(tmp_path: Path, arrays: dict[str, Any]) -> None:
    path = written(tmp_path, arrays)
    damaged = bytearray(path.read_bytes())
    damaged[200] ^= 255
    path.write_bytes(damaged)
    assert "cannot be read as NPZ" in refusal(path)


def test_a_file_that_is_no_zip_is_refused(tmp_path: Path, arrays: dict[str, Any]) -> None:
    path = tmp_path / "x.npz"
    with path.open("wb") as file:
        np.save(file, arrays["obs"])
    assert "cannot be read as NPZ" in refusal(path)


def parquet(folder: Path, arrays: dict[str, Any], *, lists: bool = False) -> Path:
    """The arrays as NeoRL2's Parquet has them: a column per number, or one of lists."""
    columns: dict[str, Any] = {}
    for key, array in arrays.items():
        if array.ndim == 1 or lists:
            columns[key] = array
        else:
            columns |= {f"{key}_{i}": column for i, column in enumerate(array.T)}
    path = folder / "toy.parquet"
    pl.DataFrame(columns).write_parquet(path)
    return path


def chained(arrays: dict[str, Any]) -> dict[str, Any]:
    """Each row going on from the one before, as recorded rows do; the ends are at 3, 7 and 11."""
    arrays["next_obs"][:-1] = arrays["obs"][1:]
    arrays["next_obs"][[3, 7]] += 5
    return arrays


@pytest.mark.parametrize("lists", [False, True])
def test_parquet_gives_what_the_npz_gives(
    tmp_path: Path, arrays: dict[str, Any], lists: bool
) -> None:
    expected = neorl2.load(written(tmp_path, arrays))
    found = neorl2.open_parquet(parquet(tmp_path, arrays, lists=lists)).read()
    assert found.fingerprint == expected.fingerprint
    assert found.episode_lengths.tolist() == [4, 4, 4]
    assert found.name == "toy"


def test_more_than_ten_columns_keep_their_order(tmp_path: Path, arrays: dict[str, Any]) -> None:
    for key in ("obs", "next_obs"):
        arrays[key] = np.random.default_rng(1).normal(size=(12, 11)).astype(np.float32)
    found = neorl2.open_parquet(parquet(tmp_path, arrays)).read()
    np.testing.assert_array_equal(found.observations, arrays["obs"])


def test_parquet_under_the_fields_long_names(tmp_path: Path, arrays: dict[str, Any]) -> None:
    expected = neorl2.load(written(tmp_path, arrays))
    names = {short: long for long, short in neorl2.FIELD_NAMES.items()}
    renamed = {names[key]: array for key, array in arrays.items()}
    found = neorl2.open_parquet(parquet(tmp_path, renamed)).read()
    assert found.fingerprint == expected.fingerprint
    renamed["actions"][2, 1] = 3
    with pytest.raises(UserError, match="'actions' must lie in"):
        neorl2.open_parquet(parquet(tmp_path, renamed)).read()


def test_parquet_without_truncated_ends_episodes_where_rows_do_not_go_on(
    tmp_path: Path, arrays: dict[str, Any]
) -> None:
    expected = neorl2.load(written(tmp_path, chained(arrays)))
    del arrays["truncated"]
    found = neorl2.open_parquet(parquet(tmp_path, arrays)).read()
    assert found.fingerprint == expected.fingerprint
    assert np.flatnonzero(found.terminals).tolist() == [3]


def test_a_missing_parquet_column_is_named_with_those_there_are(
    tmp_path: Path, arrays: dict[str, Any]
) -> None:
    arrays["force"] = arrays.pop("action")
    with pytest.raises(UserError, match=r"toy\.parquet: no array 'action'.*'force_0', 'force_1'"):
        neorl2.open_parquet(parquet(tmp_path, arrays))


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more", b"x" * 100])
def test_what_is_no_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "toy.parquet"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"toy\.parquet cannot be read as Parquet"):
        neorl2.open_parquet(path)


def test_lists_of_unequal_length_are_refused(tmp_path: Path, arrays: dict[str, Any]) -> None:
    path = parquet(tmp_path, arrays, lists=True)
    ragged = pl.Series([[1.0], *arrays["obs"][1:].tolist()])
    pl.read_parquet(path).with_columns(obs=ragged).write_parquet(path)
    for rows in (None, 1, 5):
        with pytest.raises(UserError, match="cannot be read as Parquet"):
            list(neorl2.open_parquet(path).blocks(rows))


def test_official_rows_chain_so_that_parquet_needs_no_truncated(
    shared_data: Path, tmp_path: Path
) -> None:
    with np.load(shared_data / "neorl2" / "Simglucose-val.npz") as official:
        arrays = {key: array for key, array in official.items() if key != "truncated"}
    found = neorl2.open_parquet(parquet(tmp_path, arrays)).read(keep_constant=True)
    assert found.num_episodes == 62
    assert found.terminals.sum() == 30


# min and max return, with which NeoRL2 turns a return into a score
BOUNDS = {
    "DMSD": (30.60, 849.51),
    "Simglucose": (9.75, 475),
    "SafetyHalfCheetah": (-283, 2507),
    "Fusion": (-107.601, 98.05),
    "RocketRecovery": (-176, 208),
}


@pytest.mark.parametrize(
    ("name", "rows", "widths", "episodes", "terminals", "score"),
    [
        ("DMSD-train", 100_000, (6, 2), 1000, 0, 56.6),
        ("DMSD-val", 20_000, (6, 2), 200, 0, 55.0),
        ("Simglucose-train", 100_257, (31, 1), 280, 111, 73.9),
        ("Simglucose-val", 20_018, (31, 1), 62, 30, 65.9),
        ("SafetyHalfCheetah-train", 18_000, (18, 6), 18, 0, 73.6),
        ("SafetyHalfCheetah-val", 2_000, (18, 6), 2, 0, 69.5),
        ("Fusion-val", 20_000, (15, 6), 200, 0, 49.6),
        ("RocketRecovery-val", 20_077, (7, 2), 146, 146, 70.5),
    ],
)
def test_official_files_load_and_give_the_published_score(
    shared_data: Path,
    name: str,
    rows: int,
    widths: tuple[int, int],
    episodes: int,
    terminals: int,
    score: float,
) -> None:
    data = neorl2.load(shared_data / "neorl2" / f"{name}.npz", constant_columns="keep")
    low, high = BOUNDS[name.split("-")[0]]
    assert len(data) == rows
    assert (data.observation_dim, data.action_dim) == widths
    assert data.num_episodes == episodes
    assert data.terminals.sum() == terminals
    assert 100 * (data.mean_return - low) / (high - low) == pytest.approx(score, abs=0.06)


def test_official_simglucose_is_refused_for_its_constant_patient_parameters(
    shared_data: Path,
) -> None:
    message = refusal(shared_data / "neorl2" / "Simglucose-val.npz")
    assert "4 of 31 columns that never change: 2, 10, 17-18" in message
