"""URLs, the paths behind them, and how their bytes are fetched: with a file system in memory.

S3 over the wire is in test_remote_s3, archives in test_remote_archives.
"""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqtool.cli import main
from rmqtool.errors import MissingCodecError, NotAStoreError, UnreadableError, UsageError
from rmqtool.read.store import Store
from rmqtool.storage import random_file, remote
from rmqtool.storage.lock import LockState
from rmqtool.storage.random_file import AHEAD, BLOCK, PIECE, CachedFile, RemoteSource
from rmqtool.storage.remote import url_path
from rmqtool.storage.remote_url import is_url, local_path, mask, parse
from rmqtool.storage.source import RateLimiter, open_source
from rmqtool.storage.storage import StoragePath
from rmqtool.write.store_writer import StoreWriter
from tests.support.remote import answers
from tests.support.stores import Library

CASES = ("ok_540_small_propcrc", "ok_497_expired", "bad_cl03_body_crc")
LOG_FILE = f"{0:020}"


class Flaky(MemoryFileSystem):
    """In memory; `trouble` is asked before every read, and may raise."""

    protocol = "flaky"
    store: dict[str, Any] = {}  # noqa: RUF012  as MemoryFileSystem has it
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    reads: list[tuple[str, int, int]] = []  # noqa: RUF012
    trouble: Any = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        found: str = super()._strip_protocol(path.removeprefix("flaky://"))
        return found

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        type(self).reads.append((path, start, end))
        if type(self).trouble is not None:
            found = type(self).trouble(path, start, end)
            if found is not None:
                return bytes(found)
        data: bytes = super().cat_file(path, start=start, end=end, **kwargs)
        return data


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Flaky]]:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    monkeypatch.setattr(remote, "_WAIT_SECONDS", 0.001)
    Flaky.store, Flaky.pseudo_dirs, Flaky.reads, Flaky.trouble = {}, [""], [], None
    yield Flaky
    Flaky.store, Flaky.trouble = {}, None


def put(system: Any, folder: Path, name: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            system.pipe_file(f"/{name}/{path.relative_to(folder)}", path.read_bytes())


# -- URLs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown", "typed", "options"),
    [
        ("s3://bucket/store", "s3://bucket/store", "s3://bucket/store", {}),
        ("S3A://bucket//store/?region=eu&endpoint=http%3A%2F%2Fh%3A1", "s3://bucket/store",
         "s3://bucket/store?endpoint=http://h:1&region=eu", {"region": "eu", "endpoint": "http://h:1"}),
        ("s3://AKIAKEY:se%2Fcret@bucket", "s3://bucket", "s3://***@bucket", {}),
        ("webhdfs://me@name:9870/data/store?token=abcd", "webhdfs://name:9870/data/store",
         "webhdfs://***@name:9870/data/store?token=***", {"token": "abcd"}),
        ("https://u:pw@host/s.tar?sig=a=b&c=d", "https://host/s.tar", "https://***@host/s.tar?***",
         {"query": "sig=a=b&c=d"}),
        ("s3://b/s?endpoint=http://u:pw@h%26x", "s3://b/s", "s3://b/s?endpoint=http://***@h%26x",
         {"endpoint": "http://u:pw@h&x"}),
    ],
)  # fmt: skip
def test_a_url_is_taken_apart(text: str, shown: str, typed: str, options: dict[str, str]) -> None:
    url = parse(text)
    assert str(url) == shown
    assert url.typed(url.inner) == typed
    assert dict(url.options) == options
    assert is_url(text)
    for secret in ("AKIAKEY", "cret", "abcd", "pw@", "a=b"):
        assert secret not in repr(url) + str(url) + typed


@pytest.mark.parametrize(
    "text", ["s3://", "s3:///", "s3://b/../c", "zip://a::s3://b", "no url", "s3://b/\0", "://x"]
)
def test_what_is_no_url_of_a_store(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


def test_options_of_the_program_win(tmp_path: Path) -> None:
    url = parse("s3://b/s?region=a", {"region": "b", "client_kwargs": {"endpoint_url": "http://x"}})
    assert dict(url.options) == {"region": "b", "client_kwargs": (("endpoint_url", "http://x"),)}
    with pytest.raises(UsageError, match="go with a URL"):
        Store.open(tmp_path, storage_options={"key": "x"})


def test_nothing_is_written_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (StoreWriter.create, StoreWriter.open):
        with pytest.raises(UsageError, match=r"not at s3://bucket/new"):
            call("s3://bucket/new")
        with pytest.raises(UsageError, match=r"not at s3://bucket/new"):
            call(url_path("s3://bucket/new"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="values of storage options"):
        Store.open("s3://bucket/new", storage_options={"key": ["a"]})


def test_file_urls_are_local_paths(cases: Library) -> None:
    assert local_path("file:///a%20b/c") == "/a b/c"
    assert local_path("FILE:/a%20b") == "/a%20b"
    assert local_path("s3://b") is None
    with Store.open(f"file:{cases.path(CASES[0])}") as store:
        assert store.is_local
    with Store.open(f"file://{cases.path(CASES[0])}") as store:
        assert store.is_local
        assert store.layout.root == cases.path(CASES[0])
    for text in ("file://host/a", "file:///a?b=c", "file://"):
        with pytest.raises(UsageError):
            Store.open(text)


SECRETS = st.text("abcdefghijklmnopXYZ0123456789+/%-", min_size=8, max_size=20)


@given(key=SECRETS, secret=SECRETS, more=SECRETS)
def test_no_secret_is_shown(key: str, secret: str, more: str) -> None:
    key, secret, more = f"KEY{key}", f"SECRET{secret}", f"MORE{more}"
    url = parse(f"s3://{key.replace('/', '')}:x@bucket/store", {"secret": secret, "nested": {"token": more}})
    text = f"failed for {secret} and {more} at http://{key}:{secret}@host/?x-amz-signature={more}&a=b"
    masked = url.mask(text)
    assert secret not in masked
    assert more not in masked
    assert "a=b" in masked


@pytest.mark.parametrize(
    "text",
    ["http://user:S3CRET@h/", "http://h/?delegation=S3CRET&op=OPEN", "x?X-Amz-Credential=S3CRET",
     "password=S3CRET", "https://h/c?sv=1&sig=S3CRET"],
)  # fmt: skip
def test_what_looks_like_a_secret_is_masked(text: str) -> None:
    assert "S3CRET" not in mask(text)
    assert "S3CRET" not in parse("s3://bucket/store").mask(text)


# -- paths -----------------------------------------------------------------------------------------


def test_a_path_is_a_path(flaky: type[Flaky]) -> None:
    flaky().pipe_file("/store/commitlog/a", b"abc")
    root = url_path("flaky://store")
    path = root / "commitlog" / "a"
    assert str(path) == "flaky://store/commitlog/a" == path.as_posix()
    assert (path.name, path.parent, path.parents[1]) == ("a", root / "commitlog", root)
    assert path.relative_to(root).as_posix() == "commitlog/a"
    assert path.is_relative_to(root)
    assert not root.is_relative_to(path)
    assert path.with_name("b") == root / "commitlog/b"
    assert path == url_path("flaky://store/commitlog/a")
    assert path != url_path("flaky://store/commitlog/a", {"other": "options"})
    assert len({path, root / "commitlog/a"}) == 1
    assert sorted([path, root]) == [root, path]
    assert root.is_dir()
    assert path.is_file()
    assert path.stat().st_size == 3
    assert not (root / "x").exists()
    assert path.absolute() == path.resolve(strict=True) == path
    assert [each.name for each in (root / "commitlog").iterdir()] == ["a"]
    assert path.read_bytes() == b"abc"
    assert path.read_text() == "abc"
    assert path.open("rb").read() == b"abc"
    assert path != Path(path)


def test_the_systems_calls_refuse_it(tmp_path: Path) -> None:
    path = url_path("flaky://store/x")
    for call in (open, lambda each: Path(tmp_path, each).open()):
        with pytest.raises(OSError, match=r"not a plain file|No such file"):
            call(path)
    with pytest.raises(OSError, match="nothing is written"):
        path.open("wb")


def test_a_path_is_pickled_with_its_place() -> None:
    path = url_path("s3://KEYKEY:SECRETSECRET@bucket/store?region=eu") / "commitlog"
    data = pickle.dumps(path)
    assert pickle.loads(data) == path
    assert pickle.loads(pickle.dumps(path.relative_to(path.parent))).parts == ("commitlog",)
    code = (
        "import pickle, sys; path = pickle.loads(sys.stdin.buffer.read());"
        "print(path, dict(path.storage.recipe()[1][0].options))"
    )
    run = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert run.stdout.decode() == "s3://bucket/store/commitlog {'region': 'eu'}\n"
    assert "SECRET" not in repr(path) + str(path)


# -- bytes -----------------------------------------------------------------------------------------


class Counted:
    """A far file that counts what is asked of it."""

    is_near = False

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)
        self.asked: list[tuple[int, int]] = []
        self.bad: tuple[int, int] | None = None
        self.most = self._now = 0
        self._lock = threading.Lock()

    def read(self, offset: int, length: int) -> bytes:
        with self._lock:
            self.asked.append((offset, length))
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            if self.bad is not None and self.bad[0] < offset + length and offset < self.bad[1]:
                raise OSError(5, "bad")
            return self.data[offset : offset + length]
        finally:
            with self._lock:
                self._now -= 1

    def data_from(self, offset: int) -> int:
        return offset

    def hole_from(self, offset: int) -> int:
        return self.size

    def close(self) -> None:
        pass


DATA = bytes(range(256)) * (11 * PIECE // 256) + b"the end"


def test_windows_of_a_scan_are_fetched_ahead_and_once() -> None:
    file = Counted(DATA)
    source = RemoteSource(file, "x")
    step = PIECE * 3 // 2
    for offset in range(0, len(DATA), step):
        window = source.window(offset, step + 1000)  # windows overlap
        assert window.tobytes() == DATA[offset : offset + step + 1000]
        assert not window.flags.writeable
        assert len(source._pieces) <= 3 + AHEAD
    assert sorted(file.asked) == [
        (start, min(PIECE, len(DATA) - start)) for start in range(0, len(DATA), PIECE)
    ]
    assert 1 <= file.most <= AHEAD
    source.close()


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, len(DATA) + 10), st.integers(0, 3 * PIECE)), max_size=8))
def test_any_windows_and_reads_are_the_bytes(places: list[tuple[int, int]]) -> None:
    source = RemoteSource(Counted(DATA), "x")
    for number, (offset, length) in enumerate(places):
        expected = DATA[offset : offset + length]
        found = source.window(offset, length).tobytes() if number % 3 else source.read(offset, length)
        assert found == expected
    assert source.unreadable == []
    source.close()


def test_small_reads_take_blocks_and_keep_them() -> None:
    file = Counted(DATA)
    cached = CachedFile(file)
    for offset in (5, 17, BLOCK - 3, 100):
        assert cached.read(offset, 10) == DATA[offset : offset + 10]
    assert file.asked == [(0, BLOCK), (BLOCK, BLOCK)]
    cached.read(BLOCK - 1, 3 * BLOCK)
    assert file.asked[2:] == [(2 * BLOCK, 2 * BLOCK)]
    for number in range(100):
        cached.read(number * BLOCK, 1)
    assert len(cached._blocks) <= random_file.BLOCKS
    assert cached.read(len(DATA) - 3, 10) == b"end"
    assert cached.read(len(DATA), 10) == b""


def test_a_piece_that_cannot_be_read_is_zeros_and_told() -> None:
    file = Counted(DATA)
    file.bad = (2 * PIECE + 5, 2 * PIECE + 6)
    source = RemoteSource(file, "x")
    for offset in range(0, 4 * PIECE, 2 * PIECE):
        window = source.window(offset, 2 * PIECE).tobytes()
    assert source.unreadable == [(2 * PIECE, 3 * PIECE)]
    assert window == bytes(PIECE) + DATA[3 * PIECE : 4 * PIECE]
    assert source.read(2 * PIECE + 4, 4) == bytes(4)
    assert source.unreadable == [(2 * PIECE, 3 * PIECE)]
    source.close()


def test_the_rate_is_bounded() -> None:
    taken: list[int] = []
    limiter = RateLimiter(1e12)
    limiter.take = taken.append  # type: ignore[method-assign]
    source = RemoteSource(Counted(DATA), "x", limiter)
    source.window(0, PIECE)
    source.read(0, 100)
    assert taken == [PIECE, 100]


# -- stores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_store_behind_a_url_answers_as_the_folder(name: str, cases: Library, flaky: type[Flaky]) -> None:
    put(flaky(), cases.path(name), "a/store")
    assert answers("flaky://a/store") == answers(cases.path(name))


def test_what_is_known_of_such_a_store(cases: Library, flaky: type[Flaky]) -> None:
    put(flaky(), cases.path(CASES[0]), "store")
    with Store.open("flaky://store") as store:
        assert not store.is_local
        assert store.holder == LockState("unknown", reason="in flaky no lock can be asked for")
        assert not store.live
        again = pickle.loads(pickle.dumps(store.location)).open()
        assert again.layout.commit_log == store.layout.commit_log
        assert str(store.location) == "flaky://store"
    with Store.open(f"flaky://store/commitlog/{LOG_FILE}") as single:
        assert single.layout.kind == "commitlog"
    with Store.open("flaky://store/commitlog") as folder:
        assert folder.layout.kind == "commitlog"
        assert folder.layout.place == url_path("flaky://store/commitlog")


def test_a_local_location_opens_the_same_store(cases: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    root = cases.path(CASES[0])
    monkeypatch.chdir(root.parent)
    log = [f"{root.name}/commitlog"]
    with Store.open(root.name, commitlog_paths=log, file_sizes={"index_slots": 77}) as store:
        location = pickle.loads(pickle.dumps(store.location))
    monkeypatch.chdir("/")
    with location.open() as store:
        assert store.layout.root == root
        assert store.layout.index_slots == 77
        assert store.layout.commit_log_folders == (root / "commitlog",)


def test_a_request_is_tried_again(cases: Library, flaky: type[Flaky]) -> None:
    put(flaky(), cases.path(CASES[0]), "store")
    failed: set[tuple[str, int]] = set()

    def trouble(path: str, start: int, end: int) -> bytes | None:
        if (path, start) in failed:
            return None
        failed.add((path, start))
        if len(failed) % 2:
            raise TimeoutError("no answer")
        return b"short"

    expected = answers(cases.path(CASES[0]))
    flaky.trouble = staticmethod(trouble)
    assert answers("flaky://store") == expected
    assert failed


def test_a_file_that_fails_for_good_is_told(
    cases: Library, flaky: type[Flaky], capfd: pytest.CaptureFixture[str]
) -> None:
    put(flaky(), cases.path(CASES[0]), "store")

    def trouble(path: str, start: int, end: int) -> None:
        if "/commitlog/" in path:
            raise OSError(5, "the disk of host?token=S3CRET is gone")

    flaky.trouble = staticmethod(trouble)
    assert main(["verify", "flaky://store?password=S3CRET", "--format", "jsonl"]) == 3
    captured = capfd.readouterr()
    assert '"problem":"CL12"' in captured.out
    assert len([read for read in flaky.reads if "/commitlog/" in read[0]]) < 60
    assert "S3CRET" not in captured.out + captured.err


@pytest.mark.parametrize(
    "error", [ConnectionError("S3CRET is wrong"), PermissionError("x"), RuntimeError("y")]
)
def test_a_place_that_does_not_answer(
    error: Exception, flaky: type[Flaky], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def info(self: Flaky, path: str, **_: Any) -> None:
        raise error

    monkeypatch.setattr(Flaky, "info", info)
    with pytest.raises(UnreadableError):
        Store.open("flaky://store?password=S3CRET")
    assert main(["info", "flaky://store?password=S3CRET"]) == 3
    lines = capfd.readouterr().err.splitlines()
    assert re.fullmatch(r"rmqtool: cannot read flaky://store: .+", lines[0])
    assert "S3CRET" not in "".join(lines)


def test_nothing_there(flaky: type[Flaky]) -> None:
    flaky().pipe_file("/other/file", b"x")
    with pytest.raises(NotAStoreError, match="no such file"):
        Store.open("flaky://nothing")
    with pytest.raises(NotAStoreError):
        Store.open("flaky://other")
    with pytest.raises(NotAStoreError):
        Store.open("flaky://other/file")


def test_folders_of_queues_are_listed_once(
    cases: Library, flaky: type[Flaky], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(flaky(), cases.path(CASES[0]), "store")
    listed: list[str] = []
    ls = MemoryFileSystem.ls

    def counted(self: Flaky, path: str, detail: bool = True, **more: Any) -> Any:
        listed.append(path)
        return ls(self, path, detail, **more)

    monkeypatch.setattr(Flaky, "ls", counted)
    with Store.open("flaky://store") as store:
        folders = {str(queue.folder) for queue in store.layout.consume_queues.values()}
    assert folders
    below = [path for path in listed if "/consumequeue" in path]
    assert len(below) == len(set(below))


class NameNode(BaseHTTPRequestHandler):
    """As much of WebHDFS as is asked for, over a folder: one server is name node and data node."""

    root: Path
    fails: int = 0
    operations: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        name = unquote(url.path).removeprefix("/webhdfs/v1").lstrip("/")
        path = type(self).root / name
        type(self).operations.append(asked["op"])
        if type(self).fails:
            type(self).fails -= 1
            self._send(503, b"busy")
        elif not path.exists():
            text = {"RemoteException": {"exception": "FileNotFoundException", "message": "no such file"}}
            self._send(404, json.dumps(text).encode())
        elif asked["op"] == "GETFILESTATUS":
            self._send(200, json.dumps({"FileStatus": self._status(path, "")}).encode())
        elif asked["op"] == "LISTSTATUS":
            found = [self._status(each, each.name) for each in sorted(path.iterdir())]
            self._send(200, json.dumps({"FileStatuses": {"FileStatus": found}}).encode())
        elif "data" not in asked:
            host = self.headers["Host"]
            self.send_response(307)
            self.send_header("Location", f"http://{host}{self.path}&data=1")
            self.end_headers()
        else:
            start = int(asked.get("offset", 0))
            self._send(200, path.read_bytes()[start : start + int(asked["length"])])

    def _status(self, path: Path, name: str) -> dict[str, Any]:
        kind = "DIRECTORY" if path.is_dir() else "FILE"
        size = 0 if path.is_dir() else path.stat().st_size
        return {"pathSuffix": name, "type": kind, "length": size, "modificationTime": 1_700_000_000_000}

    def _send(self, code: int, data: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nothing is told."""


def test_webhdfs(cases: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """The protocol as fsspec speaks it; a real HDFS is in the interop lab."""
    monkeypatch.setattr(remote, "_WAIT_SECONDS", 0.001)
    root = cases.path(CASES[0])
    NameNode.root, NameNode.operations, NameNode.fails = root.parent, [], 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), NameNode)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        place = f"webhdfs://me@127.0.0.1:{server.server_port}/{root.name}"
        assert answers(place) == answers(root)
        NameNode.fails = 2
        with Store.open(place) as store:
            assert NameNode.fails == 0
            assert store.layout.place.stat().st_mtime == 1_700_000_000
        with pytest.raises(NotAStoreError, match="no such file"):
            Store.open(f"{place}/nothing")
    finally:
        server.shutdown()
        server.server_close()


# -- the command line ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["append"], ["recover"], ["rebuild"], ["expire"], ["deliver"]])
@pytest.mark.parametrize("place", ["s3://KEYKEY:S3CRET@bucket/store", "store.tar"])
def test_what_changes_stores_wants_a_local_one(
    command: list[str], place: str, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("store.tar").write_bytes(b"x")
    assert main([*command, place]) == 2
    captured = capfd.readouterr().err
    assert "a folder on this machine" in captured
    assert "S3CRET" not in captured


def test_unknown_protocols_and_libraries(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", "nosuch://host/store"]) == 2
    assert "nosuch:// cannot be used" in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingCodecError) as found:
        Store.open("webhdfs://host:1/other")
    assert found.value.hint == "pip install 'rmqtool[remote]'"
    assert main(["info", "webhdfs://host:1/another"]) == 3
    assert "pip install 'rmqtool[remote]'" in capfd.readouterr().err


def test_light_commands_load_no_library_of_places(cases: Library) -> None:
    """A local store costs nothing of this: fsspec alone takes longer than `info`."""
    code = (
        "import sys; from rmqtool.cli import main; main(['info', sys.argv[1], '--format', 'json']);"
        " heavy = ('fsspec', 'pyarrow', 'tarfile', 'concurrent', 'zstandard', 'tempfile');"
        " ours = ('rmqtool.storage.remote', 'rmqtool.storage.archive');"
        " found = (name for name in sys.modules if name.split('.')[0] in heavy or name in ours);"
        " print(*found, file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code, cases.path(CASES[0])], capture_output=True, check=True)
    assert run.stderr.split() == []


def test_sources_of_both_kinds_are_the_same(cases: Library, flaky: type[Flaky]) -> None:
    put(flaky(), cases.path(CASES[0]), "store")
    local = open_source(cases.path(CASES[0]) / "commitlog" / LOG_FILE)
    far = open_source(url_path(f"flaky://store/commitlog/{LOG_FILE}"))
    assert isinstance(url_path("flaky://store"), StoragePath)
    assert local.size == far.size
    for start in range(0, local.size, 300_000):
        assert bytes(local.window(start, 310_000)) == bytes(far.window(start, 310_000))
    local.close()
    far.close()
