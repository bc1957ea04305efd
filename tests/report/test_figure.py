"""acpo plot draws a run from its directory alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest

from acpo import cli


def test_a_run_becomes_a_picture(finished_run: Path, tmp_path: Path) -> None:
    import matplotlib.image

    out = tmp_path / "run.png"
    assert cli.main(["plot", str(finished_run), "--out", str(out)]) == 0
    picture = matplotlib.image.imread(out)
    assert picture.shape[1] > picture.shape[0] > 100
    assert picture.std() > 0.05  # not an empty canvas


def test_what_cannot_be_drawn_is_said(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plot", str(finished_run), "--out", str(tmp_path / "x.foo")]) == 2
    assert "x.foo names no format of pictures; write .png" in capsys.readouterr().err
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    pl.DataFrame(schema={"step": pl.Int64}).write_parquet(run / "evaluations.parquet")
    assert cli.main(["plot", str(run)]) == 2
    assert "was trained without an environment" in capsys.readouterr().err
    (run / "metrics.parquet").write_bytes(b"PAR1")
    assert cli.main(["plot", str(run)]) == 2
    assert "missing or damaged" in capsys.readouterr().err
    assert not list(tmp_path.glob("**/*.foo")) + list(run.glob("*.png"))


def test_a_folder_without_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plot", str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
