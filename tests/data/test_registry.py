from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acpo.data import DEFAULT, catalogue, d4rl, load_dataset, parquet, store
from acpo.data.registry import columns, make_options
from acpo.errors import UserError


@pytest.fixture
def hdf5(tmp_path: Path, fields: dict[str, Any]) -> Path:
    path = tmp_path / "toy.hdf5"
    d4rl.save(path, **fields, attrs={"env": "Hopper-v4"})
    return path


@pytest.mark.parametrize("suffix", [".hdf5", ".h5", ".H5", ".data", ""])
def test_hdf5_is_known_by_suffix_or_content(hdf5: Path, suffix: str) -> None:
    path = hdf5.rename(hdf5.with_name(f"other{suffix}"))
    assert load_dataset(path).environment == "Hopper-v4"


@pytest.mark.parametrize("suffix", [".npz", ".NPZ", ".zip"])
def test_npz_is_known_by_suffix_or_content(
    tmp_path: Path, fields: dict[str, Any], suffix: str
) -> None:
    path = tmp_path / f"toy{suffix}"
    with path.open("wb") as file:
        np.savez(file, **fields)
    assert len(load_dataset(str(path))) == 10


def test_constant_columns_are_kept_when_asked(tmp_path: Path, fields: dict[str, Any]) -> None:
    fields["observations"][:, 0] = 1
    path = tmp_path / "toy.npz"
    np.savez(path, **fields)
    with pytest.raises(UserError, match="never change: 0"):
        load_dataset(path)
    assert len(load_dataset(path, constant_columns="keep")) == 10


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"data\.txt is in no supported format.*\.hdf5.*\.npz"):
        load_dataset(path)


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(str(tmp_path))):
        load_dataset(tmp_path)


@pytest.mark.parametrize("text", ["absent.hdf5", "absent.npz", "some/where", "./absent"])
def test_a_path_that_is_absent_is_reported_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"File not found: {re.escape(str(tmp_path / text))}"):
        load_dataset(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("builtin/hoper-replay", DEFAULT),
        ("builtin/hopper", DEFAULT),
        ("d4rl/hoper-medium-v2", "d4rl/hopper-medium-v2"),
        ("hopper-medium-v2", "d4rl/hopper-medium-v2"),
        ("DMSD", "neorl2/DMSD"),
    ],
)
def test_the_nearest_name_is_suggested(text: str, name: str) -> None:
    with pytest.raises(UserError, match=f"No dataset is named '{text}'.*did you mean '{name}'"):
        load_dataset(text)


def test_an_unknown_name_is_answered_with_where_the_names_are() -> None:
    with pytest.raises(UserError, match=r"No dataset is named 'xyzzy'.*acpo data list"):
        load_dataset("xyzzy")


def test_a_path_too_long_for_the_system_is_refused() -> None:
    with pytest.raises(UserError, match="File not found"):
        load_dataset("a/" + "b" * 5000)


def test_the_builtin_dataset_is_called_by_its_name() -> None:
    data = load_dataset(DEFAULT)
    assert (data.name, data.source) == (DEFAULT, DEFAULT)
    assert data.environment == "Hopper-v4"
    facts = catalogue.ENTRIES[DEFAULT].facts
    assert (len(data), data.num_episodes) == (facts.rows, facts.episodes)


def test_a_builtin_dataset_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "__file__", "/nowhere/catalogue.py")
    with pytest.raises(UserError, match=r"missing from this installation.*Reinstall acpo"):
        load_dataset(DEFAULT)


def test_every_format_gives_the_same_dataset(hdf5: Path, tmp_path: Path) -> None:
    data = load_dataset(hdf5)
    parquet.write(tmp_path / "x.parquet", data.stream())
    store.write(tmp_path / "x.acpo", data.stream())
    for name in ("x.parquet", "x.acpo"):
        assert load_dataset(tmp_path / name).fingerprint == data.fingerprint


def test_datasets_are_joined_by_a_plus_sign(hdf5: Path) -> None:
    data, joined = load_dataset(hdf5), load_dataset(f"{hdf5}+{hdf5}")
    assert len(joined) == 2 * len(data)
    assert joined.num_episodes == 2 * data.num_episodes
    half = load_dataset(f"{hdf5}+{hdf5}", take=0.5)
    assert half.num_episodes == data.num_episodes


def test_a_file_whose_name_has_a_plus_sign_is_a_file(hdf5: Path) -> None:
    path = hdf5.rename(hdf5.with_name("a+b.hdf5"))
    assert load_dataset(path).name == "a+b"


def test_arrays_are_a_dataset_too(fields: dict[str, Any]) -> None:
    table = {
        "obs": fields["observations"],
        "act": fields["actions"],
        "reward": fields["rewards"],
        "terminal": fields["terminals"],
        "timeout": fields["timeouts"],
    }
    found = load_dataset(table)
    np.testing.assert_allclose(found.observations[:2], fields["observations"][:2], rtol=1e-6)
    assert found.features.action_low


def test_an_npz_with_other_keys_is_a_table(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = tmp_path / "mine.npz"
    np.savez(
        path,
        temperature=fields["observations"][:, 0],
        valve=fields["actions"][:, 0],
        gain=fields["rewards"],
        run=np.cumsum(fields["timeouts"] | fields["terminals"]),
    )
    chosen = {"observation": "temperature", "action": "valve", "reward": "gain", "episode": "run"}
    data = load_dataset(path, **chosen)
    assert data.features.actions == ("valve",)
    lines = columns(str(path), make_options(chosen))
    assert any("temperature" in line for line in lines)


@pytest.mark.parametrize(
    ("option", "flag"), [({"reward": "x"}, "--reward"), ({"observation": "x"}, "--observation")]
)
def test_columns_cannot_be_chosen_where_they_are_known(
    hdf5: Path, option: dict[str, Any], flag: str
) -> None:
    with pytest.raises(UserError, match=f"{flag} chooses columns of a table"):
        load_dataset(hdf5, **option)


def test_actions_of_any_range_are_scaled_when_asked(tmp_path: Path, fields: dict[str, Any]) -> None:
    fields["actions"] = fields["actions"] * 40 + 10
    path = tmp_path / "wide.npz"
    np.savez(path, **fields)
    with pytest.raises(UserError, match="--scale-actions"):
        load_dataset(path)
    data = load_dataset(path, scale_actions=True)
    assert np.abs(data.actions).max() == 1
    np.testing.assert_allclose(
        data.features.to_units(data.actions).max(axis=0), fields["actions"].max(axis=0), rtol=0.2
    )


def test_an_option_that_does_not_exist_is_a_mistake_in_the_call() -> None:
    with pytest.raises(TypeError, match="no option 'rewards'"):
        load_dataset(DEFAULT, rewards="r")


def test_importing_the_package_loads_neither_h5py_nor_jax() -> None:
    code = "import sys, acpo.data; print({'h5py', 'jax', 'polars', 'minari'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "set()"
