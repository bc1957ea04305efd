"""Parquet that is damaged inside its pages, of which some makes Polars abort the process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import polars as pl
import pytest

from acpo.data import checks, load_dataset, neorl2, tables
from acpo.data.dataset import Dataset
from acpo.data.options import DataOptions
from acpo.errors import UserError

ROWS = 12

READERS: dict[str, Callable[[Path], Dataset]] = {
    "table": lambda path: tables.open_file(path, DataOptions()).read(keep_constant=True),
    "held table": lambda path: load_dataset(path, constant_columns="keep"),
    "neorl2": lambda path: neorl2.open_parquet(path).read(keep_constant=True),
}
readers = pytest.mark.parametrize("reader", READERS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table that is also in NeoRL2's layout."""
    rng = np.random.default_rng(0)
    columns = {f"{name}_{i}": rng.normal(size=ROWS) for name in ("obs", "next_obs") for i in (0, 1)}
    columns |= {"action_0": np.tile([-1.0, 0.5, 1.0], 4), "reward": np.arange(ROWS) * 0.1}
    columns |= {"done": np.arange(ROWS) == 3, "truncated": np.arange(ROWS) == 7}
    pl.DataFrame({**columns, "kind": ["on", "off"] * 6}).write_parquet(tmp_path / "x.parquet")
    return tmp_path / "x.parquet"


def negative_count(whole: bytes) -> bytes:
    """With a page that says it holds −16 values: Polars asks for 2³¹ GiB and is aborted."""
    damaged = bytearray(whole)
    damaged[whole.index(2 * ROWS)] = 31  # numbers stand there doubled, and odd if negative
    return bytes(damaged)


def test_such_damage_does_abort_polars(path: Path) -> None:
    """Not our behaviour, but the reason for it; if this fails, the trial may not be needed."""
    path.write_bytes(negative_count(path.read_bytes()))
    code = f"import polars; polars.read_parquet({str(path)!r})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode < 0


@readers
def test_damage_that_would_abort_is_our_error(path: Path, reader: str) -> None:
    assert len(READERS[reader](path)) > 1
    path.write_bytes(negative_count(path.read_bytes()))
    with pytest.raises(UserError, match=r"x\.parquet cannot be read as Parquet: .* damaged"):
        READERS[reader](path)


@pytest.mark.parametrize("reader", ["table", "neorl2"])
def test_damaged_bytes_give_a_dataset_or_our_error(path: Path, reader: str) -> None:
    whole = path.read_bytes()
    pages = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    rng = np.random.default_rng(1)
    refused = 0
    for number in range(8):  # each starts a process
        damaged = bytearray(whole)
        end = pages if number % 3 else len(whole)  # every third time in the footer as well
        for place in rng.integers(4, end, size=rng.integers(1, 6)):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged[: rng.integers(len(whole))] if number == 5 else damaged)
        try:
            data = READERS[reader](path)
            assert 2 <= len(data) <= ROWS
            assert np.isfinite(data.observations).all()
        except UserError:
            refused += 1
    assert refused > 3


def test_the_reader_that_died_and_its_signal_are_named(path: Path) -> None:
    with (
        mock.patch.object(checks, "_DECODE", "import os; print(0, flush=True); os.abort()"),
        pytest.raises(UserError, match=r"x\.parquet .*damaged.* it ended with SIGABRT"),
    ):
        checks.decodable_parquet(path)


def test_a_file_is_tried_again_only_if_it_has_changed(path: Path) -> None:
    with mock.patch.object(subprocess, "run", wraps=subprocess.run) as run:
        for _ in range(3):
            checks.decodable_parquet(path)
        assert run.call_count == 1
        os.utime(path, ns=(0, 0))
        checks.decodable_parquet(path)
        assert run.call_count == 2


def test_of_a_folder_the_damaged_file_is_named_by_one_process(path: Path) -> None:
    whole = path.read_bytes()
    for name in ("a", "b", "c", "ü d"):
        (path.parent / f"{name}.parquet").write_bytes(whole)
    (path.parent / "c.parquet").write_bytes(negative_count(whole))
    with (
        mock.patch.object(subprocess, "run", wraps=subprocess.run) as run,
        pytest.raises(UserError, match=r"/c\.parquet cannot be read as Parquet"),
    ):
        load_dataset(path.parent)
    assert run.call_count == 1


def test_where_no_process_can_be_started_a_file_is_read_all_the_same(path: Path) -> None:
    os.utime(path, ns=(1, 1))
    with mock.patch.object(sys, "executable", "/nowhere/python"):
        assert len(READERS["neorl2"](path)) == ROWS
