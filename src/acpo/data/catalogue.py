"""Published datasets by name: where they are, what is known of them, and how they are loaded."""

from __future__ import annotations

import contextlib
import difflib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from acpo.data import d4rl, download, neorl2
from acpo.data.dataset import Dataset
from acpo.data.options import DataOptions
from acpo.data.pairing import Steps
from acpo.data.source import Source
from acpo.errors import UserError
from acpo.files import read_json, write_json

BUILTIN = "builtin/hopper-replay"

_READERS: dict[str, Callable[[Path], Source]] = {
    ".hdf5": d4rl.open_file,
    ".npz": neorl2.open_file,
    ".parquet": neorl2.open_parquet,
}


class Facts(NamedTuple):
    """What is in a published file, measured on the file itself: all its rows and episodes."""

    size: int | None = None
    rows: int | None = None
    episodes: int | None = None
    score: float | None = None
    """Mean return, normalised by the benchmark's reference returns."""


UNKNOWN = Facts()


@dataclass(frozen=True)
class Entry:
    """A dataset known by name.

    Args:
        name: "suite/task"; "-val" at the end is a validation set alone.
        urls: Addresses of the same data, the best first; files keep their published names.
        md5: Published checksum of the file at the first address.
        sha256: Likewise; a file has one or the other, or none.
        environment: What `acpo.make_env` takes for the task that the data comes from.
        trajectories: How many the benchmark's own loader takes from the file's beginning, if not
            all.
        validation: Name of the set that is attached to this one.
    """

    name: str
    urls: tuple[str, ...]
    md5: str | None = None
    sha256: str | None = None
    environment: str | None = None
    trajectories: int | None = None
    validation: str | None = None
    facts: Facts = UNKNOWN

    @property
    def suite(self) -> str:
        return self.name.split("/")[0]

    @property
    def files(self) -> tuple[Path, ...]:
        """Where each address' file is kept, or can be put by hand."""
        if self.name == BUILTIN:
            return (Path(__file__).parent / f"{BUILTIN}.hdf5",)
        folder = download.home() / "datasets" / self.suite
        return tuple(folder / url.rsplit("/", 1)[1] for url in self.urls)

    @property
    def here(self) -> Path | None:
        return next((path for path in self.files if path.exists()), None)


_D4RL = "http://rail.eecs.berkeley.edu/datasets/offline_rl"
_MAZE = "ant_maze_v2/Ant_maze_{}-maze_noisy_multistart_{}_multigoal_{}_sparse_fixed.hdf5"
_D4RL_FILES = {
    "halfcheetah-medium-v2": "gym_mujoco_v2/halfcheetah_medium-v2.hdf5",
    "halfcheetah-medium-replay-v2": "gym_mujoco_v2/halfcheetah_medium_replay-v2.hdf5",
    "halfcheetah-medium-expert-v2": "gym_mujoco_v2/halfcheetah_medium_expert-v2.hdf5",
    "hopper-medium-v2": "gym_mujoco_v2/hopper_medium-v2.hdf5",
    "hopper-medium-replay-v2": "gym_mujoco_v2/hopper_medium_replay-v2.hdf5",
    "hopper-medium-expert-v2": "gym_mujoco_v2/hopper_medium_expert-v2.hdf5",
    "walker2d-medium-v2": "gym_mujoco_v2/walker2d_medium-v2.hdf5",
    "walker2d-medium-replay-v2": "gym_mujoco_v2/walker2d_medium_replay-v2.hdf5",
    "walker2d-medium-expert-v2": "gym_mujoco_v2/walker2d_medium_expert-v2.hdf5",
    "antmaze-umaze-v2": _MAZE.format("u", False, False),
    "antmaze-umaze-diverse-v2": _MAZE.format("u", True, True),
    "antmaze-medium-play-v2": _MAZE.format("big", True, False),
    "antmaze-medium-diverse-v2": _MAZE.format("big", True, True),
    "antmaze-large-play-v2": _MAZE.format("hardest", True, False),
    "antmaze-large-diverse-v2": _MAZE.format("hardest", True, True),
    "kitchen-complete-v0": "kitchen/mini_kitchen_microwave_kettle_light_slider-v0.hdf5",
    "kitchen-partial-v0": "kitchen/kitchen_microwave_kettle_light_slider-v0.hdf5",
    "kitchen-mixed-v0": "kitchen/kitchen_microwave_kettle_bottomburner_light-v0.hdf5",
}
# Size and SHA-256 as TensorFlow Datasets records them for the files at the same addresses; those of
# AntMaze's medium-play and of two kitchens are not published anywhere we know of.
_D4RL_SUMS = {
    "halfcheetah-medium-v2": (
        237_727_262,
        "41324e8487a9556d8cfa4538827f8937f4d63dae3030825ebc9f3a726ed08ca0",
    ),
    "halfcheetah-medium-replay-v2": (
        59_448_533,
        "48d494a4770c11f48260736dec090b78bdca8375647ed4d24bfa5b6610c7f683",
    ),
    "halfcheetah-medium-expert-v2": (
        474_567_252,
        "015db75dae5bbe8e94029b71fa0bafc2073365df0c94744e71031189f3f79c06",
    ),
    "hopper-medium-v2": (
        152_756_557,
        "5bdf1bc4a713c82941de44633df669b36c89850b652a25985166796d25cf71a0",
    ),
    "hopper-medium-replay-v2": (
        75_854_457,
        "e121c5f7c9857a307baa9edc6a2c3b48e85fedb9ac316ecddd0f48ca7ef4e39b",
    ),
    "hopper-medium-expert-v2": (
        304_537_315,
        "9d51ad87f8c905be3880d84c6140bcdb7fbf39a19e046a237f238ba34fec9e26",
    ),
    "walker2d-medium-v2": (
        232_254_996,
        "cf00f43add04c17fdfc2958dd581dea0851b2e5bedbe6fda073758a8f841aeda",
    ),
    "walker2d-medium-replay-v2": (
        86_323_963,
        "e75de96a4f77acf7d4e0d6fdf0d7ccb177c26c44bb4388e4fd99f543ccfa18db",
    ),
    "walker2d-medium-expert-v2": (
        462_197_079,
        "6b8d7f868c45bbaedf460be797fb7271b46dee6ebe45fe7a64319f2005b59a04",
    ),
    "antmaze-umaze-v2": (
        232_532_949,
        "5ef15257771c50ef4d23c7de001750e96c8bb5d9b6a5e4a821dcfb3065fbd130",
    ),
    "antmaze-umaze-diverse-v2": (
        230_854_272,
        "c771dd63963cd7d9f55f24a6d809064f6b82250a6aeac4c9d13f9a1d06e8c932",
    ),
    "antmaze-medium-diverse-v2": (
        231_095_166,
        "ad9dcbac05d1f8744a7a216083f513662f43f64f28a4a5eb225e9811902dfae7",
    ),
    "antmaze-large-play-v2": (
        230_880_653,
        "6d353df2457829925d7f9d4b0215587469908bd57478ea76f16417cfa944f471",
    ),
    "antmaze-large-diverse-v2": (
        231_183_710,
        "84f775eb7956ea9cc766704710dc520a8ab357adc7522ade47f556f0e335e284",
    ),
}
_D4RL_ENVIRONMENTS = {
    "halfcheetah": "HalfCheetah-v4",
    "hopper": "Hopper-v4",
    "walker2d": "Walker2d-v4",
}

_NEORL2 = (
    "http://datasets.polixir.site/neorl2/{task}/{task}-{split}.npz",
    "https://huggingface.co/datasets/polixirai/NeoRL2/resolve/main/{task}/{split}/"
    "{task}-{split}.parquet",
)
_NEORL2_MD5 = {
    "Pipeline-train": "59902b333be6edb9252acfc2302cc1ed",
    "Pipeline-val": "c502f529db1de55ebf37d63e1defca56",
    "Simglucose-train": "6195a3634379f576958440b7e0c8fc53",
    "Simglucose-val": "6df907556cbc96002757f6d652be9d92",
    "RocketRecovery-train": "b1a7bf1ec16cfef390b6b1cec2b13ddc",
    "RocketRecovery-val": "0b25bd998e92b4f808f8ee5207ce06dd",
    "RandomFrictionHopper-train": "3ef2c41483689729d3b5a3aef3b7b8f7",
    "RandomFrictionHopper-val": "2628f354222de37803451c63e84a1269",
    "DMSD-train": "88dfa39aa18904e809056b51c2e6319b",
    "DMSD-val": "be6c39c0e73c17029206e714068f26b7",
    "Fusion-train": "98979f97e0b59dd46bbb9237176a68ab",
    "Fusion-val": "9baa5556fac98b86ab9b58040da17d86",
    "SafetyHalfCheetah-train": "c35efec4a25fb45837487ba00f74e1ed",
    "SafetyHalfCheetah-val": "da65ba51a4cc17370572da3c801d228b",
}
_NEORL2_TRAJECTORIES = {
    "RocketRecovery-train": 100,
    "RocketRecovery-val": 25,
    "Fusion-train": 20,
    "Fusion-val": 5,
}

# Scores of kitchen and AntMaze are those of policies: a trajectory there goes on after success.
_FACTS = {
    BUILTIN: Facts(None, 117_603, 611, 18.1),
    "d4rl/kitchen-complete-v0": Facts(556_544, 3_680, 19),
    "neorl2/Simglucose": Facts(1_466_050, 100_257, 280, 73.9),
    "neorl2/Simglucose-val": Facts(290_922, 20_018, 62, 65.9),
    "neorl2/RocketRecovery-val": Facts(1_273_636, 20_077, 146, 70.5),
    "neorl2/RandomFrictionHopper-val": Facts(2_134_598, 20_047, 218, 23.2),
    "neorl2/DMSD": Facts(4_117_923, 100_000, 1_000, 56.6),
    "neorl2/DMSD-val": Facts(790_776, 20_000, 200, 55.0),
    "neorl2/Fusion-val": Facts(2_003_959, 20_000, 200, 49.6),
    "neorl2/SafetyHalfCheetah": Facts(2_843_402, 18_000, 18, 73.6),
    "neorl2/SafetyHalfCheetah-val": Facts(316_329, 2_000, 2, 69.5),
}


def _entries() -> Iterator[Entry]:
    yield Entry(BUILTIN, (), environment="Hopper-v4", facts=_FACTS[BUILTIN])
    for task, file in _D4RL_FILES.items():
        name, kind = f"d4rl/{task}", task.split("-")[0]
        size, sha256 = _D4RL_SUMS.get(task, (None, None))
        yield Entry(
            name,
            (f"{_D4RL}/{file}",),
            sha256=sha256,
            environment=_D4RL_ENVIRONMENTS.get(kind, name),
            facts=_FACTS.get(name, Facts(size)),
        )
    for task in dict.fromkeys(file.split("-")[0] for file in _NEORL2_MD5):
        for split, name in (("train", f"neorl2/{task}"), ("val", f"neorl2/{task}-val")):
            yield Entry(
                name,
                tuple(url.format(task=task, split=split) for url in _NEORL2),
                md5=_NEORL2_MD5[f"{task}-{split}"],
                environment=f"neorl2/{task}",
                trajectories=_NEORL2_TRAJECTORIES.get(f"{task}-{split}"),
                validation=f"{name}-val" if split == "train" else None,
                facts=_FACTS.get(name, UNKNOWN),
            )


ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _entries()}


class Row(NamedTuple):
    """A line of the list of datasets; None where nobody knows."""

    name: str
    suite: str
    size: int | None
    rows: int | None
    episodes: int | None
    score: float | None
    """Of the data: its mean return, normalised."""
    path: Path | None
    """The file, if it is here."""
    mean_return: float | None = None
    """Of the data, where it was loaded here before."""


def listing() -> list[Row]:
    """All named datasets, with what is published of them or was seen when they were loaded."""
    rows, seen = [], _remembered()
    for entry in ENTRIES.values():
        here, facts = entry.here, entry.facts
        size = facts.size if here is None else here.stat().st_size
        row = Row(entry.name, entry.suite, size, facts.rows, facts.episodes, facts.score, here)
        rows.append(row._replace(**seen[entry.name]) if entry.name in seen else row)
    return rows


def _remembered() -> dict[str, dict[str, Any]]:
    """Rows, episodes and mean return of datasets that were loaded by name."""
    try:
        found = read_json(download.home() / "seen.json")
        return {name: {key: facts[key] for key in _SEEN} for name, facts in found.items()}
    except (UserError, AttributeError, KeyError, TypeError):
        return {}  # not there yet, or not ours: a list must not fail for that


def _remember(name: str, data: Dataset) -> None:
    facts = {"rows": len(data), "episodes": data.num_episodes, "mean_return": data.mean_return}
    seen = _remembered()
    if seen.get(name) != facts:
        with contextlib.suppress(UserError):  # a convenience, not worth an error
            write_json(download.home() / "seen.json", {**seen, name: facts})


_SEEN = ("rows", "episodes", "mean_return")


def describe(rows: Sequence[Row]) -> list[str]:
    """The list as a table."""

    def amount(number: float | None, form: str) -> str:
        return "" if number is None else format(number, form)

    lines = [f"{'name':34} {'size':>9} {'rows':>9} {'episodes':>8} {'score':>6}  here"]
    for row in rows:
        size = None if row.size is None else row.size / 1e6
        numbers = (
            f"{amount(size, '.1f') + ' MB' if size else '':>9} {amount(row.rows, ','):>9} "
            f"{amount(row.episodes, ','):>8} {amount(row.score, '.1f'):>6}"
        )
        lines.append(f"{row.name:34} {numbers}  {row.path or 'no'}")
    return [*lines, f"Downloads go to {download.home()} (set ACPO_HOME to change that)."]


def similar(text: str, count: int = 3) -> list[str]:
    """The names nearest to a misspelt one, which may lack the suite; the best first."""
    wanted = text.lower()

    def likeness(name: str) -> float:
        whole, task = name.lower(), name.lower().split("/")[1]
        ratios = (difflib.SequenceMatcher(None, wanted, known).ratio() for known in (whole, task))
        return max(*ratios, 0.9 * (len(wanted) > 2 and wanted in whole))

    best = sorted(ENTRIES, key=likeness, reverse=True)[:count]
    return [name for name in best if likeness(name) >= 0.6]


def locate(name: str) -> Path:
    """The file of a named dataset, which is fetched if it is not here.

    Raises:
        UserError: if it cannot be had, or the file that is here is not the published one.
    """
    entry = _entry(name)
    here = entry.here
    if here is not None:
        # Half a gigabyte takes a second or more to digest, so that of SHA-256 only the size is
        # compared; it was digested when it was fetched.
        if entry.md5 and here == entry.files[0]:
            _refuse_other(here, entry.md5)
        if entry.sha256 and here.stat().st_size != entry.facts.size:
            raise UserError(
                f"{here} has {here.stat().st_size:,} bytes, but the published file has "
                f"{entry.facts.size:,}. Delete it, so that it is fetched anew; if it is data of "
                "your own, load it by its path."
            )
        return here
    if not entry.urls:
        raise UserError(
            f"{name} is missing from this installation: no {entry.files[0]}. Reinstall acpo."
        )
    url, *others = entry.urls
    try:
        return download.fetch(url, entry.files[0], md5=entry.md5, sha256=entry.sha256)
    except download.UnobtainableError as error:
        for other, path in zip(others, entry.files[1:], strict=True):
            with contextlib.suppress(download.UnobtainableError):
                return download.fetch(other, path)
        failed = f" {' and '.join(others)} failed too." if others else ""
        raise download.UnobtainableError(f"{error}{failed}") from error


def open_source(name: str, options: DataOptions) -> Source:
    """A named dataset, opened but not read, without its validation set."""
    entry = _entry(name)
    if options.scale_actions:
        raise UserError(
            f"{name}: its actions lie in [-1, 1] as its environment wants them; leave "
            "scale_actions (--scale-actions) for data of your own."
        )
    path = locate(name)
    source = _READERS[path.suffix](path)
    if entry.trajectories is not None and not options.all_trajectories:
        source = _first(source, entry.trajectories)
    return replace(source, name=name, environment=entry.environment)


def open_name(name: str, options: DataOptions) -> Dataset:
    """Load a named dataset, with its validation set if that can be had.

    Observation columns that never change are kept: in a published file they are no mistake.
    """
    data = open_source(name, options).read(keep_constant=True)
    held_out = None
    if (other := _entry(name).validation) is not None:
        try:
            held_out = open_name(other, options)
        except download.UnobtainableError as error:
            warnings.warn(f"{name} is loaded without its validation set. {error}", stacklevel=2)
    if name != BUILTIN:
        _remember(name, data)
    return replace(data, source=name, validation=held_out)


def _entry(name: str) -> Entry:
    if name not in ENTRIES:
        near = similar(name)
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        raise UserError(f"No dataset is named '{name}'.{hint} See acpo data list.")
    return ENTRIES[name]


def _refuse_other(path: Path, md5: str) -> None:
    found = download.digest(path, "md5")
    if found != md5:
        raise UserError(
            f"{path} is not the published file: its MD5 is {found}, but {md5} is published. Delete "
            "it, so that it is fetched anew; if it is data of your own, load it by its path."
        )


def _first(source: Source, count: int) -> Source:
    """The first `count` trajectories, cut where NeoRL2's own loader cuts."""

    def blocks(rows: int | None) -> Iterator[Steps]:
        left = count
        for steps in source.blocks(rows):
            last = np.ravel(steps.terminals) > 0
            if steps.timeouts is not None:
                last |= np.ravel(steps.timeouts) > 0
            ends = np.flatnonzero(last)
            if len(ends) >= left:
                end = ends[left - 1] + 1
                yield Steps(*(field if field is None else field[:end] for field in steps))
                return
            left -= len(ends)
            yield steps

    return replace(source, blocks=blocks)
