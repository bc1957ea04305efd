from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from acpo.data import d4rl
from acpo.errors import UserError


@pytest.fixture
def path(tmp_path: Path, fields: dict[str, Any]) -> Path:
    path = tmp_path / "toy.hdf5"
    d4rl.save(path, **fields, attrs={"env": "Hopper-v4", "seed": 3})
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        d4rl.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_saved_arrays_are_loaded_again(path: Path, fields: dict[str, Any]) -> None:
    data = d4rl.load(path)
    kept = [0, 1, 2, 3, 4, 5, 6, 8, 9, 10]
    for key in ("observations", "actions", "rewards", "terminals"):
        np.testing.assert_array_equal(getattr(data, key), fields[key][kept])
    assert data.name == "toy"
    assert data.source == str(path)
    assert data.environment == "Hopper-v4"


def test_saved_next_observations_are_loaded_again(tmp_path: Path, fields: dict[str, Any]) -> None:
    following = fields["observations"] + 1
    d4rl.save(tmp_path / "x.h5", **fields, next_observations=following, attrs={})
    data = d4rl.load(tmp_path / "x.h5")
    np.testing.assert_array_equal(data.next_observations, following)
    assert data.environment is None


def test_saving_keeps_attributes_and_compresses(path: Path) -> None:
    with h5py.File(path) as file:
        assert dict(file.attrs) == {"env": "Hopper-v4", "seed": 3}
        assert {(file[key].compression, file[key].shuffle) for key in file} == {("gzip", True)}


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    path: Path, fields: dict[str, Any]
) -> None:
    before = path.read_bytes()
    with pytest.raises(TypeError):
        d4rl.save(path, **fields, attrs={"bad": object()})  # type: ignore[dict-item]
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_an_environment_stored_as_bytes_is_read(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file.attrs["env"] = np.bytes_("Hopper-v4")
    assert d4rl.load(path).environment == "Hopper-v4"


def test_timeouts_may_be_absent(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["timeouts"]
    assert d4rl.load(path).num_episodes == 2


def test_a_missing_key_is_named_with_the_keys_there_are(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["rewards"]
    message = refusal(path)
    assert "no array 'rewards'" in message
    assert "The file has 'actions', 'observations', 'terminals', 'timeouts'" in message


def test_a_group_in_place_of_an_array_is_refused(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["observations"]
        file.create_group("observations")
    assert "no array 'observations'" in refusal(path)


def test_an_empty_hdf5_file_is_refused(tmp_path: Path) -> None:
    h5py.File(tmp_path / "x.h5", "w").close()
    assert "The file has no arrays" in refusal(tmp_path / "x.h5")


def test_a_truncated_file_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])
    assert "cut short" in refusal(path)


def test_a_file_that_is_not_hdf5_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    path.write_text("no arrays here")
    assert "cannot be read as HDF5" in refusal(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "File not found" in refusal(tmp_path / "absent.hdf5")


def test_bad_contents_are_refused_with_the_file_named(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["rewards"][6] = np.nan
    assert "'rewards' is nan at row 6" in refusal(path)


@pytest.mark.parametrize(
    ("name", "rows", "episodes", "mean_return"),
    [
        ("hopper_medium", 200_355, 489, 1314.46),
        ("hopper_medium_replay", 200_184, 1219, 381.17),
        ("hopper_medium_expert", 200_989, 353, 1875.56),
        ("halfcheetah_medium", 200_000, 200, 5702.78),
        ("halfcheetah_medium_replay", 201_000, 201, 4059.14),
        ("halfcheetah_medium_expert", 202_000, 202, 8904.86),
    ],
)
def test_real_locomotion_files_load(
    shared_data: Path, name: str, rows: int, episodes: int, mean_return: float
) -> None:
    data = d4rl.load(shared_data / "mujoco" / f"{name}.hdf5")
    assert data.episode_lengths.sum() == rows
    assert data.num_episodes == episodes
    assert data.mean_return == pytest.approx(mean_return, abs=0.01)
    # Exactly the episodes that did not end by themselves lose their last row.
    assert len(data) == rows - (episodes - data.terminals.sum())
    assert data.environment == ("Hopper-v4" if "hopper" in name else "HalfCheetah-v4")


def test_the_real_kitchen_file_loads_only_with_its_constant_goal_kept(shared_data: Path) -> None:
    path = shared_data / "d4rl" / "mini_kitchen_microwave_kettle_light_slider-v0.hdf5"
    assert "30 of 60 columns that never change: 30-59" in refusal(path)
    data = d4rl.load(path, constant_columns="keep")
    assert (len(data), data.num_episodes) == (3_680, 19)
    assert (data.observation_dim, data.action_dim) == (60, 9)
