from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import acpo.data
from acpo.data import DEFAULT, NAMES, d4rl, load_dataset
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
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"data\.csv is in no supported format.*\.hdf5.*\.npz"):
        load_dataset(path)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{re.escape(str(tmp_path))} is a directory"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("text", ["absent.hdf5", "absent.npz", "some/where", "./absent"])
def test_a_path_that_is_absent_is_reported_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"File not found: {re.escape(str(tmp_path / text))}"):
        load_dataset(text)


@pytest.mark.parametrize("text", ["builtin/hoper-replay", "hopper-replay", "builtin/hopper"])
def test_the_nearest_name_is_suggested(text: str) -> None:
    with pytest.raises(UserError, match=f"No dataset is named '{text}'.*did you mean '{DEFAULT}'"):
        load_dataset(text)


def test_an_unknown_name_is_answered_with_the_names_there_are() -> None:
    with pytest.raises(UserError, match=f"No dataset is named 'walker'.*Names: {DEFAULT}"):
        load_dataset("walker")


def test_a_path_too_long_for_the_system_is_refused() -> None:
    with pytest.raises(UserError, match="File not found"):
        load_dataset("a/" + "b" * 5000)


def test_the_default_is_a_name() -> None:
    assert DEFAULT in NAMES


def test_the_builtin_dataset_is_called_by_its_name(
    hdf5: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the toy file in its place, so that the loader is tested whatever file is shipped."""
    folder = hdf5.parent / "builtin"
    folder.mkdir()
    monkeypatch.setattr(acpo.data, "__file__", str(hdf5.parent / "__init__.py"))
    with pytest.raises(UserError, match=r"missing from this installation.*Reinstall acpo"):
        load_dataset(DEFAULT)
    hdf5.rename(folder / "hopper-replay.hdf5")
    data = load_dataset(DEFAULT)
    assert (data.name, data.source) == (DEFAULT, DEFAULT)
    assert data.environment == "Hopper-v4"


def test_importing_the_package_loads_neither_h5py_nor_jax() -> None:
    code = "import sys, acpo.data; print({'h5py', 'jax'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "set()"
