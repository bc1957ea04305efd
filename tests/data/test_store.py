"""Our own store: lossless, complete or absent, and read where it lies."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpo.data import store
from acpo.data.dataset import Dataset, from_stream
from acpo.data.features import Features
from acpo.data.source import from_steps
from acpo.errors import UserError
from structures import Log, logs

FEATURES = Features(("x", "mode"), {"mode": ("auto", "hand")}, ("u", "v"), (0.0, -3.0), (10.0, 3.5))


def small() -> Dataset:
    rng = np.random.default_rng(0)
    steps = {
        "observations": rng.normal(size=(50, 3)),
        "actions": rng.uniform(-1, 1, (50, 2)),
        "rewards": rng.normal(size=50),
        "terminals": np.arange(50) % 10 == 9,
    }
    return from_steps(store_steps(steps), "small", "small", environment="Hopper-v4").read()


def store_steps(fields: dict[str, np.ndarray]) -> object:
    from acpo.data.pairing import Steps

    return Steps(**fields)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store.write(tmp_path / "x.acpo", small().stream(7))
    return tmp_path / "x.acpo"


@settings(max_examples=40, deadline=None)
@given(logs(), st.integers(1, 12))
def test_a_stored_dataset_is_the_same_dataset(
    tmp_path_factory: pytest.TempPathFactory, log: Log, rows: int
) -> None:
    path = tmp_path_factory.mktemp("store") / "x.acpo"
    source = from_steps(log.steps, "log", "log", features=FEATURES)
    store.write(path, source.stream(rows))
    data, found = source.read(), store.load(path)
    assert (found.name, found.features) == (data.name, FEATURES)
    assert found.fingerprint == data.fingerprint
    assert from_stream(found.stream(5), "x").fingerprint == data.fingerprint
    np.testing.assert_array_equal(found.episode_lengths, data.episode_lengths)
    np.testing.assert_array_equal(found.next_observations, data.next_observations)


def test_rows_stay_on_disk(folder: Path) -> None:
    data = store.load(folder)
    assert isinstance(data.observations, np.memmap)
    assert data.environment == "Hopper-v4"
    with pytest.raises(ValueError, match="read-only"):
        data.rewards[0] = 1.0


def test_an_existing_store_is_not_overwritten(folder: Path) -> None:
    with pytest.raises(UserError, match="exists already"):
        store.write(folder, small().stream())


def test_a_stream_that_fails_leaves_nothing(tmp_path: Path) -> None:
    steps = store_steps(
        {
            "observations": np.eye(4),
            "actions": np.full((4, 1), 2.0),
            "rewards": np.zeros(4),
            "terminals": np.arange(4) == 3,
        }
    )
    with pytest.raises(UserError, match="must lie in"):
        store.write(tmp_path / "x.acpo", from_steps(steps, "x", "x").stream(2))
    assert not list(tmp_path.iterdir())


def test_a_stream_without_transitions_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    stream = dataclasses.replace(small().stream(), blocks=iter(()))
    with pytest.raises(UserError, match="nothing to write"):
        store.write(tmp_path / "empty.acpo", stream)
    assert not list(tmp_path.iterdir())


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"Could not write .*x\.acpo"):
        store.write(tmp_path / "file" / "x.acpo", small().stream())


def test_a_store_cut_short_is_refused(folder: Path) -> None:
    body = folder / "rows.bin"
    body.write_bytes(body.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"rows\.bin has 1,799 bytes where its header promises"):
        store.load(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [("format", "other"), ("rows", -1), ("observation_dim", "x"), ("features", 3), ("rows", None)],
)
def test_a_damaged_header_is_refused(folder: Path, name: str, value: object) -> None:
    header = json.loads((folder / "header.json").read_text())
    (folder / "header.json").write_text(json.dumps({**header, name: value}))
    with pytest.raises(UserError):
        store.load(folder)


@pytest.mark.parametrize("name", ["header.json", "rows.bin", "terminals.bin", "episodes.npz"])
def test_damaged_bytes_give_a_dataset_or_our_error(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(40):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] = rng.integers(256)
        (folder / name).write_bytes(bytes(damaged[: rng.integers(1, len(whole) + 1)]))
        with contextlib.suppress(UserError):
            assert len(store.load(folder)) > 0
    (folder / name).unlink()
    with pytest.raises(UserError):
        store.load(folder)
