"""acpo algorithms: what it tells of each method is what stands in the method's file."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from acpo.algorithms import ALGORITHMS, about
from acpo.algorithms.spot import SPOT
from acpo.cli import main
from acpo.commands import algorithms
from acpo.tasks import TASKS

FAMILIES = {"weighted BC", "density", "support", "conservative value", "ensemble", "diffusion"}
SUITES = {"mujoco", "antmaze", "kitchen", "neorl2"}


def told(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    """What the command prints, in one line."""
    assert main(["algorithms", *map(str, words)]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture
def spot(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(ALGORITHMS, "spot", SPOT())
    return "spot"


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "measured.json"
    monkeypatch.setattr(algorithms, "MEASURED", file)
    monkeypatch.setenv("ACPO_HOME", str(tmp_path))  # with no measurements of the machine's own
    return file


def test_every_method_has_its_row_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms"]) == 0
    printed = capsys.readouterr().out
    first = [
        line.split()[0] for line in printed.split("\nupdates/s")[0].splitlines() if line[:1] > " "
    ]
    assert first == ["name", *ALGORITHMS]
    assert max(map(len, printed.splitlines())) <= 100


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_row_holds_what_is_known_of_the_method(name: str, measured: Path) -> None:
    measured.write_text(json.dumps({name: 123.4}))
    console = Console(width=400)
    with console.capture() as printed:
        console.print(algorithms._table([algorithms._record(name, algorithms._speeds()[name])]))
    row = printed.get().splitlines()[1]
    for cell in (str(about(name).year), *about(name)[2:5], "123"):
        assert cell in row  # brackets and all
    assert about(name).paper.split("(")[-1].rstrip(")") in row


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_method_says_what_it_is_and_sets_only_what_it_has(name: str) -> None:
    algorithm, said = ALGORITHMS[name], about(name)
    assert all(said)
    assert said.family in FAMILIES or name == "acpo"
    assert 1990 < said.year < 2030
    fields = {field.name for field in dataclasses.fields(algorithm)}
    tasks = {task.partition("/")[2] for task in TASKS}
    for where, settings in algorithm.settings.items():
        assert where in SUITES | tasks, where
        assert settings.keys() <= fields | {"relabel"}, where
        changes = {key: value for key, value in settings.items() if key != "relabel"}
        dataclasses.replace(algorithm, **changes)  # which refuses impossible values


def test_a_name_tells_objective_settings_and_source(
    spot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = told(capsys, spot)
    assert "Supported Policy Optimization for Offline RL (Wu et al.), 2022" in printed
    assert "objective max_θ E_D[Q_1(s, πθ(s)) / mean|Q_1|]" in printed
    assert "c is" not in printed  # the first paragraph alone
    assert f"source {about(spot).source}" in printed
    assert "hidden 256 256" in printed
    assert "behavior.beta 0.5" in printed
    assert "None" not in printed
    assert "antmaze: lam 0.25, actor-learning-rate 0.0001" in printed
    same = "antmaze-medium-diverse-v2, antmaze-large-play-v2, antmaze-large-diverse-v2: lam 0.025"
    assert same in printed


def test_what_is_left_open_is_told_where_it_says_something(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "neorl2: floor None" in told(capsys, "mcq")
    assert "reward-scale None" in told(capsys, "iql")
    assert "antmaze, kitchen: the defaults" in told(capsys, "bcq")
    for name in ("swg", "dtql"):  # objectives of two lines
        assert "objective min_θ" in told(capsys, name)
        assert re.search(r"objective .*\. family", told(capsys, name))


def test_speed_is_shown_where_it_was_measured(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "speed" not in told(capsys, "bc").split()
    measured.write_text(json.dumps({"bc": 321.4, "acpo": 99.6}))
    assert "speed 321 updates/s" in told(capsys, "bc")
    printed = told(capsys)
    assert "321" in printed
    assert "100" in printed


def test_the_same_goes_to_a_file(
    spot: str, measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured.write_text(json.dumps({spot: 50.5}))
    told(capsys, "--json", tmp_path / "all.json")
    records = json.loads((tmp_path / "all.json").read_text())["algorithms"]
    assert [record["name"] for record in records] == list(ALGORITHMS)
    told(capsys, spot, "--json", tmp_path / "one.json")
    (record,) = json.loads((tmp_path / "one.json").read_text())["algorithms"]
    assert record == next(one for one in records if one["name"] == spot)
    assert record["updates_per_second"] == 50.5
    assert record["settings"]["antmaze"]["relabel"] == "reward - 1"
    assert record["defaults"]["lam"] == SPOT().lam
    assert record["year"] == 2022
    assert next(one for one in records if one["name"] == "bc")["updates_per_second"] is None


def test_an_unknown_name_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms", "awak"]) == 2
    error = capsys.readouterr().err
    assert "'awak'" in error
    assert "Did you mean 'awac'?" in error
