"""`receive --archive`: full log files are in the archive, whole and compared, before they may go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from rmqtool import StoreWriter
from rmqtool.cli import main
from rmqtool.errors import RefusedError, RmqtoolError, UnwritableError, UsageError
from rmqtool.net import log_archive
from rmqtool.net import receive as receive_module
from rmqtool.net.ha_connection import Address
from rmqtool.net.marks import ARCHIVED, archive_name, lower_marks
from rmqtool.net.receive import Progress, Receiver, ReceiveRequest
from rmqtool.read.store import Store
from tests.support.remote import KEY, SECRET, s3_server, upload
from tests.support.replication import FILE_SIZE, log_of, make_master, put, receive, sending

_NOWHERE = Address("127.0.0.1", 1)


@pytest.fixture(autouse=True)
def at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old files are looked for at each step, and the archive soon."""
    monkeypatch.setattr(receive_module, "_EXPIRE_SECONDS", 0.0)
    monkeypatch.setattr(log_archive, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(log_archive, "_PIECE", 5000)  # several frames in a file
    monkeypatch.setattr(log_archive, "_RETRY_SECONDS", 0.001)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with five full files and a part of one."""
    return make_master(tmp_path_factory.mktemp("master") / "store", 150)


def archived(folder: Path) -> bytes:
    """The files of an archive, one after the other."""
    files = sorted((folder / "commitlog").iterdir())
    assert [path.name for path in files] == [f"{number * FILE_SIZE:020}.zst" for number in range(len(files))]
    data = []
    for path in files:
        with path.open("rb") as file:
            data.append(zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read())
    assert {len(each) for each in data} == {FILE_SIZE}
    return b"".join(data)


def assert_only_the_first_may_be_gone(copy: Path, master: Path) -> None:
    """The first file has its copy, the second does not: the first goes if that is found before the second."""
    assert log_of(master) in (log_of(copy), log_of(master)[:FILE_SIZE] + log_of(copy))


def test_full_files_are_shipped(tmp_path: Path) -> None:
    """The last file is not; the archive is a store; a second run ships what has become full since."""
    root, copy, place = make_master(tmp_path / "master", 150), tmp_path / "copy", tmp_path / "archive"
    (place / "commitlog").mkdir(parents=True)
    (place / "commitlog" / f".{FILE_SIZE:020}.zst.rmqtool-part").write_bytes(b"left by a run that was killed")
    with sending(root) as sender:
        progress = receive(sender.address, copy, archive=str(place))
    assert progress.archived == 5 * FILE_SIZE
    assert ARCHIVED.read(copy) == (5 * FILE_SIZE, str(place))
    assert archived(place) == (log_of(root) + bytes(FILE_SIZE))[: 5 * FILE_SIZE]
    with Store.open(place) as there, Store.open(root) as whole:
        assert [one.message for one in there.messages()] == [
            one.message for one in whole.messages() if one.physical_offset < 5 * FILE_SIZE
        ]
    before = {path.name: path.stat().st_mtime_ns for path in (place / "commitlog").iterdir()}
    with StoreWriter.open(root) as writer:
        put(writer, 60)
    with sending(root) as sender:
        assert receive(sender.address, copy, archive=str(place)).archived > 5 * FILE_SIZE
    assert archived(place) == log_of(root)[: len(archived(place))]
    after = {path.name: path.stat().st_mtime_ns for path in (place / "commitlog").iterdir()}
    assert before.items() <= after.items()


def test_files_go_only_when_they_are_there(master: Path, tmp_path: Path) -> None:
    """With --max-bytes: the archive and the copy together are the whole log."""
    copy, place = tmp_path / "copy", tmp_path / "archive"

    def enough(progress: Progress) -> None:
        if progress.expired == 5 * FILE_SIZE:
            raise KeyboardInterrupt

    with sending(master) as sender, pytest.raises(KeyboardInterrupt):
        receive(sender.address, copy, archive=str(place), max_bytes=1, once=False, tick=enough)
    assert archived(place) + log_of(copy) == log_of(master)


def test_a_failure_deletes_nothing(master: Path, tmp_path: Path) -> None:
    """The place is a file: the run goes on, says it, and goes on with the archive once it can be written."""
    copy, place = tmp_path / "copy", tmp_path / "archive"
    place.write_bytes(b"in the way")
    notes: list[str] = []

    def tick(progress: Progress) -> None:
        if progress.end != sender.log.end:
            return
        if place.is_file():
            assert progress.expired == 0
            if notes:
                place.unlink()
        elif progress.expired == 5 * FILE_SIZE:
            raise KeyboardInterrupt

    with sending(master) as sender, pytest.raises(KeyboardInterrupt):
        request = ReceiveRequest(
            sender.address, ha_only=True, file_size=FILE_SIZE, archive=str(place), max_bytes=1
        )
        Receiver(request, copy, note=notes.append, tick=tick).run()
    assert "archive: cannot" in notes[0]
    assert archived(place) + log_of(copy) == log_of(master)


def test_once_says_what_could_not_be_archived(master: Path, tmp_path: Path) -> None:
    """The log is received; the exit is an error."""
    copy, place = tmp_path / "copy", tmp_path / "archive"
    place.write_bytes(b"in the way")
    with sending(master) as sender, pytest.raises(UnwritableError):
        receive(sender.address, copy, archive=str(place), max_bytes=1)
    assert log_of(copy) == log_of(master)
    assert not (copy / "abort").exists()
    with sending(master) as sender, pytest.raises(RefusedError, match="would lie in the store"):
        receive(sender.address, copy, archive=str(copy / "archive"))


@pytest.mark.parametrize("damage", ["other", "short", "long"])
def test_another_file_of_the_name_is_refused(master: Path, tmp_path: Path, damage: str) -> None:
    """Of another log, or one that was cut: it is not replaced, and nothing is deleted."""
    copy, place = tmp_path / "copy", tmp_path / "archive"
    with sending(master) as sender:
        receive(sender.address, copy, archive=str(place))
    (copy / ARCHIVED.name).unlink()
    third = place / "commitlog" / f"{2 * FILE_SIZE:020}.zst"
    data = (copy / "commitlog" / third.stem).read_bytes()
    found = {"other": data.replace(b"key", b"yek"), "short": data[:-1], "long": data + b"\0"}[damage]
    third.write_bytes(zstandard.compress(found))
    before = third.read_bytes()
    with sending(master) as sender, pytest.raises(RefusedError, match="another file") as caught:
        receive(sender.address, copy, archive=str(place), max_bytes=1)
    assert str(caught.value.path) == str(third)
    assert third.read_bytes() == before
    assert ARCHIVED.read(copy) == (2 * FILE_SIZE, str(place))
    assert log_of(copy)[-FILE_SIZE:] == log_of(master)[-FILE_SIZE:]
    assert (copy / "commitlog" / third.stem).exists()


@pytest.mark.parametrize("loss", ["emptied", "one file", "cut", "of another log"])
def test_a_mark_is_not_a_copy(master: Path, tmp_path: Path, loss: str) -> None:
    """What the mark counts, but the archive has lost, is shipped again before it is deleted, or refused."""
    copy, place = tmp_path / "copy", tmp_path / "archive"
    with sending(master) as sender:
        receive(sender.address, copy, archive=str(place))
    files = sorted((place / "commitlog").iterdir())
    for path in files if loss == "emptied" else files[1:2]:
        if loss == "cut":
            path.write_bytes(b"")
        elif loss == "of another log":
            path.write_bytes(files[0].read_bytes())
        else:
            path.unlink()
    with sending(master) as sender:
        if loss in ("cut", "of another log"):
            with pytest.raises(RmqtoolError, match="another file|cannot read"):
                receive(sender.address, copy, archive=str(place), max_bytes=1)
            assert_only_the_first_may_be_gone(copy, master)
            return
        assert receive(sender.address, copy, archive=str(place), max_bytes=1).expired == 5 * FILE_SIZE
    assert archived(place) + log_of(copy) == log_of(master)


def test_a_copy_is_lost_while_it_receives(master: Path, tmp_path: Path) -> None:
    """Copies are looked for before each deletion, not only at the start."""
    copy, place = tmp_path / "copy", tmp_path / "archive"
    request = ReceiveRequest(_NOWHERE, ha_only=True, file_size=FILE_SIZE, archive=str(place))

    def tick(progress: Progress) -> None:
        if progress.archived == 5 * FILE_SIZE and request.max_bytes is None:
            (place / "commitlog" / f"{FILE_SIZE:020}.zst").unlink()
            request.max_bytes = 1
        if progress.expired == 5 * FILE_SIZE:
            raise KeyboardInterrupt

    with sending(master) as sender, pytest.raises(KeyboardInterrupt):
        request.address = sender.address
        Receiver(request, copy, note=lambda text: None, tick=tick).run()
    assert archived(place) + log_of(copy) == log_of(master)


def test_the_mark_names_one_place(master: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same relative path in another folder is another archive, which gets all files first."""
    copy = tmp_path / "copy"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        with sending(master) as sender:
            receive(sender.address, copy, archive="A", max_bytes=None if name == "one" else 1)
        assert ARCHIVED.read(copy) == (5 * FILE_SIZE, str(tmp_path / name / "A"))
    assert archived(tmp_path / "two" / "A") + log_of(copy) == log_of(master)


def test_an_archive_that_is_gone(master: Path, tmp_path: Path) -> None:
    """As a disk that is not mounted: an error, nothing is made there, nothing is deleted."""
    copy, place = tmp_path / "copy", tmp_path / "disk" / "archive"
    with sending(master) as sender:
        receive(sender.address, copy, archive=str(place))
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    with sending(master) as sender:
        with pytest.raises(UnwritableError, match="the archive is not there"):
            receive(sender.address, copy, archive=str(place), max_bytes=1)
        assert not (tmp_path / "disk").exists()
        assert log_of(copy) == log_of(master)
        (copy / ARCHIVED.name).unlink()
        assert receive(sender.address, copy, archive=str(place)).archived == 5 * FILE_SIZE


def test_an_archive_that_goes(master: Path, tmp_path: Path) -> None:
    """While it receives: no archive begins in its place, and it goes on once the archive is back."""
    copy, place, away = tmp_path / "copy", tmp_path / "archive", tmp_path / "away"
    request = ReceiveRequest(_NOWHERE, ha_only=True, file_size=FILE_SIZE, archive=str(place))
    notes: list[str] = []

    def tick(progress: Progress) -> None:
        if progress.archived == 5 * FILE_SIZE and request.max_bytes is None:
            place.rename(away)
            request.max_bytes = 1
        if notes and away.exists():
            assert progress.expired == 0
            assert not place.exists()
            away.rename(place)
        if progress.expired == 5 * FILE_SIZE:
            raise KeyboardInterrupt

    with sending(master) as sender, pytest.raises(KeyboardInterrupt):
        request.address = sender.address
        Receiver(request, copy, note=notes.append, tick=tick).run()
    assert "the archive is not there" in notes[0]
    assert archived(place) + log_of(copy) == log_of(master)


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_not_a_file_is_refused(master: Path, tmp_path: Path, kind: str) -> None:
    """With the name of a copy: nobody waits for what a pipe never brings."""
    copy, place = tmp_path / "copy", tmp_path / "archive"
    path = place / "commitlog" / f"{FILE_SIZE:020}.zst"
    path.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with sending(master) as sender, pytest.raises(UnwritableError, match="not a plain file") as caught:
        receive(sender.address, copy, archive=str(place), max_bytes=1)
    assert str(caught.value.path) == str(path)
    assert_only_the_first_may_be_gone(copy, master)


@pytest.mark.parametrize("name", ["", "a\nb", "file:///a%0Ab", "file:///a%00b", "x" * 4001, "s3://"])
def test_names_of_no_archive(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A usage error before the broker is asked."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        archive_name(name)
    assert main(["receive", "127.0.0.1:1", "store", "--archive", name]) == 2
    assert not any(tmp_path.iterdir())


def test_marks(tmp_path: Path) -> None:
    """A cut of the log lowers the mark to the start of the file; that of another archive does not count."""
    lower_marks(tmp_path, 5, 0, 100)
    assert ARCHIVED.read(tmp_path) is None
    ARCHIVED.save(tmp_path, 500, "s3://bucket/log")
    lower_marks(tmp_path, 500, 0, 100)
    assert ARCHIVED.read(tmp_path) == (500, "s3://bucket/log")
    lower_marks(tmp_path, 499, 0, 100)
    assert ARCHIVED.read(tmp_path) == (400, "s3://bucket/log")


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of moto, and only its credentials."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with s3_server(tmp_path) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        yield address


def test_an_archive_in_s3(endpoint: str, master: Path, tmp_path: Path) -> None:
    """Credentials are in no file; without the bucket the run fails, and nothing is deleted."""
    copy, url = tmp_path / "copy", f"s3://{KEY}:{SECRET}@archives/logs/a"
    with sending(master) as sender:
        with pytest.raises(UnwritableError) as caught:
            receive(sender.address, copy, archive=url, max_bytes=1)
        assert SECRET not in caught.value.message
        assert log_of(copy) == log_of(master)
        (tmp_path / "empty").mkdir()
        upload(endpoint, tmp_path / "empty", "archives", "x")
        assert receive(sender.address, copy, archive=url).archived == 5 * FILE_SIZE
        assert receive(sender.address, copy, archive=url, max_bytes=1).expired == 5 * FILE_SIZE
    assert ARCHIVED.read(copy) == (5 * FILE_SIZE, "s3://archives/logs/a")
    with Store.open("s3://archives/logs/a") as there, Store.open(master) as whole:
        assert [one.message for one in there.messages()] == [
            one.message for one in whole.messages() if one.physical_offset < 5 * FILE_SIZE
        ]
