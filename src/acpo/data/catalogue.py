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
from numpy.typing import NDArray

from acpo.data import d4rl, download, neorl2, published
from acpo.data.dataset import Dataset
from acpo.data.options import DataOptions
from acpo.data.pairing import Steps
from acpo.data.published import UNKNOWN, Facts
from acpo.data.source import Source
from acpo.errors import UserError
from acpo.files import read_json, write_json

BUILTIN = "builtin/hopper-replay"

_READERS: dict[str, Callable[[Path], Source]] = {
    ".hdf5": d4rl.open_file,
    ".npz": neorl2.open_file,
    ".parquet": neorl2.open_parquet,
}


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
        mean_return: Of the data, where others report it.
    """

    name: str
    urls: tuple[str, ...]
    md5: str | None = None
    sha256: str | None = None
    environment: str | None = None
    trajectories: int | None = None
    validation: str | None = None
    facts: Facts = UNKNOWN
    mean_return: float | None = None

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


def _entries() -> Iterator[Entry]:
    yield Entry(BUILTIN, (), environment="Hopper-v4", facts=published.MEASURED[BUILTIN])
    for task, file in published.D4RL_FILES.items():
        name, kind = f"d4rl/{task}", task.split("-")[0]
        size, sha256 = published.D4RL_SUMS[task]
        rows, episodes, mean_return = published.D4RL_RETURNS.get(task, (None, None, None))
        quoted = Facts(size, rows, episodes, quoted=True)
        yield Entry(
            name,
            (f"{published.D4RL}/{file}",),
            sha256=sha256,
            environment=published.D4RL_ENVIRONMENTS.get(kind, name),
            facts=published.MEASURED.get(name, quoted),
            mean_return=mean_return,
        )
    for task in dict.fromkeys(file.split("-")[0] for file in published.NEORL2_MD5):
        for split, name in (("train", f"neorl2/{task}"), ("val", f"neorl2/{task}-val")):
            score = published.NEORL2_SCORES.get(name.removeprefix("neorl2/"))
            quoted = Facts(score=score, quoted=True)
            yield Entry(
                name,
                tuple(url.format(task=task, split=split) for url in published.NEORL2),
                md5=published.NEORL2_MD5[f"{task}-{split}"],
                environment=f"neorl2/{task}",
                trajectories=published.NEORL2_TRAJECTORIES.get(f"{task}-{split}"),
                validation=f"{name}-val" if split == "train" else None,
                facts=published.MEASURED.get(name, quoted),
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
    """Of the data, as a roll-out's is counted, where it was loaded here before or is published."""
    quoted: bool = False
    """What is said of the contents is what others report; else it was measured on the file."""


def listing() -> list[Row]:
    """All named datasets, with what is published of them or was seen when they were loaded."""
    rows, seen = [], _remembered()
    for entry in ENTRIES.values():
        here, facts = entry.here, entry.facts
        size = facts.size if here is None else here.stat().st_size
        row = Row(entry.name, entry.suite, size, facts.rows, facts.episodes, facts.score, here)
        row = row._replace(mean_return=entry.mean_return, quoted=facts.quoted)
        rows.append(row._replace(**seen[entry.name], quoted=False) if entry.name in seen else row)
    return rows


def _remembered() -> dict[str, dict[str, Any]]:
    """Rows, episodes and mean return of datasets that were loaded by name."""
    try:
        found = read_json(download.home() / "seen.json")
        return {name: {key: facts[key] for key in _SEEN} for name, facts in found.items()}
    except (UserError, AttributeError, KeyError, TypeError):
        return {}  # not there yet, or not ours: a list must not fail for that


def _remember(name: str, data: Dataset) -> None:
    facts = {
        "rows": len(data),
        "episodes": data.num_episodes,
        "mean_return": counted_return(data),
    }
    seen = _remembered()
    if seen.get(name) != facts:
        with contextlib.suppress(UserError):  # a convenience, not worth an error
            write_json(download.home() / "seen.json", {**seen, name: facts})


_SEEN = ("rows", "episodes", "mean_return")


def counted_return(data: Dataset, environment: str | None = None) -> float:
    """The mean return of the data, counted as the task counts that of a roll-out.

    The task is that of `environment`, by default of the one the data names.

    A reward of kitchen's data is the number of sub-tasks done so far, each of which a roll-out
    counts once. AntMaze's trajectories stay at the goal, or come back to it, and have an end at
    each such step; a roll-out ends at the first.
    """
    task = environment or data.environment or ""
    if task.startswith("d4rl/kitchen"):
        most = np.full(data.num_episodes, -np.inf)
        np.maximum.at(most, data.episode_ids, data.rewards)
        return float(most[np.isfinite(most)].mean())
    if task.startswith("d4rl/antmaze"):
        cut = np.ones(data.num_episodes, dtype=np.bool_)
        cut[data.episode_ids[data.terminals]] = False
        trajectory: NDArray[np.intp] = np.cumsum(cut) - cut
        reached = np.zeros(trajectory[-1] + 1)
        reached[trajectory[~cut]] = 1
        return float(reached.mean())
    return data.mean_return


def describe(rows: Sequence[Row]) -> list[str]:
    """The list as a table."""

    def amount(number: float | None, form: str) -> str:
        return "" if number is None else format(number, form)

    head = f"{'name':34} {'size':>9} {'rows':>9} {'episodes':>8} {'score':>6} {'':9}  here"
    lines = [head]
    for row in rows:
        size = None if row.size is None else row.size / 1e6
        origin = "" if row.score is None else "published" if row.quoted else "measured"
        numbers = (
            f"{amount(size, '.1f') + ' MB' if size else '':>9} {amount(row.rows, ','):>9} "
            f"{amount(row.episodes, ','):>8} {amount(row.score, '.1f'):>6} {origin:9}"
        )
        lines.append(f"{row.name:34} {numbers}  {row.path or 'no'}")
    if any(None in (row.size, row.rows, row.episodes, row.score) for row in rows):
        lines.append("Blank: published nowhere we know of; known once the file has been loaded.")
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
