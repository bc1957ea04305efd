"""acpo data: what a user sees of a dataset."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from acpo import cli
from acpo.data import DEFAULT, d4rl, load_dataset

CSV = """run,temperature,mode,valve,power
1,20.0,auto,10,1.0
1,21.5,auto,35,1.5
1,23.0,hand,60,2.5
2,19.0,hand,80,0.5
2,18.0,auto,55,1.5
2,17.5,auto,20,1.0
"""
FLAGS = ["--observation", "temperature", "mode", "--action", "valve", "--episode", "run"]
FLAGS += ["--reward", "power - 0.01*valve"]


def run(*words: object) -> int:
    return cli.main(["data", *map(str, words)])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "plant.csv"
    path.write_text(CSV)
    return path


def test_the_list_has_every_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--json", tmp_path / "list.json") == 0
    shown = capsys.readouterr().out
    listed = json.loads((tmp_path / "list.json").read_text())["datasets"]
    assert len(listed) == 33
    assert all(row["name"] in shown for row in listed)
    (ours,) = [row for row in listed if row["name"] == DEFAULT]
    assert Path(ours["path"]).exists()


def test_info_shows_and_stores_the_numbers(
    hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "x.png"
    assert run("info", hopper_file, "--plot", picture, "--json", tmp_path / "x.json") == 0
    data, shown = load_dataset(hopper_file), capsys.readouterr().out
    found = json.loads((tmp_path / "x.json").read_text())
    assert found["rows"] == len(data)
    assert found["fingerprint"] == data.fingerprint
    assert data.fingerprint in shown
    assert "normalised score" in shown
    assert picture.stat().st_size > 10_000


def test_info_of_a_table_takes_its_columns(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", table, *FLAGS) == 0
    shown = capsys.readouterr().out
    assert "mode=auto" in shown
    assert "valve" in shown


def test_check_of_good_data_is_quiet(hopper_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", hopper_file) == 0
    assert "error" not in capsys.readouterr().out


def test_check_of_wrong_data_ends_with_2_and_says_where(
    hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = load_dataset(hopper_file)
    following = data.next_observations.copy()
    following[5] += 1
    path = tmp_path / "broken.hdf5"
    d4rl.save(
        path,
        observations=data.observations,
        actions=data.actions,
        rewards=data.rewards,
        terminals=data.terminals,
        timeouts=np.append(np.diff(data.episode_ids) > 0, True) & ~data.terminals,
        next_observations=following,
        attrs={},
    )
    assert run("check", path, "--json", tmp_path / "x.json") == 2
    assert "error:" in capsys.readouterr().out
    first = json.loads((tmp_path / "x.json").read_text())["problems"][0]
    assert first["severity"] == "error"
    assert 5 in first["rows"]


def test_check_reports_constant_columns_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "x.npz"
    np.savez(
        path,
        observations=np.column_stack([rng.normal(size=2000), np.ones(2000)]),
        actions=rng.uniform(-1, 1, (2000, 1)),
        rewards=rng.normal(size=2000),
        terminals=rng.uniform(size=2000) < 0.02,
    )
    assert run("check", path) == 0
    assert "never change" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["x.hdf5", "x.parquet", "x.acpo"])
def test_converted_data_is_the_same_data(hopper_file: Path, tmp_path: Path, target: str) -> None:
    out = tmp_path / target
    assert run("convert", hopper_file, out) == 0
    found, data = load_dataset(out), load_dataset(hopper_file)
    assert (found.fingerprint, found.environment) == (data.fingerprint, data.environment)
    assert run("convert", hopper_file, out) == 2
    assert run("convert", hopper_file, out, "--overwrite") == 0


def test_a_choice_of_episodes_can_be_converted(hopper_file: Path, tmp_path: Path) -> None:
    assert run("convert", hopper_file, tmp_path / "best.parquet", "--top", 20) == 0
    best = load_dataset(tmp_path / "best.parquet")
    assert best.fingerprint == load_dataset(hopper_file, top=20).fingerprint


def test_a_table_becomes_a_store_with_its_names_and_units(table: Path, tmp_path: Path) -> None:
    assert run("convert", table, tmp_path / "plant.acpo", *FLAGS) == 0
    data = load_dataset(tmp_path / "plant.acpo")
    assert data.features.categories == {"mode": ("auto", "hand")}
    np.testing.assert_allclose(data.features.to_units(data.actions)[:2, 0], [10, 35], rtol=1e-5)
    np.testing.assert_allclose(data.rewards[:2], [0.9, 1.15], rtol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lst"], "There is no 'acpo data lst'"),
        (["info", "absent.csv"], "File not found"),
        (["info", DEFAULT, "--reward", "r"], "--reward chooses columns of a table"),
        (["convert", DEFAULT, "x.txt"], "x.txt"),
    ],
)
def test_a_wrong_call_is_refused_in_a_sentence(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert message in capsys.readouterr().err
