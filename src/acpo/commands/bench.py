"""acpo bench: how fast we are, beside a peer, on this machine."""

from __future__ import annotations

import importlib.util
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from acpo.bench import speed
from acpo.data.download import home
from acpo.errors import UserError
from acpo.files import read_json, write_json


@dataclass(frozen=True)
class SpeedArguments:
    """Updates per second of ACPO, of d3rlpy's AWAC, and of the matrix products alone.

    With --algorithm, of other methods instead, beside d3rlpy's where it has them.
    """

    algorithm: str = "acpo"
    """acpo; all; or methods of acpo algorithms, separated by commas."""
    json: Path | None = None
    """Also write the numbers to this file."""
    rounds: int = 3
    """Rounds of measurements; of each measurement the best round counts."""
    seconds: float = 5.0
    """Seconds per measurement."""


@dataclass(frozen=True)
class DataArguments:
    """Training from disk beside training in memory; loading HDF5 and CSV beside their libraries.

    Makes its data in a temporary folder and deletes it: some 5 GB for 20 million rows.
    """

    json: Path | None = None
    """Also write the numbers to this file."""
    rows: int = 20_000_000
    """Rows of the store that is trained from disk."""
    load_rows: int = 1_000_000
    """Rows of the files whose loading is timed."""
    steps: int = 4_000
    """Updates per training."""
    rounds: int = 2
    """Rounds of measurements; of each measurement the best round counts."""
    folder: Path = Path()
    """Where the temporary folder goes."""


@dataclass(frozen=True)
class TasksArguments:
    """Steps per second of the tasks' environments, and what an evaluation costs in updates.

    An environment alone, ten episodes in an evaluation, and, where NeoRL2's source is importable,
    the original.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Tasks or their environments; by default one of each kind in the paper."""
    json: Path | None = None
    """Also write the numbers to this file."""
    seconds: float = 3.0
    """Seconds per measurement; an evaluation is measured to its end."""


def main(words: list[str]) -> int:
    commands = {"speed": _speed, "data": _data, "tasks": _tasks}
    if words and words[0] in commands:
        return commands[words[0]](words[1:])
    what = f"acpo bench {'|'.join(commands)} [--json FILE]"
    if words[:1] in (["-h"], ["--help"]):
        more = ", ".join(f"acpo bench {name} --help" for name in commands)
        print(f"usage: {what}\n\nSee {more}.")
        return 0
    raise UserError(f"Say what to measure: {what}.")


def _data(words: list[str]) -> int:
    arguments = tyro.cli(DataArguments, prog="acpo bench data", args=words)
    if min(arguments.rows, arguments.load_rows, arguments.rounds) < 1 or arguments.steps < 1_500:
        raise UserError("--rows, --load-rows and --rounds must be positive, --steps at least 1500.")
    from acpo.bench import data

    try:
        scratch = tempfile.TemporaryDirectory(prefix="acpo-bench-", dir=arguments.folder)
    except OSError as error:
        raise UserError(f"--folder {arguments.folder}: {error.strerror}.") from error
    with scratch as name:
        folder = Path(name)
        loading = data.measure_loading(arguments.load_rows, folder)
        training = data.measure_training(
            arguments.rows, folder, arguments.steps, arguments.rounds, print
        )
    found = {"training": training, "loading": loading}
    seconds = loading["seconds"]
    print(
        f"\ntraining  {training['from_disk_updates_per_s']:.0f} updates/s from disk, "
        f"{training['in_memory_updates_per_s']:.0f} in memory: "
        f"{100 * training['share_of_in_memory']:.0f} %; "
        f"peak {training['from_disk_peak_mb']:.0f} MB for {training['rows']:,} rows"
    )
    for ours, theirs in (("hdf5", "h5py"), ("csv", "polars")):
        print(
            f"{ours:9} {seconds[ours]:.2f} s for {loading['rows']:,} rows, {theirs} "
            f"{seconds[theirs]:.2f} s: {loading[f'{ours}_to_{theirs}']:.2f} times"
        )
    if arguments.json:
        write_json(arguments.json, found)
        print(f"written to {arguments.json}")
    return 0


def _speed(words: list[str]) -> int:
    arguments = tyro.cli(SpeedArguments, prog="acpo bench speed", args=words)
    if arguments.rounds < 1 or arguments.seconds <= 0:
        raise UserError("--rounds and --seconds must be positive.")
    peer = importlib.util.find_spec("d3rlpy") is not None
    if arguments.algorithm != "acpo":
        return _methods(arguments, peer)
    found = speed.measure(arguments.rounds, arguments.seconds, peer, print)
    rates, peers = found["updates_per_s"], found["peer_updates_per_s"]
    print(f"\nACPO                  {_rates(rates)}")
    if peer:
        print(f"{found['peer']:22}{_rates(peers)}")
        print(f"ratio                 {found['ratio_to_peer']:.2f} (best to best)")
    else:
        print("peer                  not installed: pip install 'acpo[bench]', or make bench")
    print(f"matrix products alone {_rates(found['limit_updates_per_s'])}")
    print(
        f"share of that limit   {100 * found['share_of_limit']:.0f} %, "
        f"{found['flops_per_update'] / 1e9:.3f} GFLOP an update"
    )
    print(f"five seeds            {found['five_seeds_updates_per_s']:.0f} updates/s in all")
    _note_speeds({"acpo": rates["threads_2"]})
    if arguments.json:
        write_json(arguments.json, found)
        print(f"written to {arguments.json}")
    return 0


def _methods(arguments: SpeedArguments, peer: bool) -> int:
    from acpo.algorithms import ALGORITHMS, make_algorithm
    from acpo.bench import methods

    names = list(ALGORITHMS)
    if arguments.algorithm != "all":
        names = [name.strip() for name in arguments.algorithm.split(",")]
        for name in names:
            make_algorithm(name)
    found = methods.measure(names, arguments.rounds, arguments.seconds, peer, print)
    print(f"\n{'':10}{'updates/s':>10}{'GFLOP':>8}{'of limit':>10}{'d3rlpy':>9}{'ratio':>7}")
    for name, row in found.items():
        share = row["share_of_limit"]
        print(
            f"{name:10}{_steps(row['updates_per_s']):>10}{row['flops_per_update'] / 1e9:>8.2f}"
            f"{f'{100 * share:.0f} %' if share else '':>10}{_steps(row['peer_updates_per_s']):>9}"
            f"{_steps(row['ratio_to_peer']):>7}"
        )
    if not peer:
        print("\nd3rlpy is not installed: pip install 'acpo[bench]', or make bench")
    _note_speeds({name: row["updates_per_s"] for name, row in found.items()})
    if arguments.json:
        write_json(arguments.json, {"threads": 2, "rounds": arguments.rounds, "methods": found})
        print(f"written to {arguments.json}")
    return 0


def _note_speeds(rates: dict[str, float | None]) -> None:
    """Where acpo algorithms finds them."""
    file = home() / "speed.json"
    known = read_json(file) if file.exists() else {}
    write_json(file, {**known, **{name: rate for name, rate in rates.items() if rate}})


def _tasks(words: list[str]) -> int:
    arguments = tyro.cli(TasksArguments, prog="acpo bench tasks", args=words)
    if arguments.seconds <= 0:
        raise UserError("--seconds must be positive.")
    from acpo.bench import tasks
    from acpo.tasks import AUTHORS, find_task, suggestion

    for name in arguments.names:
        if name.startswith(AUTHORS):
            raise UserError(f"{name} is measured beside ours; name neorl2/{name.split('/')[1]}.")
        if find_task(name) is None:
            raise UserError(f"No task is called {name!r}. {suggestion(name)}")
    updates = tasks.updates_per_second(arguments.seconds)
    episodes, between = tasks.EPISODES, tasks.BETWEEN
    print(f"{updates:.0f} updates/s; steps/s of each task:\n")
    print(f"{'':30}{'alone':>9}{f'x {episodes}':>9}{'original':>9}{'ratio':>7}{'evaluation':>22}")
    found: dict[str, Any] = {}
    for name in arguments.names or tasks.NAMES:
        try:
            rates = tasks.measure(name, arguments.seconds)
        except UserError as error:
            print(f"{name:30}  not measured: {error}")
            found[name] = {"not_measured": str(error)}
            continue
        cost = rates.seconds * updates
        found[name] = {
            **rates._asdict(),
            "ratio": rates.ratio,
            "evaluation_seconds": rates.seconds,
            "evaluation_updates": cost,
        }
        steps = [_steps(rate) for rate in (rates.alone, rates.evaluation, rates.original)]
        print(
            f"{name:30}{''.join(f'{text:>9}' for text in steps)}"
            f"{rates.ratio:>7.1f}{rates.seconds:>8.1f} s{cost:>8,.0f} up."
        )
    dear = [name for name, row in found.items() if row.get("evaluation_updates", 0.0) >= between]
    print(
        f"\nevaluation: {episodes} whole episodes, in seconds and in updates of training. It costs "
        f"the {between:,} updates between two evaluations or more in: {', '.join(dear) or 'none'}."
    )
    for reason in {
        row["original_missing"] for row in found.values() if row.get("original_missing")
    }:
        print(f"no original: {reason}")
    if arguments.json:
        found_all = {"updates_per_s": updates, "seconds": arguments.seconds, "tasks": found}
        write_json(arguments.json, found_all)
        print(f"written to {arguments.json}")
    return 0


def _steps(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate:,.2f}" if rate < 100 else f"{rate:,.0f}"


def _rates(rates: dict[str, float | None]) -> str:
    one, two = rates["threads_1"], rates["threads_2"]
    return f"{one or float('nan'):.0f} updates/s on one thread, {two or float('nan'):.0f} on two"
