"""Fetch a file over HTTP, so that it is either whole and right or not there."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from acpo.errors import UserError

RETRIES = 4
PAUSE = 1.0
"""Seconds before a retry; doubled each time that nothing new came."""
TIMEOUT = 20.0
_PIECE = 1 << 18
# Answers that a moment's patience may change.
_PASSING = (408, 429, 500, 502, 503, 504)

Report = Callable[[int, int | None], None]


class UnobtainableError(UserError):
    """The address cannot be reached or does not give the file; another place may have it."""


class _NetworkError(Exception):
    """The network failed; another attempt may succeed."""


class _UnreachedError(_NetworkError):
    """There was no connection at all."""


def home() -> Path:
    """Where downloads are kept: $ACPO_HOME, or "acpo" in the user's cache folder."""
    if chosen := os.environ.get("ACPO_HOME"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "acpo"


def fetch(
    url: str,
    target: Path,
    *,
    md5: str | None = None,
    sha256: str | None = None,
    progress: bool = True,
    retries: int = RETRIES,
) -> Path:
    """Fetch `url` to `target`, unless that is there already.

    The file grows beside its place and is moved there once it is complete and its checksum right.
    What an attempt leaves, even a killed one, the next one continues. Processes that want the same
    file wait for each other.

    Args:
        progress: Show a bar, if standard error is a terminal.
        retries: How many attempts in a row may bring nothing new.

    Raises:
        UnobtainableError: if the server cannot be reached or refuses.
        UserError: if the checksum is wrong or the file cannot be written.
    """
    target = target.absolute()
    part = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _claimed(part, target) as file:
            if file is not None:
                with _bar(target.name, progress) as report:
                    _complete(url, target, file, bool(md5 or sha256), retries, report)
                os.fsync(file.fileno())
                for kind, published in (("md5", md5), ("sha256", sha256)):
                    _refuse_other(url, part, kind, published)
                os.replace(part, target)
                _tag(part).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"{target.name} could not be written in {target.parent}: {error.strerror or error}. "
            "Free some space there, or name another folder in the environment variable ACPO_HOME."
        ) from error
    return target


def digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


@contextlib.contextmanager
def _claimed(part: Path, target: Path) -> Iterator[IO[bytes] | None]:
    """The unfinished file, for this process alone; None if the target is there by now."""
    while not target.exists():
        with part.open("ab") as file:
            with contextlib.suppress(ImportError):  # Windows has no such locks
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            # Whoever had the lock may have moved or deleted the file that was opened here.
            try:
                if not os.path.samestat(os.fstat(file.fileno()), part.stat()):
                    continue
            except FileNotFoundError:
                continue
            try:
                yield file
            finally:
                with contextlib.suppress(OSError):
                    file.flush()
                if part.exists() and not part.stat().st_size:
                    _drop(part)
            return
    yield None


def _complete(
    url: str, target: Path, file: IO[bytes], checked: bool, retries: int, report: Report
) -> None:
    """Attempt until the file is complete, or nothing new has come for too long."""
    best, failures, begun = file.tell(), 0, False
    while True:
        try:
            _attempt(url, target, file, checked, report)
            file.flush()
            return
        except _NetworkError as error:
            new = file.tell() > best
            best, failures, begun = max(best, file.tell()), 0 if new else failures + 1, begun or new
            # Without a network no patience helps, and the user should know at once.
            if failures > retries or (isinstance(error, _UnreachedError) and not begun):
                kept = " What has come is kept, and continued then." if file.tell() else ""
                raise UnobtainableError(
                    f"{target.name} could not be fetched from {url}: {error}. Check the network "
                    f"and try again.{kept} Or fetch it by other means and put it at {target}."
                ) from error
        time.sleep(PAUSE * 2**failures)


def _attempt(url: str, target: Path, file: IO[bytes], checked: bool, report: Report) -> None:
    """Add what the file lacks, or all of it if the server has another by now."""
    have, tag = file.tell(), _tag(target.with_name(f".{target.name}.part"))
    known = tag.read_text() if tag.exists() else ""
    request = urllib.request.Request(url, headers={"User-Agent": "acpo"})
    # Without a tag nobody but the checksum notices that the rest is that of another version.
    if have and (known or checked):
        request.add_header("Range", f"bytes={have}-")
        if known:
            request.add_header("If-Range", known)
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # there is nothing after what we have
            if _range(error)[1] == have:
                return
            _empty(file)
            raise _NetworkError("the server has another version of it by now") from error
        if error.code in _PASSING:
            raise _NetworkError(f"the server answers {error.code} {error.reason}") from error
        raise UnobtainableError(
            f"{target.name} cannot be fetched: {url} answers {error.code} {error.reason}. Fetch it "
            f"from another place and put it at {target}."
        ) from error
    except urllib.error.URLError as error:
        raise _UnreachedError(str(error.reason)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _NetworkError(str(error)) from error
    with response:
        if response.status != 206:
            _empty(file)
        elif _range(response)[0] != have:
            _empty(file)
            raise _NetworkError("the server sent another part than was asked for")
        tag.write_text(_version(response))
        length = response.headers.get("Content-Length", "")
        total = file.tell() + int(length) if length.isdigit() else None
        while piece := _piece(response):
            file.write(piece)
            report(file.tell(), total)
        if total is not None and file.tell() != total:
            raise _NetworkError(f"the connection broke after {file.tell():,} of {total:,} bytes")


def _piece(response: Any) -> bytes:
    try:
        return response.read(_PIECE)
    except (OSError, http.client.HTTPException) as error:
        raise _NetworkError(f"the connection broke ({error})") from error


def _range(response: Any) -> tuple[int | None, int | None]:
    """First byte and size of the whole, as Content-Range tells them."""
    text = response.headers.get("Content-Range", "")
    first, total = re.match(r"bytes (\d+)-", text), re.search(r"/(\d+)$", text)
    return (int(first[1]) if first else None), (int(total[1]) if total else None)


def _version(response: Any) -> str:
    """What tells this version of the file from another; a weak ETag may not be asked for."""
    etag = response.headers.get("ETag", "")
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified", "")


def _refuse_other(url: str, part: Path, kind: str, published: str | None) -> None:
    if published is None or (found := digest(part, kind)) == published.lower():
        return
    _drop(part)
    raise UserError(
        f"What {url} gives is not the published file: its {kind.upper()} is {found}, but "
        f"{published} was expected. It was damaged on the way, or replaced there; it has been "
        "deleted. Try again."
    )


def _tag(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")


def _drop(part: Path) -> None:
    part.unlink(missing_ok=True)
    _tag(part).unlink(missing_ok=True)


def _empty(file: IO[bytes]) -> None:
    file.seek(0)
    file.truncate()


@contextlib.contextmanager
def _bar(name: str, wanted: bool) -> Iterator[Report]:
    if not (wanted and sys.stderr.isatty()):
        yield lambda done, total: None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
