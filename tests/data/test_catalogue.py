"""Datasets by name: the table, the files they are found in, and how they are read."""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from acpo.data import catalogue, d4rl, download, neorl2
from acpo.data.catalogue import ENTRIES, Entry, listing, locate, open_name, open_source, similar
from acpo.data.dataset import from_arrays
from acpo.data.options import DataOptions
from acpo.errors import UserError
from acpo.tasks import reference

PLAIN = DataOptions()
NEORL2 = [name for name in ENTRIES if name.startswith("neorl2/")]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no way to anybody's network."""
    monkeypatch.setenv("ACPO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "PAUSE", 0.0)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but nobody listens
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        for name, entry in ENTRIES.items():
            moved = tuple(f"{address}/{url.rsplit('/', 1)[1]}" for url in entry.urls)
            monkeypatch.setitem(ENTRIES, name, replace(entry, urls=moved))
    return tmp_path / "home" / "datasets"


@pytest.fixture
def official(shared_data: Path, home: Path) -> Callable[..., None]:
    """Puts official files in their places, as a user would by hand."""

    def put(*names: str) -> None:
        for name in names:
            path = ENTRIES[name].files[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(shared_data / path.parent.name / path.name)

    return put


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Address of a web server, and the folder that it shows."""
    folder = tmp_path / "site"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", folder
        server.shutdown()


@pytest.fixture
def published(site: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts a toy file on the site and makes it the one that a name stands for."""
    address, folder = site

    def publish(name: str, number: int = 0) -> Path:
        entry = ENTRIES[name]
        path = folder / entry.files[number].name
        rng = np.random.default_rng(len(name))
        obs, following = rng.normal(size=(2, 40, 3)).astype(np.float32)
        flags = {"truncated": np.arange(40) % 10 == 9, "done": np.zeros(40, bool)}
        if path.suffix == ".npz":
            action, reward = rng.uniform(-1, 1, (40, 2)), rng.normal(size=40)
            np.savez(path, obs=obs, action=action, reward=reward, next_obs=following, **flags)
            md5 = hashlib.md5(path.read_bytes()).hexdigest()
            monkeypatch.setitem(ENTRIES, name, entry := replace(entry, md5=md5))
        else:
            columns = {f"obs_{i}": obs[:, i] for i in range(3)}
            columns |= {f"next_obs_{i}": following[:, i] for i in range(3)}
            table = pl.DataFrame(columns | {"action_0": obs[:, 0] * 0, "reward": obs[:, 0]} | flags)
            table.write_parquet(path)
        urls = tuple(f"{address}/{file.name}" for file in entry.files)
        monkeypatch.setitem(ENTRIES, name, replace(entry, urls=urls))
        return path

    return publish


# The table.


def test_every_dataset_of_the_paper_and_kitchen_complete_have_a_name() -> None:
    kinds = [name.removeprefix("d4rl/").split("-")[0] for name in ENTRIES if "d4rl/" in name]
    counts = {kind: kinds.count(kind) for kind in kinds}
    assert counts == {"halfcheetah": 3, "hopper": 3, "walker2d": 3, "antmaze": 6, "kitchen": 3}
    assert len(NEORL2) == 14


PUBLISHED = [entry for entry in catalogue._entries() if entry.urls]


@pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: entry.name)
def test_every_entry_is_well_formed(entry: Entry) -> None:
    assert re.fullmatch(r"(d4rl|neorl2)/[\w-]+", entry.name)
    assert all(re.fullmatch(r"https?://[\w./-]+\.(hdf5|npz|parquet)", url) for url in entry.urls)
    assert len({path.name for path in entry.files}) == len(entry.urls)
    assert reference(entry.environment, entry.name) is not None
    locomotion = re.search("cheetah-|hopper-|walker2d-", entry.name)
    assert entry.environment
    assert entry.environment.endswith("-v4") == bool(locomotion)
    if entry.suite == "neorl2":
        assert entry.md5
        assert re.fullmatch("[0-9a-f]{32}", entry.md5)
        assert (entry.validation is None) == entry.name.endswith("-val")
        assert entry.validation is None or entry.validation in ENTRIES


def test_names_addresses_and_references_are_the_published_ones(shared_data: Path) -> None:
    lines = (shared_data / "d4rl" / "datasets.txt").read_text().splitlines()[1:]
    table = {entry.name: entry for entry in catalogue._entries()}
    assert len(lines) == 18
    for line in lines:
        task, low, high, url = line.split(" | ")
        entry = table[f"d4rl/{task}"]
        assert entry.urls == (url,)
        assert reference(entry.environment, entry.name) == (float(low), float(high))


@pytest.mark.parametrize(
    ("text", "best"),
    [
        ("hopper-medium-v2", "d4rl/hopper-medium-v2"),
        ("d4rl/hoper-medium-v2", "d4rl/hopper-medium-v2"),
        ("dmsd", "neorl2/DMSD"),
        ("neorl2/Simglucose_val", "neorl2/Simglucose-val"),
        ("antmaze-umaze", "d4rl/antmaze-umaze-v2"),
    ],
)
def test_a_misspelt_name_finds_the_one_that_was_meant(text: str, best: str) -> None:
    assert similar(text)[0] == best
    with pytest.raises(UserError, match=f"No dataset is named '{text}'. Did you mean {best}"):
        open_name(text, PLAIN)


def test_what_is_like_no_name_finds_none() -> None:
    assert similar("zebra") == []


def test_the_list_tells_what_is_here_and_how_large_it_is(home: Path) -> None:
    path = ENTRIES["d4rl/hopper-medium-v2"].files[0]
    assert path == home / "d4rl" / "hopper_medium-v2.hdf5"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"12345")
    rows = {row.name: row for row in listing()}
    assert rows.keys() == ENTRIES.keys()
    assert (rows["d4rl/hopper-medium-v2"].size, rows["d4rl/hopper-medium-v2"].path) == (5, path)
    dmsd = rows["neorl2/DMSD"]
    assert dmsd[:7] == ("neorl2/DMSD", "neorl2", 4_117_923, 100_000, 1_000, 56.6, None)


def test_of_every_d4rl_file_the_size_is_known_and_of_locomotion_the_published_score() -> None:
    rows = {row.name: row for row in listing() if row.suite == "d4rl"}
    assert all(row.size for row in rows.values())
    returns = {name: row.mean_return for name, row in rows.items() if row.mean_return is not None}
    assert len(returns) == 9
    assert all(rows[name].quoted for name in returns)
    # Medium-expert is medium and expert in one file.
    for task, (count, expert) in {
        "halfcheetah": (1_000, 10_656.426),
        "hopper": (1_027, 3_511.358),
        "walker2d": (1_000, 4_920.507),
    }.items():
        medium, both = (rows[f"d4rl/{task}-{kind}-v2"] for kind in ("medium", "medium-expert"))
        assert medium.episodes
        assert both.episodes == medium.episodes + count
        total = medium.episodes * returns[medium.name] + count * expert
        assert returns[both.name] == pytest.approx(total / both.episodes, abs=0.001)


def test_what_was_measured_takes_the_place_of_what_is_published(
    home: Path, fields: dict[str, Any]
) -> None:
    name = "d4rl/hopper-medium-v2"
    (before,) = (row for row in listing() if row.name == name)
    data = from_arrays(**fields, name=name, source=name)
    catalogue._remember(name, data)
    (after,) = (row for row in listing() if row.name == name)
    assert (before.rows, before.quoted) == (999_906, True)
    assert (after.rows, after.mean_return, after.quoted) == (10, data.mean_return, False)
    lines = catalogue.describe([before._replace(score=44.3), after._replace(score=1.0)])
    assert "44.3 published  no" in lines[1]
    assert "1.0 measured   no" in lines[2]
    assert not any(line.startswith("Blank") for line in lines)
    assert catalogue.describe([before._replace(score=None)])[2].startswith("Blank: published")


def test_a_kitchen_counts_a_sub_task_once_and_an_ant_its_trajectory() -> None:
    terminals, timeouts = np.zeros(12, bool), np.zeros(12, bool)
    terminals[[2, 3, 8]] = timeouts[[5, 10]] = True
    data = from_arrays(
        observations=np.arange(24.0).reshape(12, 2),
        actions=np.zeros((12, 1)),
        rewards=np.array([0, 1, 2, 1, 3, 3, 0, 0, 1, 0, 0, 2]),
        terminals=terminals,
        timeouts=timeouts,
        next_observations=np.ones((12, 2)),
        name="x",
        source="x",
    )
    # Episodes are rows 0-2, 3, 4-5, 6-8, 9-10 and 11; trajectories 0-5, 6-10 and 11.
    kitchen = replace(data, environment="d4rl/kitchen-mixed-v0")
    ant = replace(data, environment="d4rl/antmaze-umaze-v2")
    assert catalogue.counted_return(data) == data.mean_return
    assert catalogue.counted_return(kitchen) == pytest.approx((2 + 1 + 3 + 1 + 0 + 2) / 6)
    assert catalogue.counted_return(ant) == pytest.approx(2 / 3)
    # Data that names no environment is counted as the one it is scored in counts.
    assert catalogue.counted_return(data, kitchen.environment) == catalogue.counted_return(kitchen)


# Official files.


@pytest.mark.parametrize(
    "name",
    [
        "d4rl/kitchen-complete-v0",
        "neorl2/DMSD-val",
        "neorl2/Simglucose-val",
        "neorl2/SafetyHalfCheetah-val",
        "neorl2/Fusion-val",
        "neorl2/RocketRecovery-val",
        "neorl2/DMSD",
        "neorl2/Simglucose",
        "neorl2/SafetyHalfCheetah",
    ],
)
def test_official_files_are_found_checked_and_as_the_table_says(
    official: Callable[..., None], name: str
) -> None:
    entry = ENTRIES[name]
    official(name, *([entry.validation] if entry.validation else []))
    data = open_name(name, replace(PLAIN, all_trajectories=True))
    assert (data.name, data.source, data.environment) == (name, name, entry.environment)
    facts = entry.facts
    assert entry.files[0].stat().st_size == facts.size
    assert (len(data), data.num_episodes) == (facts.rows, facts.episodes)
    if facts.score is not None:
        scale = reference(entry.environment, entry.name)
        assert scale is not None
        counted = catalogue.counted_return(data)
        assert scale.score(counted) == pytest.approx(facts.score, abs=0.06)
    if entry.validation:
        assert data.validation is not None
        assert data.validation.name == entry.validation
        assert len(data.validation) == ENTRIES[entry.validation].facts.rows
    else:
        assert data.validation is None


@pytest.mark.parametrize(("task", "count"), [("RocketRecovery", 25), ("Fusion", 5)])
def test_only_the_first_trajectories_are_taken_as_neorl2_does(
    official: Callable[..., None], task: str, count: int
) -> None:
    name = f"neorl2/{task}-val"
    official(name)
    few, whole = open_name(name, PLAIN), open_name(name, replace(PLAIN, all_trajectories=True))
    assert few.num_episodes == count
    assert len(few) == np.searchsorted(whole.episode_ids, count)
    np.testing.assert_array_equal(few.observations, whole.observations[: len(few)])
    np.testing.assert_array_equal(few.episode_returns, whole.episode_returns[:count])
    # The same in blocks, wherever they are cut.
    stream = open_source(name, PLAIN).stream(64)
    assert sum(len(block.rewards) for block in stream.blocks) == len(few)
    assert len(stream.episodes().returns) == count


# Finding and fetching.


def test_a_name_is_fetched_once_with_its_validation_set(
    published: Callable[..., Path], home: Path, site: tuple[str, Path]
) -> None:
    published("neorl2/DMSD")
    published("neorl2/DMSD-val")
    data = open_name("neorl2/DMSD", PLAIN)
    assert data.validation is not None
    assert (len(data), len(data.validation)) == (40, 40)
    assert data.fingerprint != data.validation.fingerprint
    files = sorted(path.name for path in (home / "neorl2").iterdir())
    assert files == ["DMSD-train.npz", "DMSD-val.npz"]
    shutil.rmtree(site[1])
    assert open_name("neorl2/DMSD", PLAIN).fingerprint == data.fingerprint


def test_d4rl_is_fetched_and_named(
    site: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    address, folder = site
    name = "d4rl/hopper-medium-v2"
    d4rl.save(folder / "hopper_medium-v2.hdf5", **fields, attrs={})
    urls = (f"{address}/hopper_medium-v2.hdf5",)
    monkeypatch.setitem(ENTRIES, name, replace(ENTRIES[name], urls=urls))
    with pytest.raises(UserError, match="its SHA256 is"):
        open_name(name, PLAIN)
    served = folder / "hopper_medium-v2.hdf5"
    ours = {
        "sha256": download.digest(served, "sha256"),
        "facts": catalogue.Facts(served.stat().st_size),
    }
    monkeypatch.setitem(ENTRIES, name, replace(ENTRIES[name], **ours))
    data = open_name(name, PLAIN)
    assert (data.name, data.environment) == (name, "Hopper-v4")
    assert data.fingerprint == d4rl.load(folder / "hopper_medium-v2.hdf5").fingerprint


def test_a_d4rl_file_of_another_size_is_not_the_published_one(home: Path) -> None:
    path = ENTRIES["d4rl/hopper-medium-v2"].files[0]
    path.parent.mkdir(parents=True)
    path.write_bytes(b"12345")
    with pytest.raises(UserError, match="has 5 bytes, but the published file has 152,756,557"):
        open_name("d4rl/hopper-medium-v2", PLAIN)


def test_the_hub_serves_where_the_first_address_fails(
    published: Callable[..., Path], home: Path
) -> None:
    published("neorl2/DMSD-val", 1)
    assert len(open_name("neorl2/DMSD-val", PLAIN)) == 40
    assert [path.name for path in (home / "neorl2").iterdir()] == ["DMSD-val.parquet"]


def test_a_damaged_download_is_not_loaded(
    published: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    published("neorl2/DMSD-val").write_bytes(b"something else")
    with pytest.raises(UserError, match=r"not the published file: its MD5 is \w+, but \w+"):
        open_name("neorl2/DMSD-val", PLAIN)
    assert ENTRIES["neorl2/DMSD-val"].here is None


def test_a_file_put_by_hand_that_is_another_is_refused(home: Path) -> None:
    path = ENTRIES["neorl2/DMSD-val"].files[0]
    path.parent.mkdir(parents=True)
    path.write_bytes(b"something else")
    with pytest.raises(UserError) as caught:
        open_name("neorl2/DMSD-val", PLAIN)
    found = hashlib.md5(b"something else").hexdigest()
    for part in (str(path), found, "be6c39c0e73c17029206e714068f26b7", "Delete it"):
        assert part in str(caught.value)
    assert path.exists()


@pytest.mark.parametrize("name", ["d4rl/antmaze-umaze-v2", "neorl2/Pipeline-val"])
def test_offline_the_file_its_address_and_its_place_are_named(name: str) -> None:
    entry = ENTRIES[name]
    with pytest.raises(UserError) as caught:
        locate(name)
    for part in (entry.files[0].name, *entry.urls, f"put it at {entry.files[0]}"):
        assert part in str(caught.value)


def test_without_its_validation_set_a_dataset_is_loaded_with_a_warning(
    published: Callable[..., Path],
) -> None:
    published("neorl2/DMSD")
    with pytest.warns(UserWarning, match=r"without its validation set.*DMSD-val\.npz"):
        data = open_name("neorl2/DMSD", PLAIN)
    assert data.validation is None
    assert len(data) == 40


def test_scaling_actions_is_refused() -> None:
    with pytest.raises(UserError, match="scale_actions"):
        open_name("neorl2/DMSD", replace(PLAIN, scale_actions=True))


def test_a_parquet_put_by_hand_is_read(published: Callable[..., Path], home: Path) -> None:
    made = published("neorl2/Fusion-val", 1)
    path = ENTRIES["neorl2/Fusion-val"].files[1]
    path.parent.mkdir(parents=True)
    shutil.move(made, path)
    data = open_name("neorl2/Fusion-val", replace(PLAIN, all_trajectories=True))
    assert data.fingerprint == neorl2.open_parquet(path).read(keep_constant=True).fingerprint


def test_what_was_seen_of_a_dataset_is_listed_from_then_on(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACPO_HOME", str(tmp_path))
    name = "neorl2/RocketRecovery-val"
    target = catalogue.ENTRIES[name].files[0]
    target.parent.mkdir(parents=True)
    target.symlink_to(shared_data / "neorl2" / target.name)
    data = catalogue.open_name(name, PLAIN)
    (row,) = [row for row in catalogue.listing() if row.name == name]
    assert (row.rows, row.episodes) == (len(data), data.num_episodes)
    assert row.mean_return == data.mean_return
    (tmp_path / "seen.json").write_text("[1]")
    assert len(catalogue.listing()) == len(catalogue.ENTRIES)
