"""A store in a tar, in a compressed tar, and compressed file by file: its answers are those of the folder.

And archives that somebody made to do harm: one clear error each, and nothing on the disk.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import signal
import sys
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rmqtool.cli import main
from rmqtool.errors import FormatError, InputError, NotAStoreError, RmqtoolError, UnwritableError
from rmqtool.read.consumer_offsets import consumer_offsets
from rmqtool.read.store import Store
from rmqtool.storage import archive as storage_archive
from rmqtool.storage import decompress
from rmqtool.storage.open_files import open_file
from rmqtool.storage.random_file import PartFile
from rmqtool.storage.source import open_source
from tests.support.programs import PATIENCE_S, started, surroundings
from tests.support.remote import answers, compress, compress_files, pack, tar_of
from tests.support.stores import Library
from tests.support.trees import copy_tree, unchanged

CASES = ("ok_540_small_propcrc", "ok_497_expired", "bad_cl03_body_crc")
FORMS = {
    "gnu sparse": ("--format=gnu", "-S"),
    "pax 1.0": ("--format=pax", "-S"),
    "pax 0.1": ("--format=pax", "-S", "--sparse-version=0.1"),
    "pax 0.0": ("--format=pax", "-S", "--sparse-version=0.0"),
    "plain": ("--format=ustar",),
}
LOG_FILE = f"{0:020}"
Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def expected(cases: Library) -> Answers:
    return {name: answers(cases.path(name)) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_tar_answers_as_the_folder(name: str, cases: Library, expected: Answers, tmp_path: Path) -> None:
    archive = pack(cases.path(name), tmp_path / "store.tar", "-S")
    with unchanged(tmp_path):
        assert answers(archive) == expected[name]


@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_tar(form: str, cases: Library, expected: Answers, tmp_path: Path) -> None:
    inside = {"plain": ".", "pax 1.0": "data/broker/store"}.get(form, "store")
    archive = pack(cases.path(CASES[0]), tmp_path / "s.tar", *FORMS[form], inside=inside)
    assert answers(archive) == expected[CASES[0]]


@pytest.mark.parametrize("suffix", ["tar.gz", "tgz", "tar.zst"])
def test_a_compressed_tar(
    suffix: str, cases: Library, expected: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = pack(cases.path(CASES[0]), tmp_path / "store.tar", "-S")
    packed = compress(archive, "zst" if suffix.endswith("zst") else "gz").rename(
        tmp_path / f"packed.{suffix}"
    )
    archive.unlink()
    (tmp_path / "space").mkdir()
    monkeypatch.setenv("RMQTOOL_TMPDIR", str(tmp_path / "space"))
    told: list[str] = []
    with unchanged(tmp_path):
        assert answers(packed, announce=told.append) == expected[CASES[0]]
    assert told == [f"unpacking {packed} into a temporary file in {tmp_path / 'space'}"]


@pytest.mark.parametrize("form", ["gz", "zst"])
def test_files_compressed_one_by_one(form: str, cases: Library, expected: Answers, tmp_path: Path) -> None:
    store = compress_files(copy_tree(cases.path(CASES[0]), tmp_path / "store"), form)
    with unchanged(tmp_path):
        assert answers(store) == expected[CASES[0]]


def test_only_old_files_of_the_log_are_compressed(cases: Library, expected: Answers, tmp_path: Path) -> None:
    store = copy_tree(cases.path(CASES[1]), tmp_path / "store")
    first, *_, newest = sorted((store / "commitlog").iterdir())
    compress(first, "zst")
    first.unlink()
    assert answers(store) == expected[CASES[1]]
    # One that is there twice is taken as it was; the other one is told.
    newest.with_name(f"{newest.name}.zst").write_bytes(zstandard.compress(b"something else"))
    found = answers(store)
    assert found["records"] == expected[CASES[1]]["records"]
    assert [text for text in found["findings"] if "CL22" in text and f"{newest.name}.zst" in text]


@pytest.mark.parametrize("form", ["gz", "zst", "tar"])
def test_a_single_file(form: str, cases: Library, tmp_path: Path) -> None:
    """Its folder and name say what it is, without the suffix; so does its content, under any name."""
    source = cases.path(CASES[0]) / "commitlog" / LOG_FILE
    (tmp_path / "commitlog").mkdir()
    path = tmp_path / "commitlog" / LOG_FILE
    shutil.copyfile(source, path)
    with Store.open(path) as store:
        expected = [each.physical_offset for each in store.messages()]
    if form == "tar":
        packed = tmp_path / "one.tar"
        packed.write_bytes(tar_of((f"commitlog/{LOG_FILE}", path.read_bytes())))
        with Store.open(packed) as store:
            assert store.layout.kind == "store"
            assert [each.physical_offset for each in store.messages()] == expected
        packed.write_bytes(tar_of((LOG_FILE, path.read_bytes())))
        kinds = [packed]
    else:
        packed = compress(path, form)
        other = tmp_path / f"taken-out.{form}"
        shutil.copyfile(packed, other)
        kinds = [packed, other]
        path.unlink()
    for each in kinds:
        with Store.open(each) as store:
            assert store.layout.kind == "commitlog"
            assert [found.physical_offset for found in store.messages()] == expected
            assert store.layout.commit_log[0].file_from_offset == 0
            assert not store.is_local


def test_a_queue_folder_of_compressed_files(cases: Library, tmp_path: Path) -> None:
    queues = copy_tree(cases.path(CASES[0]), tmp_path / "store") / "consumequeue"
    folder = sorted(path.parent for path in queues.rglob(LOG_FILE))[0]
    with Store.open(folder) as store:
        expected = {key: list(queue.units()) for key, queue in store.queues.items()}
    compress_files(folder, "zst")
    with Store.open(folder) as store:
        assert {key: list(queue.units()) for key, queue in store.queues.items()} == expected


def test_holes_stay_holes(tmp_path: Path) -> None:
    """Of a member of a tar, and of what was unpacked: a log's empty tail is not read byte by byte."""
    path = tmp_path / "store" / "commitlog" / LOG_FILE
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.write(b"x" * 8192)
        file.truncate(1 << 25)
    sparse = pack(tmp_path / "store", tmp_path / "s.tar", "-S")
    assert sparse.stat().st_size < 1 << 16
    for archive in (sparse, compress(pack(tmp_path / "store", tmp_path / "t.tar"), "zst")):
        with Store.open(archive) as store:
            source = open_source(store.layout.commit_log[0].path)
            assert source.data_from(0) == 0
            assert source.data_from(1 << 20) == source.size == 1 << 25
            assert source.read(8190, 4) == b"xx\0\0"
            assert bytes(source.window((1 << 25) - 2, 10)) == b"\0\0"
            source.close()


def test_a_store_can_be_used_after_close(cases: Library, tmp_path: Path) -> None:
    archive = compress(pack(cases.path(CASES[0]), tmp_path / "store.tar"), "zst")
    store = Store.open(archive)
    first = next(store.messages())
    store.close()
    assert next(store.messages()) == first
    store.close()


# -- hostile archives ------------------------------------------------------------------------------


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


LOG = (f"store/commitlog/{LOG_FILE}", b"x" * 600)
HOSTILE = {
    "leads out": tar_of(LOG, ("store/../../evil", b"x")),
    "is absolute": tar_of(LOG, ("/tmp/evil", b"x")),
    "symbolic link": tar_of(LOG, (member("store/index", tarfile.SYMTYPE, "/etc"), b"")),
    "hard link": tar_of(LOG, (member("store/checkpoint", tarfile.LNKTYPE, LOG[0]), b"")),
    "device": tar_of(LOG, (member("store/abort", tarfile.CHRTYPE), b"")),
    "pipe": tar_of(LOG, (member("store/abort", tarfile.FIFOTYPE), b"")),
    "twice": tar_of(LOG, LOG),
    "twice, as a folder": tar_of(LOG, (member(LOG[0], tarfile.DIRTYPE), b"")),
    "a folder, then a file": tar_of((member("store", tarfile.DIRTYPE), b""), ("store", b"x")),
    "in a file": tar_of(LOG, (f"{LOG[0]}/inside", b"x")),
    "cut in the data": tar_of(LOG)[:700],
    "cut in the header": tar_of(LOG)[:300],
    "cut behind a member": tar_of(LOG)[:1536],
    "damaged header": tar_of(LOG)[:1536] + b"\xff" * 1024,
    "no tar": b"x" * 4096,
    "nothing": b"",
    "only zeros": bytes(1024),
    "two stores": tar_of(("a/commitlog/x", b"x"), ("b/commitlog/x", b"x")),
    "no store": tar_of(("notes.txt", b"x"), ("more.txt", b"x")),
}  # fmt: skip


def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    """A header with any bytes as its size, and the right sum."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108], block[124:136], block[136:148] = b"0000644\0", size, b"0" * 11 + b"\0"
    block[156:157], block[257:265], block[148:156] = kind, b"ustar\x0000", b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    return bytes(block)


HOSTILE |= {
    "size below zero": header(b"store/abort", b"\xff" * 12) + bytes(2048),
    "enormous size": header(b"store/abort", b"\x80" + b"\0" * 3 + b"\x7f" + b"\xff" * 7) + bytes(2048),
    "enormous pax header": header(b"x", b"\x80" + b"\0" * 6 + b"\x7f" + b"\xff" * 4, b"x") + bytes(2048),
    "pax header of itself": header(b"x", b"00000000000\0", b"x") * 3000 + bytes(1024),
    "long name of a long name": header(b"x", b"00000000001\0", b"L") + bytes(512) + bytes(1024),
    "old sparse without end": header(b"store/abort", b"00000000000\0", b"S") + bytes(1024),
}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("form", ["tar", "tar.gz"])
def test_a_hostile_archive(what: str, form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = HOSTILE[what]
    archive = tmp_path / f"store.{form}"
    archive.write_bytes(data if form == "tar" else gzip.compress(data))
    before = len(list(Path("/dev/fd").iterdir()))
    with unchanged(tmp_path), pytest.raises(InputError):
        Store.open(archive)
    assert len(list(Path("/dev/fd").iterdir())) == before
    assert main(["info", str(archive)]) == 3
    lines = capfd.readouterr().err.splitlines()
    lines = [line for line in lines if not line.startswith("rmqtool: unpacking")]
    assert lines[0].startswith("rmqtool: ")
    assert 1 <= len(lines) <= 3


def test_what_is_refused_is_named(tmp_path: Path) -> None:
    archive = tmp_path / "store.tar"
    archive.write_bytes(HOSTILE["symbolic link"])
    with pytest.raises(FormatError, match=r"'store/index' is a link") as found:
        Store.open(archive)
    assert found.value.hint is not None
    assert "tar -h" in found.value.hint
    archive.write_bytes(HOSTILE["leads out"])
    with pytest.raises(FormatError, match=r"'store/\.\./\.\./evil' leads out"):
        Store.open(archive)
    archive.write_bytes(HOSTILE["cut behind a member"])
    with pytest.raises(FormatError, match="cut short"):
        Store.open(archive)


@pytest.mark.parametrize("form", ["gz", "zst"])
@pytest.mark.parametrize("what", ["cut", "damaged", "not compressed", "empty"])
def test_a_compressed_file_that_is_not_sound(form: str, what: str, cases: Library, tmp_path: Path) -> None:
    path = tmp_path / LOG_FILE
    shutil.copyfile(cases.path(CASES[0]) / "commitlog" / LOG_FILE, path)
    packed = compress(path, form)
    data = packed.read_bytes()
    middle = len(data) // 2
    packed.write_bytes({
        "cut": data[:-3], "damaged": data[:middle] + b"\xff\x00\xff\x00" * 8 + data[middle + 32 :],
        "not compressed": b"hello, this is text", "empty": b"",
    }[what])  # fmt: skip
    path.unlink()
    with unchanged(tmp_path), pytest.raises(FormatError):
        Store.open(packed)


def test_frames_that_follow_each_other_and_padding(tmp_path: Path) -> None:
    one, two = os.urandom(100_000), b"two" * 50_000
    packed = {
        "gz": gzip.compress(one) + gzip.compress(two) + bytes(9000),
        "zst": zstandard.compress(one) + b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + zstandard.compress(two),
    }
    for form, data in packed.items():
        path = tmp_path / f"x.{form}"
        path.write_bytes(data)
        assert b"".join(decompress.pieces(open_file(path), path)) == one + two


def test_a_bomb_ends_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_archive, "FILE_LIMIT", 8 << 20)
    for form in ("gz", "zst"):
        path = tmp_path / f"{LOG_FILE}.{form}"
        data = bytes(10 << 20)
        path.write_bytes(gzip.compress(data, 1) if form == "gz" else zstandard.compress(data))
        assert path.stat().st_size < 1 << 20
        with pytest.raises(FormatError, match="unpacks to more than") as found:
            Store.open(path)
        assert found.value.path == path
    monkeypatch.setattr(storage_archive, "UNPACKED_LIMIT", 8 << 20)
    path = tmp_path / "store.tar.gz"
    path.write_bytes(gzip.compress(tar_of(("store/commitlog/x", bytes(10 << 20))), 1))
    with pytest.raises(FormatError, match="unpacks to more than"):
        Store.open(path)


def test_one_file_of_a_store_has_at_most_2_gib() -> None:
    """A few kilobytes of zstd hold terabytes of zeros; a broker maps every file whole."""
    assert storage_archive.FILE_LIMIT == 1 << 31


def test_a_long_path_is_refused_before_its_folders_are_listed(tmp_path: Path) -> None:
    """Every folder above a member is kept by name: 30,000 of them took 1.2 GB."""
    archive = tmp_path / "deep.tar"
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("/".join(["a"] * 30_000) + "/x"))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="a path of more than 4096 characters"):
            Store.open(archive)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_too_little_space_is_said(cases: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = compress(pack(cases.path(CASES[0]), tmp_path / "store.tar"), "gz")
    monkeypatch.setattr(storage_archive, "_ROOM", 1 << 60)
    with pytest.raises(UnwritableError, match="too little space") as found:
        Store.open(packed)
    assert found.value.hint == "RMQTOOL_TMPDIR names another folder"
    monkeypatch.setenv("RMQTOOL_TMPDIR", str(tmp_path / "missing"))
    with pytest.raises(UnwritableError, match="cannot make a temporary file"):
        Store.open(packed)


@pytest.mark.parametrize("suffix", ["zip", "tar.xz", "7z", "tar.bz2"])
def test_other_archives_are_named(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"store.{suffix}"
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(NotAStoreError, match="form that is not read") as found:
        Store.open(path)
    assert "tar.zst" in str(found.value.hint)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind_by_a_signal(number: int, cases: Library, tmp_path: Path) -> None:
    """The temporary file has no name from the start, so no way of ending leaves it."""
    packed = compress(pack(cases.path(CASES[0]), tmp_path / "store.tar"), "zst")
    space = tmp_path / "space"
    space.mkdir()
    code = (
        "import sys, time; from rmqtool.read.store import Store;"
        "store = Store.open(sys.argv[1]); next(store.messages()); print('open', flush=True); time.sleep(3600)"
    )
    with started(
        [sys.executable, "-c", code, packed], env=surroundings(RMQTOOL_TMPDIR=str(space))
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"open\n"
        assert list(space.iterdir()) == []
        program.send_signal(number)
        assert program.wait(PATIENCE_S) == -number
    assert list(space.iterdir()) == []


def test_any_bytes_end_in_an_answer_or_an_error(tmp_path: Path) -> None:
    """Bytes of the headers of a small sparse archive are changed in turn."""
    store = tmp_path / "store" / "commitlog"
    store.mkdir(parents=True)
    with (store / LOG_FILE).open("wb") as file:
        file.truncate(1 << 16)
        file.write(b"x")
    for form in ("--format=gnu", "--format=pax"):
        data = pack(store.parent, tmp_path / "s.tar", "-S", "-b1", form).read_bytes()
        archive = tmp_path / "changed.tar"
        for place in range(0, len(data), 29):
            for value in (0x37, 0xFF):
                archive.write_bytes(data[:place] + bytes([value]) + data[place + 1 :])
                try:
                    with Store.open(archive) as opened:
                        opened.end_offset()
                except RmqtoolError:
                    continue


def test_reader_is_bounded() -> None:
    """What tarfile asks for is not read without bounds."""
    base = Base(b"")
    base.size = 1 << 40
    reader = storage_archive._Reader(base)
    with pytest.raises(ValueError, match="without bounds"):
        reader.read(1 << 30)
    with pytest.raises(ValueError, match="without bounds"):
        reader.read()
    with pytest.raises(ValueError, match="before"):
        reader.seek(-1)
    assert reader.seek(0, io.SEEK_END) == 1 << 40


class Base:
    """Bytes in memory, whose runs of eight zeros are holes."""

    is_near = True

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]

    def data_from(self, offset: int) -> int:
        starts = (max(place, offset) for place in range(offset - offset % 8, self.size, 8)
                  if any(self.data[place : place + 8]))  # fmt: skip
        return next(starts, self.size)

    def hole_from(self, offset: int) -> int:
        starts = (max(place, offset) for place in range(offset - offset % 8, self.size, 8)
                  if not any(self.data[place : place + 8]))  # fmt: skip
        return next(starts, self.size)

    def close(self) -> None:
        pass


@given(st.data())
def test_a_part_is_what_its_segments_say(data: st.DataObject) -> None:
    base = Base(
        data.draw(st.lists(st.sampled_from((bytes(8), b"12345678", b"\0\0\0x\0\0\0\0"))).map(b"".join))
    )
    whole, segments = bytearray(), []
    for gap, count in data.draw(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=6)):
        place = data.draw(st.integers(0, base.size))
        count = min(count, base.size - place)
        whole += bytes(gap)
        if count:
            segments.append((len(whole), count, place))
            whole += base.data[place : place + count]
    whole += bytes(data.draw(st.integers(0, 20)))
    part = PartFile(base, len(whole), segments)
    for offset in range(len(whole) + 1):
        length = offset * 7 % 31
        assert part.read(offset, length) == whole[offset : offset + length]
        found = part.data_from(offset)
        assert offset <= found <= len(whole)
        assert not any(whole[offset:found])
        if found < len(whole):
            start, count, place = next(each for each in segments if each[0] <= found < each[0] + each[1])
            assert base.data_from(place + found - start) == place + found - start
        hole = part.hole_from(found)
        assert found < hole <= len(whole) or found == len(whole)
        assert hole == len(whole) or not any(whole[hole : hole + 1])


def test_every_command_that_reads(cases: Library, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What they print of the archive is what they print of the folder."""
    store = cases.path(CASES[0])
    archive = pack(store, tmp_path / "store.tar", "-S")
    assert main(["dump", str(store), "--json"]) == 0
    rows = map(json.loads, capfd.readouterr().out.splitlines())
    key, topic = next((row["keys"][0], row["topic"]) for row in rows if row.get("keys"))
    with Store.open(store) as opened:
        group = next(name for _, name in consumer_offsets(opened))
    for command in (["lookup", "--key", key], ["tail", "--topic", topic, "--from", "earliest", "-n", "3"],
                    ["tail", "--group", group, "-n", "3"], ["stats", "--format", "json"],
                    ["stats", "--by", "group,topic", "--format", "json"],
                    ["stats", "--delayed", "--format", "json"], ["lookup", "--key", key, "--trace"],
                    ["dump", "--what", "config"]):  # fmt: skip
        outputs = []
        for place in (store, archive):
            assert main([command[0], str(place), *command[1:]]) == 0, capfd.readouterr().err
            outputs.append(re.sub(r'"age_ms":\d+', "", capfd.readouterr().out))  # it is of now
        assert outputs[0] == outputs[1]
    for place in (store, archive):
        assert main(["export", str(place), "--output", str(tmp_path / f"{place.name}.jsonl")]) == 0
    exported = [(tmp_path / f"{place.name}.jsonl").read_bytes() for place in (store, archive)]
    assert exported[0] == exported[1]
    assert exported[0]
    assert main(["diff", str(store), str(archive)]) == 0
