from __future__ import annotations

import re
import shlex
from pathlib import Path

import polars as pl
import pytest

import acpo
from acpo.commands import data as command

PAGE = Path(__file__).parents[2] / "docs" / "bring-your-own-data.md"


def blocks(kind: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [text for name, text in found if name == kind]


@pytest.fixture(autouse=True)
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's table, in the working directory."""
    (table,) = blocks("csv")
    (tmp_path / "plant.csv").write_text(table)
    monkeypatch.chdir(tmp_path)


def test_the_code_of_the_page_prints_what_its_comments_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (code,) = blocks("python")
    exec(code, {})
    printed = capsys.readouterr().out
    assert "15 transitions in 3 episodes" in printed
    assert "('temperature', 'mode=heat', 'mode=hold')" in printed
    assert "[58.5  1.   0. ]" in printed
    assert "-1.0 1.0" in printed
    assert printed.endswith("[80.]\n")


def test_the_commands_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(blocks("")).replace("\\\n", " ")
    check, info, train = (shlex.split(line) for line in text.splitlines())
    for words in (check, info):
        assert words[:2] == ["acpo", "data"]
        assert command.main(words[2:]) == 0
        assert "15" in capsys.readouterr().out
    # The columns of the training are those that were looked at.
    assert train[:3] == ["acpo", "train", "plant.csv"]
    assert train[3:-2] == info[4:] == check[4:]


def test_a_frame_gives_the_same_as_the_file() -> None:
    given = {"observation": ["temperature"], "action": ["valve"], "reward": "-power"}
    file, frame = (
        acpo.load_dataset(source, **given) for source in ("plant.csv", pl.read_csv("plant.csv"))
    )
    assert file.fingerprint == frame.fingerprint
