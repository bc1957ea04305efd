"""Files are whole or absent; damaged ones are refused by name."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl
import pytest

from acpo.data import d4rl
from acpo.errors import UserError
from acpo.files import load_arrays, read_json, save_arrays, sweep, write_atomically, write_json

ARRAYS = {"w['a'].b": np.arange(6, dtype=np.float32).reshape(2, 3), "empty": np.zeros((0, 2))}


@contextmanager
def disk_full(above: int = 0) -> Iterator[None]:
    """Files cannot grow beyond so many bytes; the error is the disk's own kind, OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (above, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_arrays_and_header_come_back_as_stored(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "x.npz"
    save_arrays(path, ARRAYS, {"step": 3, "name": "πβ"})
    arrays, header = load_arrays(path)
    assert header == {"step": 3, "name": "πβ"}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    with np.load(path) as plain:
        assert set(ARRAYS) < set(plain.files)


def test_a_full_disk_leaves_the_old_file_and_no_half_of_the_new(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    save_arrays(path, ARRAYS, {})
    before = path.read_bytes()
    with (
        disk_full(above=100),
        pytest.raises(UserError, match=r"x\.npz: File too large\. Free some"),
    ):
        save_arrays(path, {"big": np.zeros(1000)}, {})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_told_alike_for_tables_and_datasets(tmp_path: Path) -> None:
    """Polars would raise an error of its own here, and HDF5 would crash the interpreter."""
    table = pl.DataFrame({"x": np.random.default_rng(0).random(1000)})
    rows = {"rewards": np.zeros(500), "terminals": np.zeros(500), "timeouts": np.zeros(500)}
    wide = np.random.default_rng(0).random((500, 3))
    with disk_full(above=1000):
        with pytest.raises(UserError, match=r"Could not write .*t\.parquet"):
            write_atomically(tmp_path / "t.parquet", table.write_parquet)
        with pytest.raises(UserError, match=r"Could not write .*d\.hdf5"):
            d4rl.save(tmp_path / "d.hdf5", observations=wide, actions=wide, **rows, attrs={})
    assert list(tmp_path.iterdir()) == []


def test_an_error_at_the_last_moment_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some disks say they are full only when asked to flush."""
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match="No space left on device"):
        write_json(path, {"a": 2})
    assert read_json(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_fails_writes_nothing(tmp_path: Path) -> None:
    def write(file: IO[bytes]) -> None:
        file.write(b"half")
        raise TypeError("a bug")

    with pytest.raises(TypeError):
        write_atomically(tmp_path / "x", write)
    assert list(tmp_path.iterdir()) == []


def test_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="choose another place"):
        write_json(tmp_path / "file" / "x.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_killed_writer_leaves_the_old_file_and_a_half_that_is_swept(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    script = (
        "import os, pathlib, signal, sys; from acpo import files\n"
        "files.os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)\n"
        "files.write_json(pathlib.Path(sys.argv[1]), {'a': 2})"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(path)], timeout=60)
    assert killed.returncode == -9
    assert read_json(path) == {"a": 1}
    assert len(list(tmp_path.iterdir())) == 2
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_no_damage_to_an_array_file_goes_unnoticed(tmp_path: Path) -> None:
    """Cut anywhere or with any byte changed, it is refused by name or reads the same."""
    path, broken = tmp_path / "x.npz", tmp_path / "broken.npz"
    save_arrays(path, ARRAYS, {"step": 3})
    whole = path.read_bytes()
    changed = bytearray(whole)
    cases = [whole[:cut] for cut in range(0, len(whole), 7)]
    for place in range(0, len(whole), 3):
        changed[place] ^= 0xFF
        cases.append(bytes(changed))
        changed[place] ^= 0xFF
    refused = same = 0
    for case in cases:
        broken.write_bytes(case)
        try:
            arrays, header = load_arrays(broken)
        except UserError as error:
            refused += str(broken) in str(error)
        else:
            assert header == {"step": 3}
            for name, array in ARRAYS.items():
                np.testing.assert_array_equal(arrays[name], array)
            same += 1
    assert refused + same == len(cases)
    assert refused > same


@pytest.mark.parametrize("content", ["", "{", "\x00"])
def test_a_damaged_json_file_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"x\.json cannot be read"):
        read_json(path)


def test_an_absent_or_foreign_array_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"File not found: .*x\.npz"):
        load_arrays(tmp_path / "x.npz")
    with pytest.raises(UserError, match="cannot be read"):
        load_arrays(tmp_path)
    np.savez(tmp_path / "plain.npz", a=np.zeros(3))
    with pytest.raises(UserError, match=r"plain\.npz"):
        load_arrays(tmp_path / "plain.npz")
