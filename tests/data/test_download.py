"""`get` against a real server on this machine, with a made-up table of sources."""

from __future__ import annotations

import gzip
import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedspend.data import DownloadFailed, Source, SourceFile, find, get, status
from fedspend.data.download import mismatch
from fedspend.data.sources import SOURCES, cache_folder, require
from fedspend.errors import InvalidInput

CONTENT = {"images": b"pixels " * 5000, "labels": b"0123456789" * 20}


class Server:
    """Serves `files`; `truncate` announces the full length and sends less; `silent` leaves the
    length out.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.truncate: set[str] = set()
        self.silent = False
        self.requests: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.removeprefix("/data/")
                outer.requests.append(name)
                body = outer.files.get(name)
                if body is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                if not outer.silent:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if name in outer.truncate else body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/data"
        self.thread = threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self.thread.start()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    server.files = {
        "images.gz": gzip.compress(CONTENT["images"], mtime=0),
        "labels": CONTENT["labels"],
    }
    yield server
    server.http.shutdown()
    server.thread.join()
    server.http.server_close()


def described(name: str, content: bytes, archive: bool = False) -> SourceFile:
    return SourceFile(name, hashlib.sha256(content).hexdigest(), len(content), archive)


@pytest.fixture
def sources(server) -> dict[str, Source]:
    files = (described("images.gz", CONTENT["images"]), described("labels", CONTENT["labels"]))
    upper = described("writers", b"who wrote it")
    return {
        "tiny": Source("tiny", "two files", "none", server.url, files),
        "tiny-writers": Source(
            "tiny-writers", "one more", "none", server.url, (upper,), needs=("tiny",)
        ),
    }


def left_behind() -> list[str]:
    return sorted(
        str(path.relative_to(cache_folder()))
        for path in cache_folder().rglob("*")
        if path.is_file()
    )


def test_files_arrive_checked_and_are_found(server, sources):
    seen: list[tuple[str, int, int | None]] = []
    folder = get("tiny", sources=sources, progress=lambda *step: seen.append(step))
    assert folder == cache_folder() / "tiny" == find("tiny", sources=sources)
    assert left_behind() == ["tiny/images.gz", "tiny/labels"]
    assert seen[-1] == ("labels", 200, 200)
    server.requests.clear()
    assert get("tiny", sources=sources) == folder
    assert server.requests == []


def test_what_a_data_set_needs_comes_along(server, sources):
    server.files["writers"] = b"who wrote it"
    get("tiny-writers", sources=sources)
    assert left_behind() == ["tiny-writers/writers", "tiny/images.gz", "tiny/labels"]


def test_another_address(server, sources):
    elsewhere = {"tiny": Source("tiny", "", "", "http://127.0.0.1:1/gone", sources["tiny"].files)}
    get("tiny", sources=elsewhere, base_url=server.url + "/")
    assert len(left_behind()) == 2


def test_a_repacked_gzip_has_the_same_content(server, sources):
    server.files["images.gz"] = gzip.compress(CONTENT["images"], compresslevel=1, mtime=99)
    get("tiny", sources=sources)
    assert find("tiny", sources=sources)


def test_without_a_stated_length(server, sources):
    server.silent = True
    get("tiny", sources=sources)
    assert find("tiny", sources=sources)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (gzip.compress(b"pixelz " * 5000, mtime=0), "its SHA-256 is [0-9a-f]{64} and should be"),
        (gzip.compress(CONTENT["images"] + b"x", mtime=0), "it is longer than 35000 bytes"),
        (gzip.compress(CONTENT["images"][1:], mtime=0), "it is shorter than 35000 bytes"),
        (gzip.compress(CONTENT["images"], mtime=0)[:-20], "it is damaged"),
        (b"\x1f\x8b" + bytes(100), "it is damaged"),
        (b"", "it is shorter"),
        (b"<html>moved</html>", "it is shorter"),
        (bytes(3_000_000), "is longer than the expected 35000 bytes"),
        (gzip.compress(bytes(50_000_000), mtime=0), "it is longer than 35000 bytes"),
    ],
)
def test_a_wrong_file_never_counts(server, sources, body, message):
    server.files["images.gz"] = body
    with pytest.raises(DownloadFailed, match=message) as failure:
        get("tiny", sources=sources)
    assert f"{server.url}/images.gz" in str(failure.value)
    assert failure.value.exit_code == 3
    assert left_behind() == []
    assert find("tiny", sources=sources) is None


def test_a_transfer_that_breaks_off(server, sources):
    server.truncate = {"labels"}
    with pytest.raises(DownloadFailed, match="broke off after 100 of 200 bytes"):
        get("tiny", sources=sources)
    assert left_behind() == ["tiny/images.gz"]
    assert find("tiny", sources=sources) is None
    server.truncate, server.silent = {"labels"}, True
    with pytest.raises(DownloadFailed, match="it is shorter than 200 bytes"):
        get("tiny", sources=sources)
    server.truncate = set()
    server.requests.clear()
    get("tiny", sources=sources)
    assert server.requests == ["labels"]


def test_a_file_that_is_not_there(server, sources):
    del server.files["labels"]
    with pytest.raises(DownloadFailed, match=r"labels answered 404 .*--url"):
        get("tiny", sources=sources)


def test_no_network(sources):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        # stays bound, and nobody listens: no other process can take the port meanwhile
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(DownloadFailed, match=r"cannot be reached: .*refused.*the network"):
            get("tiny", sources=sources, base_url=url)


def test_a_server_that_says_nothing(sources):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        with pytest.raises(DownloadFailed, match="cannot be reached: timed out"):
            get(
                "tiny",
                sources=sources,
                base_url=f"http://127.0.0.1:{deaf.getsockname()[1]}",
                timeout=0.2,
            )


def test_a_damaged_file_in_the_cache_is_fetched_again(server, sources):
    folder = get("tiny", sources=sources)
    (folder / "labels").write_bytes(b"0123")
    server.requests.clear()
    get("tiny", sources=sources)
    assert server.requests == ["labels"]
    assert (folder / "labels").read_bytes() == CONTENT["labels"]


def test_a_cache_that_cannot_be_written(sources, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDSPEND_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadFailed, match=r"cannot write to .*FEDSPEND_CACHE"):
        get("tiny", sources=sources)


def test_an_archive_is_checked_as_it_is(tmp_path):
    packed = gzip.compress(b"inner", mtime=0)
    path = tmp_path / "a.tar.gz"
    path.write_bytes(packed)
    assert mismatch(path, described("a.tar.gz", packed, archive=True)) is None
    assert mismatch(path, described("a.tar.gz", b"inner", archive=True)) is not None


@pytest.mark.parametrize(
    ("name", "url", "message"),
    [
        ("tinny", None, "unknown data set 'tinny'; did you mean 'tiny'?"),
        ("digits", None, "data set 'digits' needs no download"),
        ("tiny", "file:///etc", "url must begin with http:// or https://"),
        ("tiny", "", "url must begin with http"),
    ],
)
def test_bad_requests(sources, name, url, message):
    with pytest.raises(InvalidInput, match=message):
        get(name, sources=sources, base_url=url)


# --- where files are ------------------------------------------------------------------------------


def fill(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "images").touch()
    (folder / "labels.gz").touch()
    return folder


def test_the_order_of_places(sources, tmp_path, monkeypatch):
    monkeypatch.setattr("fedspend.data.sources.DEBIAN", tmp_path / "debian")
    assert find("tiny", sources=sources) is None
    debian = fill(tmp_path / "debian" / "tiny")
    assert find("tiny", sources=sources) == debian
    cache = fill(cache_folder() / "tiny")
    assert find("tiny", sources=sources) == cache
    monkeypatch.setenv("FEDSPEND_DATA", str(tmp_path / "mine"))
    assert find("tiny", sources=sources) == cache
    mine = fill(tmp_path / "mine" / "tiny")
    assert find("tiny", sources=sources) == mine
    (mine / "images").unlink()
    assert find("tiny", sources=sources) == cache


def test_missing_files_name_the_places(sources, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSPEND_DATA", str(tmp_path / "mine"))
    with pytest.raises(
        InvalidInput, match=f"looked in {tmp_path / 'mine' / 'tiny'}, {cache_folder() / 'tiny'}"
    ):
        require("tiny", sources=sources)


def test_status_says_what_is_where(sources, server):
    server.files["writers"] = b"who wrote it"
    before = {line.name: line for line in status(sources)}
    assert before["digits"].ready
    assert before["synthetic"].ready
    assert not before["tiny"].ready
    assert before["tiny"].hint == "fedspend data get tiny"
    fill(cache_folder() / "tiny-writers")
    (cache_folder() / "tiny-writers" / "writers").touch()
    assert not {line.name: line for line in status(sources)}["tiny-writers"].ready
    get("tiny", sources=sources)
    after = {line.name: line for line in status(sources)}
    assert after["tiny"].where == cache_folder() / "tiny"
    assert after["tiny-writers"].ready


def test_the_real_table_is_well_formed():
    assert set(SOURCES) == {"mnist", "fashion-mnist", "heart", "mnist-writers", "adult", "cifar10"}
    for name, source in SOURCES.items():
        assert source.name == name
        assert set(source.needs) <= set(SOURCES)
        assert source.base_url.startswith("http")
        for file in source.files:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert file.length > 0


@pytest.mark.parametrize(
    ("platform", "variables", "end"),
    [
        ("linux", {}, ".cache/fedspend"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/fedspend"),
        ("darwin", {}, "Library/Caches/fedspend"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/fedspend"),
        ("linux", {"FEDSPEND_CACHE": "/given"}, "/given"),
    ],
)
def test_the_cache_of_each_platform(monkeypatch, platform, variables, end):
    for name in ("FEDSPEND_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", platform)
    assert cache_folder().as_posix().endswith(end)
