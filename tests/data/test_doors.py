"""Every array door reads a random log as the obvious loop does, and survives damage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from acpo.data import d4rl, load_dataset
from acpo.data.neorl2 import FIELD_NAMES
from acpo.errors import UserError
from damage import HDF5_CRASHES, read_each
from structures import Log, assert_reads, logs, make_log

EXAMPLES = settings(max_examples=40, deadline=None)


def write(path: Path, log: Log, layout: str) -> Path:
    arrays = {name: array for name, array in log.steps._asdict().items() if array is not None}
    if layout == "hdf5":
        d4rl.save(path.with_suffix(".hdf5"), **arrays, attrs={})
        return path.with_suffix(".hdf5")
    if layout == "neorl2":
        arrays = {FIELD_NAMES[name]: array for name, array in arrays.items()}
    np.savez(path.with_suffix(".npz"), **arrays)
    return path.with_suffix(".npz")


@pytest.mark.parametrize("layout", ["hdf5", "npz"])
@EXAMPLES
@given(log=logs())
def test_a_random_log_is_read_without_crossing_an_end(
    tmp_path_factory: pytest.TempPathFactory, layout: str, log: Log
) -> None:
    path = write(tmp_path_factory.mktemp("door") / "log", log, layout)
    assert_reads(load_dataset(path), log)


@EXAMPLES
@given(log=logs(with_next=True))
def test_neorl2s_keys_read_the_same(tmp_path_factory: pytest.TempPathFactory, log: Log) -> None:
    path = write(tmp_path_factory.mktemp("door") / "log", log, "neorl2")
    assert_reads(load_dataset(path), log)


def read_damaged(path: Path) -> None:
    with contextlib.suppress(UserError):
        assert len(load_dataset(path, constant_columns="keep")) >= 2


@pytest.mark.parametrize("layout", ["hdf5", "npz", "neorl2"])
def test_a_damaged_file_gives_a_dataset_or_our_error(tmp_path: Path, layout: str) -> None:
    log = make_log([5, 3, 7], [True, False, True], stored=True, seed=0)
    path = write(tmp_path / "log", log, layout)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)

    def damaged() -> Iterator[bytes]:
        for number in range(150):
            content = bytearray(whole)
            for place in rng.integers(len(whole), size=1 + number % 4):
                content[place] = rng.integers(256)
            end = len(whole) if number % 3 else int(rng.integers(1, len(whole)))
            yield bytes(content[:end])

    crashes = read_each(partial(read_damaged, path), path, damaged())
    assert crashes <= (HDF5_CRASHES if layout == "hdf5" else 0)
