"""acpo plot draws a run from its directory alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from acpo import cli


def test_a_run_becomes_a_picture(finished_run: Path, tmp_path: Path) -> None:
    import matplotlib.image

    out = tmp_path / "run.png"
    assert cli.main(["plot", str(finished_run), "--out", str(out)]) == 0
    picture = matplotlib.image.imread(out)
    assert picture.shape[1] > picture.shape[0] > 100
    assert picture.std() > 0.05  # not an empty canvas


def test_a_folder_without_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plot", str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
