"""The benchmark counts what an update really multiplies, and measures it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from acpo import cli
from acpo.algorithms import ALGORITHMS, base
from acpo.bench import methods, speed, tasks

# Methods whose gradient is taken by blocks of rows, of which a batch has four.
BY_BLOCKS = ("cql", "mcq")


def test_flops_equal_a_count_by_hand() -> None:
    """Forward passes of each layer, weight gradients, and input gradients but for first layers."""
    s, a, h, b = 11, 3, 256, 256

    def forward(inputs: int, outputs: int) -> int:
        return 2 * b * (inputs * h + h * h + h * outputs)

    def backward(inputs: int, outputs: int) -> int:
        return forward(inputs, outputs) + 2 * b * (h * h + h * outputs)

    policy = forward(s, 2 * a) + backward(s, 2 * a)
    value = 2 * forward(s, 1) + backward(s, 1)
    critics = 2 * (forward(s + a, 1) + backward(s + a, 1))
    targets = 2 * forward(s + a, 1)
    assert speed.flops_per_update() == policy + value + critics + targets


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_products_of_any_method_are_found(name: str) -> None:
    found = methods.products(methods.configured(name))
    assert methods.flops(found) > 1e7
    blocks = {4.0} if name in BY_BLOCKS else set()
    assert {times for times, _, _ in found} <= {1.0, 0.5} | blocks
    # The policy's own layer, forward or among candidates.
    assert any(left[-1] == right[-2] == 256 for _, left, right in found)


@pytest.mark.parametrize("name", BY_BLOCKS)
def test_blocks_of_rows_multiply_no_more_than_all_rows_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_blocks = methods.products(methods.configured(name))
    assert max(times for times, _, _ in by_blocks) > 1.0, "else there are no blocks"
    monkeypatch.setattr(base, "BLOCK_INPUTS", 10**9)
    at_once = methods.products(methods.configured(name))
    assert max(times for times, _, _ in at_once) == 1.0
    assert methods.flops(by_blocks) == methods.flops(at_once)


def test_traced_products_are_those_counted_by_hand_and_those_of_layer_norm() -> None:
    traced = methods.flops(methods.products(methods.configured("acpo")))
    networks, layers, passes = 6, 2, 256 * 256
    assert speed.flops_per_update() < traced
    # At most four sums along rows as products, forward and back, in V and Q.
    assert traced - speed.flops_per_update() <= 2 * passes * 4 * (networks + 1) * layers


def test_every_second_update_counts_half() -> None:
    found = methods.products(methods.configured("td3_bc"))
    every = [product for product in found if product[0] == 1.0]
    half = [product for product in found if product[0] == 0.5]
    # Two critics forward and back, two targets and the target actor; then the actor and Q.
    assert methods.flops(every) / methods.flops(half) == pytest.approx(9 / (0.5 * 5), rel=0.1)


def test_every_limit_can_be_measured() -> None:
    assert speed.limit_numpy(0.05) > 0
    assert speed.limit_xla(0.05) > 0


def test_a_measurement_runs_in_a_process_of_its_own() -> None:
    rate = speed._measure("numpy", threads=1, seconds=0.05)
    assert rate is not None
    assert rate > 0


def test_methods_are_measured_beside_their_products_and_noted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACPO_HOME", str(tmp_path))
    file = tmp_path / "speed.out.json"
    words = ["--algorithm", "bc", "--rounds", "1", "--seconds", "0.2", "--json", str(file)]
    assert cli.main(["bench", "speed", *words]) == 0
    found = json.loads(file.read_text())["methods"]["bc"]
    assert found["updates_per_s"] > 0
    share = found["updates_per_s"] / found["limit_updates_per_s"]
    assert found["share_of_limit"] == pytest.approx(share)
    assert f"{found['updates_per_s']:.0f}" in capsys.readouterr().out
    assert cli.main(["algorithms", "bc"]) == 0
    assert f"{found['updates_per_s']:.0f} updates/s" in capsys.readouterr().out


def test_tasks_are_measured_alone_and_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that runs anywhere, one that lacks the authors' source."""
    monkeypatch.setattr(tasks, "updates_per_second", lambda seconds: 100.0)
    monkeypatch.setitem(sys.modules, "neorl2", None)
    file = tmp_path / "tasks.json"
    names = ["neorl2/DMSD", "neorl2/Fusion"]
    assert cli.main(["bench", "tasks", *names, "--seconds", "0.05", "--json", str(file)]) == 0
    found = json.loads(file.read_text())["tasks"]
    assert "NeoRL2's source is needed" in found["neorl2/Fusion"]["not_measured"]
    dmsd = found["neorl2/DMSD"]
    assert min(dmsd["evaluation"], dmsd["alone"]) > 0
    assert dmsd["ratio"] == pytest.approx(dmsd["evaluation"] / dmsd["alone"])
    assert dmsd["evaluation_seconds"] == pytest.approx(10 * 100 / dmsd["evaluation"])
    assert dmsd["evaluation_updates"] == pytest.approx(100 * dmsd["evaluation_seconds"])
    printed = capsys.readouterr().out
    assert "neorl2/Fusion" in printed
    assert printed.count("no original") == 1


def test_only_steps_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 0.25 s by a clock of our own, whatever a reset takes."""
    now = 0.0

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(tasks.time, "perf_counter", lambda: now)
    env = SimpleNamespace(reset=lambda seed: pass_time(10.0))

    def step(action: float) -> tuple[int, float, bool, bool]:
        pass_time(0.25)
        return 0, 0.0, False, False

    assert tasks._stepping(env, step, np.zeros(7), horizon=3, seconds=5.0) == 4.0
    assert now > 60


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["sped"],
        ["speed", "--rounds", "0"],
        ["tasks", "--seconds", "0"],
        ["tasks", "neorl2/DMDS"],
    ],
)
def test_a_wrong_call_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *words]) == 2
    assert capsys.readouterr().err
