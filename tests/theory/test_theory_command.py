"""acpo theory: the table, the figures, the JSON file and the exit code."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from acpo.cli import main
from acpo.theory import check
from acpo.theory.catalogue import STATEMENTS


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_prints_every_statement_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--mdps", "8", "--states", "3", "--actions", "2", "--seed", "1"]
    found = tmp_path / "theory.json"
    assert main(["theory", *words, "--json", str(found)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("holds") >= sum(statement.holds for statement in STATEMENTS)
    assert "the right side ∞ − ∞" in printed
    assert "E[exp(A/α − log πθ)]" in printed
    rows = json.loads(found.read_text())["statements"]
    assert [row["key"] for row in rows] == [statement.key for statement in STATEMENTS]
    assert all(row["as_expected"] for row in rows)
    assert "drawn in theory: theory-g.png, theory-bound.png" in printed
    for name in ("theory-g.png", "theory-bound.png"):
        assert (tmp_path / "theory" / name).read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_prints_the_table_and_says_what_drawing_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["theory", "--mdps", "3", "--states", "2", "--out", "figures"]) == 0
    printed = capsys.readouterr().out
    assert "The paper's statements" in printed
    assert printed.splitlines()[-1] == "Drawing needs matplotlib: pip install 'acpo[plot]'."
    assert not list(tmp_path.iterdir())


def test_the_same_seed_finds_the_same_numbers(tmp_path: Path) -> None:
    contents = []
    for name in ("a.json", "b.json"):
        assert main(["theory", "--mdps", "3", "--states", "2", "--json", str(tmp_path / name)]) == 0
        contents.append(json.loads((tmp_path / name).read_text())["statements"])
    assert contents[0] == contents[1]


def test_a_violated_statement_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = next(replace(s, holds=True) for s in STATEMENTS if s.key == "sac")
    monkeypatch.setattr(check.check, "__defaults__", ((wrong,),))
    assert main(["theory", "--mdps", "4"]) == 1
    assert "VIOLATED" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--mdps", "0"], ["--actions", "1"], ["--seed", "-1"]])
def test_impossible_sizes_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", *words]) == 2
    assert words[0] in capsys.readouterr().err
