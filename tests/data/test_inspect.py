"""The facts of a dataset, against numpy on whole arrays, and how they read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpo.data import d4rl, inspect
from acpo.data.dataset import Dataset, from_arrays
from acpo.data.features import Features


def build(rows: int, width: int = 3, actions: int = 2, **changes: Any) -> Dataset:
    rng = np.random.default_rng(rows)
    terminals, timeouts = rng.random((2, rows)) < 0.02
    timeouts[1] = True
    fields: dict[str, Any] = {
        "observations": rng.normal(1e4, 3, size=(rows, width)),
        "next_observations": rng.normal(1e4, 3, size=(rows, width)),
        "actions": np.tanh(3 * rng.normal(size=(rows, actions))),
        "rewards": rng.normal(size=rows) * (rng.random(rows) < 0.7),
        "terminals": terminals,
        "timeouts": timeouts,
    }
    return from_arrays(name="toy", source="toy.hdf5", **(fields | changes))


@pytest.fixture(scope="module")
def data() -> Dataset:
    """More rows than a block holds."""
    return build(70_000)


def test_ranges_and_shares_are_those_of_the_whole_arrays(data: Dataset) -> None:
    found = inspect.facts(data)
    for key, array in (("observations", data.observations), ("actions", data.actions)):
        wide = array.astype(np.float64)
        for name, expected in (
            ("min", wide.min(axis=0)),
            ("mean", wide.mean(axis=0)),
            ("std", wide.std(axis=0)),
            ("max", wide.max(axis=0)),
        ):
            np.testing.assert_allclose([row[name] for row in found[key]], expected, rtol=1e-9)
    bounds = np.abs(data.actions) >= 0.999
    assert [row["at_bounds"] for row in found["actions"]] == pytest.approx(bounds.mean(axis=0))
    assert found["at_bounds"] == pytest.approx(bounds.mean())
    assert found["rows_at_bounds"] == pytest.approx(bounds.any(axis=1).mean())
    assert found["rewards"]["zero"] == pytest.approx((data.rewards == 0).mean())
    assert found["rewards"]["mean"] == pytest.approx(data.rewards.mean(dtype=np.float64))
    assert found["rewards"]["max"] == data.rewards.max()


def test_episodes_are_counted_and_their_returns_summarised(data: Dataset) -> None:
    found, returns = inspect.facts(data), data.episode_returns
    assert (found["rows"], found["episodes"]) == (70_000, len(returns))
    assert found["terminals"] == data.terminals.sum()
    last = np.append(np.flatnonzero(np.diff(data.episode_ids)), len(data) - 1)
    assert found["timeouts"] == (~data.terminals[last]).sum()
    assert found["lengths"] == {
        "min": data.episode_lengths.min(),
        "median": np.median(data.episode_lengths),
        "max": data.episode_lengths.max(),
    }
    assert list(found["returns"].values()) == pytest.approx(
        [returns.mean(), returns.std(), *np.percentile(returns, [0, 25, 50, 75, 100])]
    )
    counts, edges = np.histogram(returns, bins=10)
    assert found["return_histogram"] == {"counts": counts.tolist(), "edges": edges.tolist()}
    assert found["fingerprint"] == data.fingerprint
    assert (found["observation_dim"], found["action_dim"]) == (3, 2)
    assert found["validation_episodes"] is None


def test_facts_take_one_pass_and_survive_json(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []
    blocks = Dataset.blocks
    monkeypatch.setattr(Dataset, "blocks", lambda self: passes.append(1) or blocks(self))
    found = inspect.facts(data)
    assert len(passes) == 1
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_facts_of_memory_mapped_arrays_are_the_same(data: Dataset, tmp_path: Path) -> None:
    mapped = {}
    for name in ("observations", "actions", "rewards", "next_observations", "terminals"):
        np.save(tmp_path / f"{name}.npy", getattr(data, name))
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    assert inspect.facts(replace(data, **mapped)) == inspect.facts(data)


def test_names_units_score_and_validation_are_told() -> None:
    features = Features(
        observations=("heat", "kind"),
        categories={"kind": ("a", "b")},
        actions=("valve", "pump"),
        action_low=(0.0, -10.0),
        action_high=(10.0, 30.0),
    )
    data = build(2_000)
    data = replace(data, features=features, validation=build(100))
    found = inspect.facts(data, mean_score=2 * data.mean_return + 1)
    assert [row["name"] for row in found["observations"]] == ["heat", "kind=a", "kind=b"]
    assert [row["name"] for row in found["actions"]] == ["valve", "pump"]
    pump = found["actions"][1]
    assert pump["units"]["min"] == pytest.approx(10 + 20 * data.actions[:, 1].min(), rel=1e-5)
    assert pump["units"]["max"] == pytest.approx(10 + 20 * data.actions[:, 1].max(), rel=1e-5)
    assert found["mean_score"] == 2 * data.mean_return + 1
    lines = inspect.describe(found)
    assert any(f"normalised score {found['mean_score']:.1f}" in line for line in lines)
    held = found["validation_episodes"]
    assert held == data.validation.num_episodes  # type: ignore[union-attr]
    assert any(f"{held} more held out for validation" in line for line in lines)
    units = f"{pump['units']['min']:.4g} to {pump['units']['max']:.4g}"
    assert any(line.startswith("  pump ") and line.endswith(units) for line in lines)


def test_numbers_without_names_are_numbered() -> None:
    found = inspect.facts(build(100))
    assert [row["name"] for row in found["actions"]] == ["action_0", "action_1"]
    assert found["observations"][2]["name"] == "observation_2"


def test_many_dimensions_are_cut_and_long_names_fit() -> None:
    data = build(300, width=52)
    features = Features(observations=tuple(f"{i}_" + "x" * 90 for i in range(52)))
    data = replace(data, features=features, name="n" * 150, source="/far/" * 40 + "end.hdf5")
    lines = inspect.describe(inspect.facts(data))
    assert max(map(len, lines)) <= 100
    assert "  … and 40 more (--json has all)" in lines
    assert sum("_xxx" in line for line in lines) == 12
    assert next(line for line in lines if "source" in line).endswith("far/end.hdf5")


def test_columns_are_aligned() -> None:
    lines = inspect.describe(inspect.facts(build(500)))
    for title, rows in (("observations (3)", 3), ("actions (2)", 2)):
        at = next(i for i, line in enumerate(lines) if title in line)
        head, *table = lines[at : at + rows + 1]
        end = head.index("max") + 3
        assert all(line[end - 1] != " " and line[end:][:1] in ("", " ") for line in table)


def test_the_histogram_has_the_counts_and_bars_in_proportion(data: Dataset) -> None:
    found = inspect.facts(data)
    lines = inspect.describe(found)
    first = lines.index("Episodes by return") + 1
    counts = found["return_histogram"]["counts"]
    for line, count in zip(lines[first : first + 10], counts, strict=True):
        bar = line.split(f" {count:,}")[-1].strip()
        assert len(bar) == -(-max(round(400 * count / max(counts)), count > 0) // 8)
    assert lines[first + 10] == ""


@given(share=st.floats(0, 1))
def test_a_bar_is_as_long_as_its_share_and_never_hides_anything(share: float) -> None:
    text = inspect.bar(share, 50)
    eighths = sum(" ▏▎▍▌▋▊▉█".index(mark) for mark in text)
    assert abs(eighths - 400 * share) <= 1
    assert bool(text) == (share > 0)


def test_equal_returns_make_one_bin() -> None:
    flags = np.arange(1, 201) % 10 == 0
    data = build(200, rewards=np.ones(200), terminals=~flags & flags, timeouts=flags)
    found = inspect.facts(data)
    assert found["return_histogram"]["counts"] == [20]
    assert found["returns"]["std"] == 0
    assert len(inspect.describe(found)) > 10


@settings(deadline=None, max_examples=50)
@given(
    cuts=st.lists(st.integers(1, 99), max_size=8, unique=True),
    centre=st.sampled_from([0.0, 1e6, -3e4]),
)
def test_moments_do_not_depend_on_the_blocks(cuts: list[int], centre: float) -> None:
    values = (centre + np.random.default_rng(0).normal(size=(100, 2))).astype(np.float32)
    moments = inspect.Moments(2)
    for part in np.split(values, sorted(cuts)):
        moments.add(part)
    wide = values.astype(np.float64)
    np.testing.assert_allclose(moments.mean, wide.mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(moments.std, wide.std(axis=0), rtol=1e-9)
    np.testing.assert_array_equal(moments.low, values.min(axis=0))
    np.testing.assert_array_equal(moments.high, values.max(axis=0))


@pytest.mark.parametrize("total", [1, 20_000, 20_001, 3_000_000])
def test_a_sample_is_ascending_without_repeats_and_the_same_each_time(total: int) -> None:
    rows = inspect.sample(total)
    assert len(rows) == min(total, 20_000)
    assert (np.diff(rows) > 0).all()
    assert 0 <= rows[0] <= rows[-1] < total
    np.testing.assert_array_equal(rows, inspect.sample(total))


def test_a_real_file_is_described(shared_data: Path) -> None:
    from acpo.tasks import TASKS

    data = d4rl.load(shared_data / "mujoco" / "hopper_medium.hdf5")
    score = TASKS["d4rl/hopper-medium-v2"].reference.score(data.mean_return)
    found = inspect.facts(data, score)
    assert found["mean_score"] == pytest.approx(41.0, abs=0.05)
    lines = inspect.describe(found)
    assert max(map(len, lines)) <= 100
    assert "  rows          200,355" in lines
