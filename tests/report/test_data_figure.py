"""A dataset becomes one picture, whatever its shape."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acpo.data.dataset import Dataset, from_arrays
from acpo.data.features import Features
from acpo.errors import UserError
from acpo.report.data import draw_dataset


def build(rows: int, width: int, action_dim: int, **changes: Any) -> Dataset:
    rng = np.random.default_rng(0)
    fields: dict[str, Any] = {
        "observations": rng.normal(size=(rows, width)),
        "actions": rng.uniform(-1, 1, size=(rows, action_dim)),
        "rewards": rng.normal(size=rows),
        "terminals": rng.random(rows) < 0.05,
        "timeouts": np.arange(1, rows + 1) == rows,
    }
    return from_arrays(name="toy", source="toy.hdf5", constant_columns="keep", **(fields | changes))


def texts(data: Dataset, folder: Path) -> str:
    """The picture as SVG whose letters are still letters."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw_dataset(data, folder / "data.svg")
    return (folder / "data.svg").read_text()


def test_a_dataset_becomes_a_picture(tmp_path: Path) -> None:
    import matplotlib.image

    draw_dataset(build(1_000, 5, 2), tmp_path / "data.png")
    picture = matplotlib.image.imread(tmp_path / "data.png")
    assert picture.shape[1] > picture.shape[0] > 500
    for half in np.array_split(picture[..., :3], 2):
        assert half.std() > 0.05  # neither row of panels is empty
    assert [path.name for path in tmp_path.iterdir()] == ["data.png"]


def test_the_panels_say_what_they_show(tmp_path: Path) -> None:
    data = build(1_000, 52, 1)
    drawn = texts(data, tmp_path)
    assert f"toy: {len(data):,} rows in {data.num_episodes} episodes" in drawn
    assert f"returns, mean {data.mean_return:,.5g}" in drawn
    assert f"lengths, median {np.median(data.episode_lengths):g}" in drawn
    for label in ("component 1", "mean return of the episodes", "deviations from the mean"):
        assert label in drawn


def test_equal_lengths_and_returns_are_one_value_and_colour_is_density(tmp_path: Path) -> None:
    ends = np.arange(1, 201) % 20 == 0
    data = build(200, 1, 1, rewards=np.ones(200), terminals=np.zeros(200), timeouts=ends)
    drawn = texts(data, tmp_path)
    assert drawn.count("all 20") == 2
    assert "first action" in drawn
    assert "mean return of the episodes" not in drawn
    assert ">rows<" in drawn


def test_names_stand_at_the_ticks_and_constant_columns_are_marked(tmp_path: Path) -> None:
    observations = np.random.default_rng(0).normal(size=(300, 3))
    observations[:, 1] = 0.3
    features = Features(observations=("heat", "fixed", "a name that is far too long"))
    data = replace(build(300, 3, 2, observations=observations), features=features)
    drawn = texts(data, tmp_path)
    for label in ("heat", "fixed", "a name that is …", "never changes"):
        assert f">{label}<" in drawn


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kept", [0, 1])
def test_the_smallest_dataset_is_drawn(tmp_path: Path, kept: int) -> None:
    # Two rows, of which nothing or one number changes.
    observations = np.array([[1.0, 2.0], [1.0, 2.0 + kept]])
    data = build(2, 2, 1, observations=observations, actions=np.zeros((2, 1)), terminals=[0, 1])
    draw_dataset(data, tmp_path / "data.png")
    assert (tmp_path / "data.png").stat().st_size > 10_000


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'acpo\[plot\]'"):
        draw_dataset(build(100, 2, 1), tmp_path / "data.png")
    assert not list(tmp_path.iterdir())
