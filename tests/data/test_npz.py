"""NPZ files are read in blocks as they are read whole, whatever their arrays look like."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acpo.commands import data as command
from acpo.data import load_dataset, neorl2, npz
from acpo.data.dataset import from_stream
from acpo.errors import UserError


def stored(folder: Path, arrays: dict[str, Any], *, compressed: bool = True) -> Path:
    path = folder / "x.npz"
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("rows", [None, 1, 5, 12, 100])
def test_blocks_are_the_rows_of_the_arrays(
    tmp_path: Path, compressed: bool, rows: int | None
) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "rows": rng.normal(size=(12, 3)).astype(np.float32),
        "columns": np.asfortranarray(rng.normal(size=(12, 3))),
        "cube": np.asfortranarray(rng.normal(size=(12, 2, 3))),
        "vector": np.arange(12),
        "flags": np.arange(12) % 2 == 0,
        "big endian": np.arange(12, dtype=">f8"),
        "texts": np.array(["a", "bcd", "ü"] * 4),
        "nothing": np.zeros((12, 0)),
    }
    archive = npz.Archive(stored(tmp_path, arrays, compressed=compressed))
    assert archive.keys == list(arrays)
    assert archive.headers(["cube"])["cube"].fortran
    blocks = list(archive.blocks(arrays, rows))
    assert max(len(block["vector"]) for block in blocks) == min(rows or 12, 12)
    for key, expected in arrays.items():
        found = np.concatenate([block[key] for block in blocks])
        assert blocks[0][key].dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_stream_of_any_blocks_is_the_dataset(
    tmp_path: Path, fields: dict[str, Any], order: Any
) -> None:
    path = stored(tmp_path, {key: np.asarray(a, order=order) for key, a in fields.items()})
    source = neorl2.open_file(path)
    for rows in (1, 5, 100):
        assert from_stream(source.stream(rows), "x").fingerprint == source.read().fingerprint


def test_nothing_is_held_before_it_is_asked_for(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = stored(tmp_path, fields)
    source = neorl2.open_file(path)
    assert [len(steps.rewards) for steps in source.blocks(5)] == [5, 5, 2]
    path.unlink()
    with pytest.raises(UserError, match="cannot be read as NPZ"):
        source.read()


@pytest.mark.parametrize("rows", [None, 5])
def test_arrays_of_unequal_length_are_refused(
    tmp_path: Path, fields: dict[str, Any], rows: int | None
) -> None:
    fields["rewards"] = fields["rewards"][:-1]
    source = neorl2.open_file(stored(tmp_path, fields))
    with pytest.raises(UserError, match="'rewards' has 11 rows but 'observations' has 12"):
        from_stream(source.stream(rows), "x")


@pytest.mark.parametrize("rows", [None, 5])
def test_a_single_number_in_an_arrays_place_is_refused(
    tmp_path: Path, fields: dict[str, Any], rows: int | None
) -> None:
    source = neorl2.open_file(stored(tmp_path, {**fields, "rewards": np.float32(1)}))
    with pytest.raises(UserError, match=r"'rewards' has shape \(\)"):
        from_stream(source.stream(rows), "x")


@pytest.mark.parametrize("rows", [None, 512])
@pytest.mark.parametrize(
    "claimed",
    [b"(10000, 3)", b"(30000, 3)", b"(-2, 3)", b"(9999999,)", b"(10**9, 3)", b"(20000, 3"],
)
def test_a_header_that_does_not_fit_its_array_is_noticed(
    tmp_path: Path, rows: int | None, claimed: bytes
) -> None:
    """Fewer rows than there are would not be noticed but for the checksum at the array's end."""
    path = stored(tmp_path, {"x": np.zeros((20_000, 3))}, compressed=False)
    path.write_bytes(path.read_bytes().replace(b"(20000, 3)", claimed.ljust(10), 1))
    with pytest.raises(UserError, match="cannot be read as NPZ"):
        list(npz.Archive(path).blocks(["x"], rows))


def test_a_file_without_arrays_and_one_with_other_files_are_read(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    path = stored(tmp_path, fields)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("README.txt", "not an array")
    assert len(load_dataset(path)) == 10
    with zipfile.ZipFile(tmp_path / "empty.npz", "w"):
        pass
    with pytest.raises(UserError, match="no column is called like the observation"):
        load_dataset(tmp_path / "empty.npz")


def test_a_name_is_converted_without_being_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acpo.data.source.Source.read", None)
    target = tmp_path / "x.acpo"
    assert command.main(["convert", "builtin/hopper-replay", str(target)]) == 0
    monkeypatch.undo()
    assert load_dataset(target).fingerprint == load_dataset("builtin/hopper-replay").fingerprint
