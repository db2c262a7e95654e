"""A store in S3, over the wire: moto's server is a process of its own."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqtool.cli import main
from rmqtool.errors import NotAStoreError, UnreadableError, UsageError
from rmqtool.read.store import Store
from rmqtool.storage.remote import arrow_filesystem
from rmqtool.storage.remote_url import parse
from tests.support.remote import KEY, SECRET, answers, compress, pack, s3_server, upload
from tests.support.stores import Library

CASE = "ok_540_small_propcrc"
LOG_FILE = f"{0:020}"


@pytest.fixture(scope="module")
def endpoint(cases: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("s3")
    with s3_server(folder) as address:
        store = cases.path(CASE)
        upload(address, store, "bucket", "some/store")
        archive = pack(store, folder / "store.tar", "-S")
        upload(address, archive, "bucket", "store.tar")
        upload(address, compress(archive, "zst"), "bucket", "store.tar.zst")
        upload(address, compress(archive, "gz"), "bucket", "log/commitlog/00000000000000000000.gz")
        yield address


@pytest.fixture(autouse=True)
def surroundings(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials of the environment, and none of this machine."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_store_in_s3_answers_as_the_folder(cases: Library) -> None:
    expected = answers(cases.path(CASE))
    assert answers("s3://bucket/some/store") == expected
    with Store.open("s3://bucket/store.tar") as store:
        assert sum(1 for _ in store.messages()) == len(expected["records"])
    assert answers("s3a://bucket/store.tar.zst") == expected


def test_the_url_and_the_program_give_what_the_environment_lacks(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    by_url = f"s3://{KEY}:{SECRET}@bucket/some/store?endpoint={endpoint}&region=eu-west-1"
    s3fs_style = {
        "key": KEY,
        "secret": SECRET,
        "client_kwargs": {"endpoint_url": endpoint, "region_name": "x-y-1"},
    }
    for place, options in ((by_url, {}), ("s3://bucket/some/store", s3fs_style)):
        with Store.open(place, storage_options=options) as store:
            assert len(store.queues) > 1
            assert SECRET not in repr(store.location) + repr(store.layout) + str(store.location)
            again = pickle.loads(pickle.dumps(store.location)).open()
            assert again.layout.commit_log == store.layout.commit_log
    assert main(["info", by_url]) == 0
    captured = capfd.readouterr()
    assert "s3://bucket/some/store" in captured.out
    typed = f"'s3://***@bucket/some/store?endpoint={endpoint}&region=eu-west-1'"
    assert f"rmqtool verify {typed}" in " ".join(captured.out.split())
    assert "lock: in s3 no lock can be asked for" in captured.out
    assert SECRET not in captured.out + captured.err
    assert KEY not in captured.out + captured.err


def test_commands_on_s3(cases: Library, capfd: pytest.CaptureFixture[str]) -> None:
    """What is printed is what the folder gives, in a process of its own for one of them."""
    for command in (["dump", "--tz", "UTC"], ["dump", "--reverse", "-n", "3"], ["dump", "--explain", "0"]):
        codes, outputs = [], []
        for place in (str(cases.path(CASE)), "s3://bucket/some/store"):
            codes.append(main([command[0], place, *command[1:]]))
            outputs.append(capfd.readouterr().out)
        assert codes[0] == codes[1]
        assert outputs[0] == outputs[1]
    program = [sys.executable, "-m", "rmqtool", "diff", str(cases.path(CASE)), "s3://bucket/some/store"]
    run = subprocess.run(program, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr


def test_files_and_folders_in_s3(cases: Library) -> None:
    for place in (f"s3://bucket/some/store/commitlog/{LOG_FILE}", "s3://bucket/some/store/commitlog"):
        with Store.open(place) as store:
            assert store.layout.kind == "commitlog"
            assert sum(1 for _ in store.messages()) > 10
    with Store.open(f"s3://bucket/some/store/commitlog/{LOG_FILE}") as store:
        with Store.open(cases.path(CASE)) as local:
            assert [each.message for each in store.messages()] == [each.message for each in local.messages()]
    with Store.open("s3://bucket/log/commitlog/00000000000000000000.gz") as store:
        assert store.layout.kind == "store", "its content is a tar"


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("s3://bucket/nothing", NotAStoreError),
        ("s3://bucket/some", NotAStoreError),
        ("s3://nobucket/store", NotAStoreError),
        ("s3://bucket/some/store?endpoint=http://127.0.0.1:9", UnreadableError),
        ("s3://bucket/some/store?nonsense=1", UsageError),
    ],
)
def test_what_is_not_there_is_one_error(
    place: str, error: type[Exception], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(error):
        Store.open(place)
    assert main(["info", place]) == (2 if error is UsageError else 3)
    lines = capfd.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 3
    assert KEY not in str(lines)


def test_what_writes_gets_the_same_file_system() -> None:
    system, path = arrow_filesystem(parse("s3://bucket/out/file.bin"))
    assert path == "bucket/out/file.bin"
    with system.open_output_stream(path, compression=None) as out:
        out.write(b"abc")
    assert system.get_file_info(path).size == 3
