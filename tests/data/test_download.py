"""Downloads, against a real server on loopback that misbehaves on request."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from acpo.data import download
from acpo.data.download import UnobtainableError, fetch
from acpo.errors import UserError

CONTENT = np.random.default_rng(0).bytes(1_000_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Gives one file under every path, and keeps the Range header of each request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.etag, self.modified = CONTENT, '"one"', ""
        self.ranges, self.length = True, True
        self.status = 200
        self.breaks: list[int] = []  # bytes after which each coming answer breaks off
        self.stalls = False  # wait for ever after the first break
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/some/file.npz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers["Range"]
        server.asked.append(wanted)
        if server.status != 200:
            self.send_error(server.status)
            return
        first, status = 0, 200
        version = self.headers["If-Range"]
        if server.ranges and wanted and version in (None, server.etag or server.modified):
            first, status = int(wanted.removeprefix("bytes=").removesuffix("-")), 206
            if first >= len(server.content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(server.content)}")
                self.end_headers()
                return
        body = server.content[first:]
        self.send_response(status)
        for name, value in (("ETag", server.etag), ("Last-Modified", server.modified)):
            if value:
                self.send_header(name, value)
        if server.length:
            self.send_header("Content-Length", str(len(body)))
        if status == 206:
            last, size = len(server.content) - 1, len(server.content)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        if server.breaks:
            body = body[: server.breaks.pop(0)]
        self.wfile.write(body)
        if server.stalls:
            self.wfile.flush()
            time.sleep(60)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "PAUSE", 0.0)
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "folder" / "file.npz"


def left_behind(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def leave_part(server: Server, target: Path, size: int = 300_000) -> Path:
    """What an attempt leaves that broke after so many bytes."""
    server.breaks = [size, 0, 0]
    with pytest.raises(UnobtainableError):
        fetch(server.url, target, retries=1)
    server.asked.clear()
    server.breaks.clear()
    part = target.with_name(".file.npz.part")
    assert part.stat().st_size == size
    return part


@pytest.mark.parametrize("length", [True, False])
def test_a_file_arrives_whole_and_alone(server: Server, target: Path, length: bool) -> None:
    server.length = length
    assert fetch(server.url, target, md5=MD5.upper()) == target
    assert target.read_bytes() == CONTENT
    assert left_behind(target) == ["file.npz"]


def test_a_file_that_is_there_is_left_alone(server: Server, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.write_text("mine")
    fetch(server.url, target)
    assert target.read_text() == "mine"
    assert server.asked == []


def test_a_broken_connection_is_taken_up_where_it_broke(server: Server, target: Path) -> None:
    server.breaks = [400_000, 100_000]
    fetch(server.url, target, md5=MD5, sha256=hashlib.sha256(CONTENT).hexdigest())
    assert target.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=400000-", "bytes=500000-"]


def test_attempts_that_bring_something_new_do_not_count(server: Server, target: Path) -> None:
    server.breaks = [100_000] * 8
    fetch(server.url, target, retries=0)
    assert target.read_bytes() == CONTENT


def test_a_connection_that_always_breaks_ends_in_an_error_and_keeps_what_came(
    server: Server, target: Path
) -> None:
    server.breaks = [200_000] + [0] * 20
    with pytest.raises(UnobtainableError) as caught:
        fetch(server.url, target, retries=2)
    for part in (server.url, str(target), "broke after 200,000 of 1,000,000 bytes", "is kept"):
        assert part in str(caught.value)
    assert len(server.asked) == 4
    assert left_behind(target) == [".file.npz.part", ".file.npz.part.tag"]


def test_without_ranges_a_connection_that_always_breaks_ends_in_an_error(
    server: Server, target: Path
) -> None:
    server.ranges, server.breaks = False, [200_000] * 20
    with pytest.raises(UnobtainableError, match="broke after 200,000"):
        fetch(server.url, target, retries=2)
    assert len(server.asked) == 4


def test_the_part_of_an_earlier_run_is_continued(server: Server, target: Path) -> None:
    leave_part(server, target)
    fetch(server.url, target, md5=MD5)
    assert target.read_bytes() == CONTENT
    assert server.asked == ["bytes=300000-"]
    assert left_behind(target) == ["file.npz"]


def test_a_date_serves_where_there_is_no_strong_etag(server: Server, target: Path) -> None:
    server.etag, server.modified = "", "Sat, 01 Jan 2022 00:00:00 GMT"
    leave_part(server, target)
    fetch(server.url, target)
    assert target.read_bytes() == CONTENT
    assert server.asked == ["bytes=300000-"]


def test_a_server_without_ranges_starts_anew(server: Server, target: Path) -> None:
    leave_part(server, target)
    server.ranges = False
    fetch(server.url, target, md5=MD5)
    assert target.read_bytes() == CONTENT
    assert server.asked == ["bytes=300000-"]


@pytest.mark.parametrize("md5", [True, False])
def test_a_file_that_changed_meanwhile_is_not_spliced(
    server: Server, target: Path, md5: bool
) -> None:
    leave_part(server, target)
    server.content, server.etag = CONTENT[::-1], '"two"'
    fetch(server.url, target, md5=hashlib.md5(server.content).hexdigest() if md5 else None)
    assert target.read_bytes() == CONTENT[::-1]


def test_a_part_that_nothing_vouches_for_is_not_continued(server: Server, target: Path) -> None:
    server.etag = ""
    target.parent.mkdir(parents=True)
    target.with_name(".file.npz.part").write_bytes(CONTENT[:1000])
    server.content = CONTENT[::-1]
    fetch(server.url, target)
    assert target.read_bytes() == CONTENT[::-1]
    assert server.asked == [None]


def test_a_part_that_was_complete_is_taken(server: Server, target: Path) -> None:
    leave_part(server, target).write_bytes(CONTENT)
    fetch(server.url, target, md5=MD5)
    assert target.read_bytes() == CONTENT
    assert server.asked == ["bytes=1000000-"]


def test_a_part_longer_than_the_file_is_thrown_away(server: Server, target: Path) -> None:
    leave_part(server, target).write_bytes(CONTENT + b"more")
    fetch(server.url, target, md5=MD5)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_wrong_checksum_deletes_the_download_and_names_both(
    server: Server, target: Path, kind: str
) -> None:
    expected = "0" * 32
    with pytest.raises(UserError) as caught:
        fetch(server.url, target, **{kind: expected})  # type: ignore[arg-type]
    found = hashlib.new(kind, CONTENT).hexdigest()
    for part in (server.url, kind.upper(), found, expected):
        assert part in str(caught.value)
    assert left_behind(target) == []


def test_an_http_error_is_told_with_its_code_at_once(server: Server, target: Path) -> None:
    server.status = 404
    with pytest.raises(UnobtainableError) as caught:
        fetch(server.url, target)
    for part in ("file.npz", server.url, "404 Not Found", str(target)):
        assert part in str(caught.value)
    assert len(server.asked) == 1
    assert left_behind(target) == []


def test_an_overloaded_server_is_asked_again(server: Server, target: Path) -> None:
    server.status = 503
    with pytest.raises(UnobtainableError, match="503"):
        fetch(server.url, target, retries=2)
    assert len(server.asked) == 3


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_without_a_network_file_address_and_place_are_named_at_once(
    monkeypatch: pytest.MonkeyPatch, target: Path, host: str
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download.time, "sleep", lambda _: pytest.fail("waited"))
    with socket.socket() as unused:  # bound, but nobody listens
        unused.bind(("127.0.0.1", 0))
        url = f"http://{host}:{unused.getsockname()[1]}/file.npz"
        with pytest.raises(UnobtainableError) as caught:
            fetch(url, target)
    for part in (f"file.npz could not be fetched from {url}", f"put it at {target}"):
        assert part in str(caught.value)
    assert left_behind(target) == []


def test_a_folder_that_cannot_be_written_is_told(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"x\.npz could not be written in .*file.*ACPO_HOME"):
        fetch(server.url, tmp_path / "file" / "x.npz")


@contextmanager
def disk_full(above: int) -> Iterator[None]:
    """Files cannot grow beyond so many bytes; the error is the disk's own kind, OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (above, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_told_and_the_download_goes_on_later(server: Server, target: Path) -> None:
    with (
        disk_full(above=500_000),
        pytest.raises(UserError, match=os.strerror(errno.EFBIG)) as caught,
    ):
        fetch(server.url, target)
    assert "Free some space" in str(caught.value)
    assert not target.exists()
    fetch(server.url, target, md5=MD5)
    assert target.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=500000-"]


def test_the_disk_refusing_the_very_first_byte_leaves_nothing(server: Server, target: Path) -> None:
    with disk_full(above=0), pytest.raises(UserError, match="could not be written"):
        fetch(server.url, target)
    assert left_behind(target) == []


def test_threads_that_want_the_same_file_wait_for_each_other(server: Server, target: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        for path in pool.map(lambda _: fetch(server.url, target, md5=MD5), range(8)):
            assert path.read_bytes() == CONTENT
    assert len(server.asked) == 1
    assert left_behind(target) == ["file.npz"]


def test_ctrl_c_leaves_a_part_that_the_next_run_continues(server: Server, target: Path) -> None:
    server.breaks, server.stalls = [300_000], True
    # Ctrl-C is ignored by what a shell starts in the background, and by its children.
    command = "import sys, pathlib, signal; from acpo.data.download import fetch; "
    command += "signal.signal(signal.SIGINT, signal.default_int_handler); "
    command += "fetch(sys.argv[1], pathlib.Path(sys.argv[2]))"
    process = subprocess.Popen(
        [sys.executable, "-c", command, server.url, target], stderr=subprocess.PIPE, text=True
    )
    part = target.with_name(".file.npz.part")
    deadline = time.monotonic() + 20
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=20)[1]
    assert not target.exists()
    server.stalls = False
    size = part.stat().st_size
    fetch(server.url, target, md5=MD5)
    assert server.asked == [None, f"bytes={size}-"]


def test_nothing_is_printed_without_a_terminal(
    server: Server, target: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fetch(server.url, target)
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_the_file_and_its_size(
    server: Server,
    target: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    fetch(server.url, target)
    assert re.search(r"file\.npz.*1\.0/1\.0 MB", capsys.readouterr().err)


def test_home_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("ACPO_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert download.home() == Path("/home/someone/.cache/acpo")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert download.home() == Path("/caches/acpo")
    monkeypatch.setenv("ACPO_HOME", "~/data")
    assert download.home() == Path("/home/someone/data")
