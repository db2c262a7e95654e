"""Exports over the wire: to an S3 server, and to a file system of fsspec."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyarrow import fs, parquet

from rmqtool.cli import main
from rmqtool.errors import UnwritableError
from rmqtool.report.export.outputs import OutputTarget
from tests import ROOT
from tests.support.exports import Ran, append_numbered, ran, small_store
from tests.support.programs import PATIENCE_S
from tests.support.remote import KEY, SECRET, s3_server

Run = Callable[..., Ran]
PROGRAM = """
import os, sys
import pyarrow as pa
from rmqtool.report.export.outputs import OutputTarget
from rmqtool.report.export.writers import WriterForm, new_writer
place, name = OutputTarget.of_file(sys.argv[1])
draft = place.begin(name)
if sys.argv[2] == "raise":
    writer = new_writer(draft, WriterForm("records", pa.schema([]), "gzip", 1))
    draft.compressing.write(os.urandom(6 << 20))
    draft.abort()
    del writer
    raise SystemExit(7)
draft.stream.write(b"x" * (6 << 20))
draft.abort()
"""


class Bucket:
    """A bucket of the server, for URLs and for looks into it."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.endpoint = endpoint
        self.name = name
        self.system = fs.S3FileSystem(
            endpoint_override=endpoint.removeprefix("http://"), scheme="http", access_key=KEY,
            secret_key=SECRET, region="us-east-1", allow_bucket_creation=True,
            connect_timeout=PATIENCE_S, request_timeout=PATIENCE_S,
        )  # fmt: skip
        self.system.create_dir(name)

    def url(self, path: str) -> str:
        return f"s3://{KEY}:{SECRET}@{self.name}/{path}?endpoint={self.endpoint}&region=us-east-1"

    def names(self) -> list[str]:
        found = self.system.get_file_info(fs.FileSelector(self.name, recursive=True))
        return sorted(each.path.partition("/")[2] for each in found if each.type == fs.FileType.File)

    def read(self, name: str) -> bytes:
        with self.system.open_input_stream(f"{self.name}/{name}", compression=None) as file:
            data: bytes = file.read()
        return data


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as endpoint:
        yield endpoint


@pytest.fixture
def bucket(endpoint: str, request: pytest.FixtureRequest) -> Bucket:
    return Bucket(endpoint, request.node.name.replace("_", "-")[:60].strip("-"))


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs `export`; neither output has a secret."""

    def run(store: Path | str, *arguments: object) -> Ran:
        code = main(["export", str(store), *map(str, arguments), "--format", "json"])
        captured = capfdbinary.readouterr()
        for secret in (KEY, SECRET):
            assert secret.encode() not in captured.out + captured.err
        return ran(code, captured.out, captured.err)

    return run


def test_one_object(bucket: Bucket, run: Run, tmp_path: Path) -> None:
    """The same bytes as in a file here; one that is there stays."""
    store = small_store(tmp_path / "s", 30)
    run(store, "--output", tmp_path / "a.parquet")
    found = run(store, "--output", bucket.url("x/a.parquet"))
    assert (found.code, bucket.names()) == (0, ["x/a.parquet"])
    assert found.out["files"][0]["file"] == f"s3://{bucket.name}/x/a.parquet"
    assert bucket.read("x/a.parquet") == (tmp_path / "a.parquet").read_bytes()
    assert found.out["files"][0]["bytes"] == (tmp_path / "a.parquet").stat().st_size
    assert run(store, "--output", bucket.url("x/a.parquet")).code == 4
    assert run(store, "--output", bucket.url("x/a.parquet"), "--force", "--limit", 3).code == 0
    table = parquet.read_table(f"{bucket.name}/x/a.parquet", filesystem=bucket.system)
    assert len(table) == 3


def test_a_compressed_object(bucket: Bucket, run: Run, tmp_path: Path) -> None:
    """Its name does not have it compressed a second time."""
    store = small_store(tmp_path / "s", 30)
    for suffix in ("gz", "zst"):
        assert run(store, "--output", tmp_path / f"a.jsonl.{suffix}").code == 0
        assert run(store, "--output", bucket.url(f"a.jsonl.{suffix}")).code == 0
        assert bucket.read(f"a.jsonl.{suffix}") == (tmp_path / f"a.jsonl.{suffix}").read_bytes()


def test_nothing_is_written_into_a_store_behind_a_url(bucket: Bucket, run: Run, tmp_path: Path) -> None:
    """However the URL of the file is spelled; the log alone stands for its store."""
    store = small_store(tmp_path / "s", 3)
    fs.copy_files(str(store), f"{bucket.name}/st", destination_filesystem=bucket.system)
    before = bucket.names()
    for opened in ("st", "st/commitlog"):
        for place in ("st/a.jsonl", "st//commitlog/a.jsonl", "st/index/new/", "st/a/"):
            found = run(bucket.url(opened), "--output", bucket.url(place), "--output-format", "jsonl")
            assert found.code == 4 and "would lie in the store" in found.err, (opened, place)
    also = bucket.url("st/a.jsonl").replace("s3://", "s3a://")
    assert run(bucket.url("st"), "--output", also).code == 4
    assert bucket.names() == before
    assert run(bucket.url("st"), "--output", bucket.url("st.jsonl")).code == 0


def test_credentials_of_the_environment(
    bucket: Bucket, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": SECRET, "REGION": "us-east-1"}
    for name, value in (given | {"ENDPOINT_URL": bucket.endpoint}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    assert run(small_store(tmp_path / "s", 3), "--output", f"s3://{bucket.name}/a.csv").code == 0
    assert len(bucket.read("a.csv").splitlines()) == 4


def test_partitions_and_a_cursor(bucket: Bucket, run: Run, tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", 20)
    append_numbered(store, 20, 40, "%RETRY%g")
    arguments = ("--output", bucket.url("lake/"), "--output-format", "parquet",
                 "--partition-by", "topic,date", "--cursor-file", tmp_path / "c")  # fmt: skip
    assert run(store, *arguments).out["messages"] == 40
    assert SECRET not in (tmp_path / "c").read_text("utf-8")
    append_numbered(store, 40, 50)
    assert run(store, *arguments).out["messages"] == 10
    table = parquet.read_table(f"{bucket.name}/lake", filesystem=bucket.system)
    assert sorted(int(keys[0][1:]) for keys in table.column("keys").to_pylist()) == list(range(50))
    assert set(table.column("topic").to_pylist()) == {"T", "%RETRY%g"}


def test_one_object_and_a_cursor(bucket: Bucket, run: Run, tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", 4)
    for number, count in enumerate((4, 0)):
        found = run(store, "--output", bucket.url(f"{number}.csv"), "--cursor-file", tmp_path / "c")
        assert (found.code, found.out["messages"]) == (0, count)


@pytest.mark.parametrize("how", ["return", "raise"])
def test_an_upload_that_is_given_up_never_shows(bucket: Bucket, how: str) -> None:
    """Neither at once nor when the process ends."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, bucket.url("a.csv"), how]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == (7 if how == "raise" else 0), done.stderr.decode()
    assert bucket.names() == []


def test_an_error_names_the_place_without_secrets(bucket: Bucket, run: Run, tmp_path: Path) -> None:
    store = small_store(tmp_path / "s", 2)
    url = bucket.url("a.csv").replace(bucket.name, "no-such-bucket")
    found = run(store, "--output", url)
    assert (found.code, "s3://no-such-bucket" in found.err) == (3, True)
    assert run(store, "--output", f"{bucket.url('a.csv')}&nonsense=1").code == 2
    assert run(store, "--output", f"s3://{bucket.name}").code == 2


def test_other_file_systems_get_files_by_rename(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside first: what is seen is whole."""
    fsspec = pytest.importorskip("fsspec")
    seen: list[list[str]] = []
    store, system = small_store(tmp_path / "s", 5), fsspec.filesystem("memory")
    finish = OutputTarget.finish

    def look(place: OutputTarget, draft: object) -> None:
        seen.append(system.find("/exports"))
        finish(place, draft)  # type: ignore[arg-type]

    monkeypatch.setattr(OutputTarget, "finish", look)
    try:
        assert run(store, "--output", "memory://exports/a.csv").code == 0
        assert seen == [["/exports/.a.csv.rmqtool-part"]]
        assert system.find("/exports") == ["/exports/a.csv"]
        assert len(system.cat("/exports/a.csv").splitlines()) == 6
    finally:
        system.rm("/exports", recursive=True)


def test_a_place_that_cannot_be_reached(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    place, name = OutputTarget.of_file(str(tmp_path / "file" / "a.csv"))
    with pytest.raises(UnwritableError):
        place.begin(name)
