"""Writers: whatever is written is read again as the same dataset, and a failure leaves nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpo.data import d4rl, minari, neorl2, parquet, registry, store
from acpo.data.convert import convert
from acpo.data.dataset import Dataset, from_stream
from acpo.data.features import Features
from acpo.data.options import DataOptions
from acpo.data.pairing import Episodes, Steps, Transitions
from acpo.data.source import Source, Stream, from_steps
from acpo.data.writing import by_episode, ends
from acpo.errors import UserError
from acpo.files import is_leftover
from damage import HDF5_CRASHES, read_each
from structures import Log, logs

FEATURES = Features(
    ("x", "mode"), {"mode": ("auto", "händisch")}, ("u", "v"), (0.0, -3.3), (1e-7, 3.5)
)

# Each kind's target in a folder, and how what was written there is opened.
TARGETS = {
    "d4rl": "x.hdf5",
    "parquet": "x.parquet",
    "minari": "minari:folder/x-v0",
    "store": "x.acpo",
}
STREAMED: dict[str, Callable[[Path], Source]] = {
    "d4rl": lambda folder: d4rl.open_file(folder / "x.hdf5"),
    "parquet": lambda folder: parquet.open_file(folder / "x.parquet"),
    "minari": lambda folder: minari.open_id("folder/x-v0"),
}
kinds = pytest.mark.parametrize("kind", TARGETS)
streamed = pytest.mark.parametrize("kind", STREAMED)


@pytest.fixture(autouse=True)
def minari_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def target(kind: str, folder: Path) -> str:
    return TARGETS[kind] if kind == "minari" else str(folder / TARGETS[kind])


def loaded(kind: str, folder: Path, keep_constant: bool = False) -> Dataset:
    if kind == "store":
        return store.load(folder / "x.acpo")
    return STREAMED[kind](folder).read(keep_constant=keep_constant)


def assert_same(found: Dataset, data: Dataset) -> None:
    assert found.fingerprint == data.fingerprint
    for name in (*Transitions._fields, "episode_returns", "episode_lengths"):
        ours, theirs = getattr(found, name), getattr(data, name)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    np.testing.assert_array_equal(found.episodes.rows, data.episodes.rows)
    assert (found.environment, found.features) == (data.environment, data.features)


@st.composite
def sources(draw: Any) -> Source:
    """Logs of all kinds: next observations absent, as they follow, or anything; ends with a flag
    or without."""
    log: Log = draw(logs())
    steps = log.steps
    if steps.next_observations is None and draw(st.booleans()):
        # The successor of every row but the last is known: written as such, all is chained.
        following = np.concatenate([steps.observations[1:], np.zeros((1, 2), np.float32)])
        steps = steps._replace(next_observations=following)
    if steps.next_observations is not None and draw(st.booleans()):
        # Equal as numbers, and yet not the same.
        steps.observations[1:, 0] = 0.0
        steps.next_observations[:-1] = steps.observations[1:]
        steps.next_observations[0, 0] = -0.0
    if not log.ended[-1] and len(log.lengths) > 1:
        steps.timeouts[-1] = draw(st.booleans())
    facts = {"environment": "Hopper-v4", "features": FEATURES} if draw(st.booleans()) else {}
    return from_steps(steps, "log", "log", **facts)


def small(**facts: Any) -> Source:
    """Five episodes; the third is a single row that was cut off, so that no transition is left."""
    rng = np.random.default_rng(0)
    terminals, timeouts = np.zeros(50, bool), np.zeros(50, bool)
    terminals[[9, 29]] = timeouts[[19, 20]] = True
    observations = rng.normal(size=(50, 3)).astype(np.float32)
    actions = rng.uniform(-1, 1, (50, 2)).astype(np.float32)
    steps = Steps(observations, actions, rng.normal(size=50), terminals, timeouts)
    return from_steps(steps, "small", "small", **facts)


@kinds
@settings(max_examples=25, deadline=None)
@given(source=sources(), rows=st.integers(1, 12))
def test_what_was_written_is_read_as_the_same_dataset(
    tmp_path_factory: pytest.TempPathFactory, kind: str, source: Source, rows: int
) -> None:
    data = source.read(keep_constant=True)
    stream = source.stream(rows, keep_constant=True)
    folder = tmp_path_factory.mktemp("log")
    convert(stream, target(kind, folder), overwrite=True)
    assert_same(loaded(kind, folder, keep_constant=True), data)
    if kind in STREAMED:
        again = STREAMED[kind](folder).stream(rows, keep_constant=True)
        assert_same(from_stream(again, "again"), data)


@kinds
def test_an_episode_without_transitions_keeps_its_place(tmp_path: Path, kind: str) -> None:
    convert(small().stream(1), target(kind, tmp_path))
    found = loaded(kind, tmp_path)
    np.testing.assert_array_equal(found.episodes.rows, [10, 9, 0, 9, 19])
    np.testing.assert_array_equal(found.episode_lengths, [10, 10, 1, 9, 20])
    assert 2 not in found.episode_ids


@kinds
def test_a_hundred_thousand_characters_of_names_are_kept(tmp_path: Path, kind: str) -> None:
    features = Features(actions=tuple("long" * 20 + str(i) for i in range(2_000)))
    convert(small(features=features).stream(), target(kind, tmp_path))
    assert loaded(kind, tmp_path).features == features


@kinds
def test_real_locomotion_data_are_the_same_again(
    shared_data: Path, tmp_path: Path, kind: str
) -> None:
    source = d4rl.open_file(shared_data / "mujoco" / "hopper_medium.hdf5")
    convert(source.stream(), target(kind, tmp_path))
    assert_same(loaded(kind, tmp_path), source.read())


@kinds
def test_real_neorl2_data_are_the_same_again(shared_data: Path, tmp_path: Path, kind: str) -> None:
    source = neorl2.open_file(shared_data / "neorl2" / "DMSD-val.npz")
    convert(source.stream(), target(kind, tmp_path))
    assert_same(loaded(kind, tmp_path), source.read())


def test_a_name_is_kept_where_there_is_a_place_for_it(tmp_path: Path) -> None:
    names = {}
    for kind in TARGETS:
        convert(small().stream(), target(kind, tmp_path))
        names[kind] = loaded(kind, tmp_path).name
    assert names == {"d4rl": "x", "parquet": "small", "minari": "small", "store": "small"}


def test_one_format_after_another_loses_nothing(tmp_path: Path) -> None:
    source = small(environment="Hopper-v4", features=FEATURES)
    data = source.read()
    for kind, opened in STREAMED.items():
        convert(source.stream(3), target(kind, tmp_path))
        source = opened(tmp_path)
    assert_same(source.read(), data)


@kinds
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"relabel": "reward - abs(observation_0)"},
        {"top": 50},
        {"take": 0.5},
        {"validation": 0.3},
        {"relabel": "-reward", "top": 90, "take": 0.7, "validation": 0.3},
    ],
)
def test_a_combination_is_written_as_it_is_loaded(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    one, other = tmp_path / "one.hdf5", tmp_path / "other.acpo"
    convert(small(environment="Hopper-v4").stream(), str(one))
    convert(small(environment="Hopper-v4").stream(), str(other))
    text = f"{one}+{other}+{one}"
    convert(registry.stream(text, DataOptions(**options), rows=7), target(kind, tmp_path))
    assert_same(loaded(kind, tmp_path), registry.load_dataset(text, **options))


@streamed
def test_a_writer_holds_a_few_blocks_and_not_the_set(tmp_path: Path, kind: str) -> None:
    alive: list[weakref.ref[Any]] = []
    most = 0

    def blocks() -> Iterator[Transitions]:
        nonlocal most
        for block in small().read().blocks(2):
            most = max(most, sum(array() is not None for array in alive))
            copy = Transitions(*(array.copy() for array in block))
            alive.append(weakref.ref(copy.observations))
            yield copy

    data = small().read()
    stream = Stream("x", None, Features(), blocks(), lambda: data.episodes)
    convert(stream, target(kind, tmp_path))
    assert_same(loaded(kind, tmp_path), data)
    assert len(alive) == 24
    # Minari holds an episode, which has ten blocks.
    assert most <= (12 if kind == "minari" else 3)


def test_timeouts_mark_the_last_row_of_an_episode_without_terminal(tmp_path: Path) -> None:
    d4rl.write(tmp_path / "x.hdf5", small().stream(5))
    with h5py.File(tmp_path / "x.hdf5") as file:
        np.testing.assert_array_equal(np.flatnonzero(file["timeouts"]), [18, 46])
        np.testing.assert_array_equal(np.flatnonzero(file["terminals"]), [9, 27])
    parquet.write(tmp_path / "x.parquet", small().stream(5))
    table = pl.read_parquet(tmp_path / "x.parquet")
    np.testing.assert_array_equal(table["timeout"].arg_true(), [18, 46])
    assert table["episode"].unique().to_list() == [0, 1, 3, 4]
    assert table.columns[:5] == [*(f"observation_{i}" for i in range(3)), "action_0", "action_1"]


@pytest.mark.parametrize("rows", [1, 2, 3, 10, 100])
def test_ends_and_episodes_do_not_depend_on_the_blocks(rows: int) -> None:
    data = small().read()
    flags = np.concatenate([last for _, last in ends(data.blocks(rows))])
    np.testing.assert_array_equal(np.flatnonzero(flags), [9, 18, 27, 46])
    episodes = list(by_episode(data.blocks(rows)))
    assert [len(episode.rewards) for episode in episodes] == [10, 9, 9, 19]
    np.testing.assert_array_equal(
        np.concatenate([episode.observations for episode in episodes]), data.observations
    )


@kinds
def test_an_existing_target_is_kept_unless_told_otherwise(tmp_path: Path, kind: str) -> None:
    out = target(kind, tmp_path)
    assert convert(small().stream(), out) == out
    other = small(environment="Hopper-v4")
    with pytest.raises(UserError, match="exists already"):
        convert(other.stream(), out)
    assert loaded(kind, tmp_path).environment is None
    convert(other.stream(), out, overwrite=True)
    assert loaded(kind, tmp_path).environment == "Hopper-v4"
    assert not [path for path in tmp_path.rglob("*") if is_leftover(path)]


def test_a_folder_that_is_no_store_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "x.acpo").mkdir()
    with pytest.raises(UserError, match="no store of acpo"):
        convert(small().stream(), str(tmp_path / "x.acpo"), overwrite=True)


@pytest.mark.parametrize("out", ["x.csv", "x", "x.hdf5.gz", "Minari:x-v0"])
def test_an_unknown_target_names_the_formats_there_are(out: str) -> None:
    with pytest.raises(UserError, match=r"X\.hdf5 .* X\.parquet, X\.acpo .* minari:ID"):
        convert(small().stream(), out)


@kinds
def test_a_stream_that_fails_leaves_the_old_data_and_nothing_else(
    tmp_path: Path, kind: str
) -> None:
    def failing() -> Iterator[Transitions]:
        yield from small().read().blocks(20)
        raise UserError("the source is damaged")

    def unknown() -> Episodes:
        raise UserError("no facts")

    out = target(kind, tmp_path)
    convert(small().stream(), out)
    before = sorted(tmp_path.rglob("*"))
    for blocks, message in (
        (failing(), "the source is damaged"),
        (iter(()), "no transitions|no facts"),
        (small().read().blocks(), "no facts"),
    ):
        with pytest.raises(UserError, match=message):
            convert(Stream("x", None, Features(), blocks, unknown), out, overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before
    assert_same(loaded(kind, tmp_path), small().read())


@kinds
def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "file" / "minari"))
    out = target(kind, tmp_path / "file")
    with pytest.raises(UserError, match=r"Could not write|cannot be made"):
        convert(small().stream(), out)


@streamed
def test_ctrl_c_ends_the_writing_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    def endless() -> Iterator[Transitions]:
        yield from small().read().blocks(20)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        for _ in range(2_000):
            yield from small().read().blocks(20)

    stream = Stream("x", None, Features(), endless(), lambda: small().read().episodes)
    # Ctrl-C is ignored by what a shell starts in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            convert(stream, target(kind, tmp_path))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not [path for path in tmp_path.rglob("*") if path != tmp_path / "minari"]


# A limit on the size of files stands in for a full disk. In a process of its own, because HDF5
# crashes when a write fails, some time later.
FULL = """
import resource, sys
from pathlib import Path
import numpy as np
from acpo.data.convert import convert
from acpo.data.pairing import Steps
from acpo.data.source import from_steps
from acpo.errors import UserError

rng = np.random.default_rng(0)
rows = 20_000
steps = Steps(rng.normal(size=(rows, 9)), rng.uniform(-1, 1, (rows, 2)), rng.normal(size=rows),
              np.arange(rows) % 100 == 99)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    convert(from_steps(steps, "x", "x").stream(3_000), sys.argv[1])
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize("kind", ["d4rl", "parquet"])
@pytest.mark.parametrize("size", [1_000, 700_000])
def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path, kind: str, size: int) -> None:
    out = tmp_path / TARGETS[kind]
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(out), str(size)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Could not write {out}: ")
    assert "File too large" in done.stdout
    assert not list(tmp_path.iterdir())


def flawed(whole: bytes, rng: np.random.Generator) -> bytes:
    damaged = bytearray(whole)
    for _ in range(rng.integers(1, 4)):
        damaged[rng.integers(len(whole))] = rng.integers(256)
    return bytes(damaged[: rng.integers(len(whole))] if rng.random() < 0.2 else damaged)


def read_damaged(kind: str, folder: Path) -> None:
    with contextlib.suppress(UserError):
        data = loaded(kind, folder)
        assert len(data) == data.episodes.rows.sum() > 0
        assert np.isfinite(data.observations).all()
        assert len(data.episode_returns) == len(data.episode_lengths)


@pytest.mark.parametrize("kind", ["d4rl", "parquet"])
def test_damaged_bytes_give_a_dataset_or_our_error(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(1)
    path = tmp_path / TARGETS[kind]
    convert(small(environment="Hopper-v4", features=FEATURES).stream(7), str(path))
    whole = path.read_bytes()
    damaged = (flawed(whole, rng) for _ in range(150))
    crashes = read_each(partial(read_damaged, kind, tmp_path), path, damaged)
    assert crashes <= (HDF5_CRASHES if kind == "d4rl" else 0)


@pytest.mark.parametrize("field", ["returns", "lengths", "rows"])
@pytest.mark.parametrize("values", [[1, 2], [[1], [2]], [1, -1, 0, 3, 4], [np.nan] * 5, ["x"] * 5])
def test_a_damaged_table_of_episodes_is_refused(tmp_path: Path, field: str, values: Any) -> None:
    path = tmp_path / "x.hdf5"
    d4rl.write(path, small().stream())
    with h5py.File(path, "a") as file:
        del file["acpo_episodes"][field]
        file["acpo_episodes"][field] = values
        sound = field == "returns" and np.shape(values) == (5,) and np.isreal(values).all()
    if sound and np.isfinite(values).all():
        assert d4rl.load(path).num_episodes == 5
        return
    with pytest.raises(UserError, match=r"x\.hdf5"):
        d4rl.load(path)


def test_parquet_of_ours_is_told_from_other_parquet(tmp_path: Path) -> None:
    parquet.write(tmp_path / "x.parquet", small().stream())
    assert parquet.is_ours(tmp_path / "x.parquet")
    pl.read_parquet(tmp_path / "x.parquet").write_parquet(tmp_path / "other.parquet")
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "text.parquet").write_text('{"crc32": "PAR1')
    for name in ("other", "empty", "text", "absent"):
        assert not parquet.is_ours(tmp_path / f"{name}.parquet")
        with pytest.raises(UserError, match=rf"{name}\.parquet"):
            parquet.open_file(tmp_path / f"{name}.parquet")


def test_parquet_changed_by_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet.write(path, small().stream())
    facts = pl.read_parquet_metadata(path)["acpo"]
    assert json.loads(facts)["name"] == "small"
    table = pl.read_parquet(path).with_columns(reward=pl.col("reward") + 1)
    table.write_parquet(path, metadata={"acpo": facts})
    assert parquet.is_ours(path)
    with pytest.raises(UserError, match="does not fit its checksum"):
        parquet.open_file(path)


def test_parquet_is_read_by_row_groups(tmp_path: Path) -> None:
    parquet.write(tmp_path / "x.parquet", small().stream())
    sizes = [len(steps.rewards) for steps in parquet.open_file(tmp_path / "x.parquet").blocks(20)]
    assert sizes == [20, 20, 7]


def test_a_written_file_is_flushed_under_a_hidden_name_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed = []
    replace = os.replace

    def watched(source: Any, target: Any) -> None:
        renamed.append((Path(source), Path(target)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    for write, name in ((d4rl.write, "x.hdf5"), (parquet.write, "x.parquet")):
        write(tmp_path / name, small().stream())
    assert [target.name for _, target in renamed] == ["x.hdf5", "x.parquet"]
    assert all(is_leftover(source) and source.parent == tmp_path for source, _ in renamed)
