"""RocksDB databases read without a library, held against the library; damage is one error with its place."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqtool.errors import FormatError, UnreadableError
from rmqtool.formats import rocksdb as format_
from rmqtool.storage.rocksdb.database import Database
from tests.support.rocksdb_databases import (
    COMPRESSIONS,
    Rows,
    log_of,
    random_database,
    write_ahead_log,
    write_rows,
)
from tests.support.stores import Library, case_names
from tests.support.sweep import IS_WHOLE
from tests.support.trees import unchanged

SMALL: Rows = {
    "default": {b"key%05d" % number: b"value %d" % number * (number % 5) for number in range(1500)},
    "other": {b"k": b"v", b"": b"empty key", b"empty value": b""},
}


def rows_of(folder: Path) -> Rows:
    database = Database(folder)
    try:
        return {name: dict(database.scan(name)) for name in database.families}
    finally:
        database.close()


@pytest.mark.parametrize("seed", range(10))
def test_random_databases_read_as_the_library_reads_them(seed: int, tmp_path: Path) -> None:
    """Puts, deletes, range deletes, many tables and levels, changes in a write-ahead log only."""
    rows = random_database(tmp_path / "db", random.Random(seed))
    with unchanged(tmp_path / "db"):
        assert rows_of(tmp_path / "db") == rows


def test_the_random_databases_have_what_they_are_for(tmp_path: Path) -> None:
    """Several tables on several levels, changes in logs, range deletes: at least in one of ten each."""
    tables, changes, deletes = [], [], []
    for seed in range(10):
        random_database(tmp_path / str(seed), random.Random(seed))
        database = Database(tmp_path / str(seed))
        families = database.families.values()
        tables.append(max(len(family.files) for family in families))
        changes.append(sum(len(family.changes) for family in families))
        deletes.append(sum(len(database.cover(family.name).bounds) for family in families))
        database.close()
    assert max(tables) > 3 and max(changes) > 100 and max(deletes) > 2


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_compressions(compression: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "db", SMALL, compression=compression)
    assert rows_of(tmp_path / "db") == SMALL


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"format_version": 6}, "format version 6"),
        ({"checksum": "xxh3"}, "checksums of type 4"),
    ],
)
def test_what_is_not_known_is_said(options: dict[str, object], reason: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "db", SMALL, **options)
    with pytest.raises(FormatError, match=reason) as caught:
        rows_of(tmp_path / "db")
    assert str(caught.value.path).endswith(".sst") and caught.value.physical_offset is not None


def test_a_scan_of_a_part(tmp_path: Path) -> None:
    write_rows(tmp_path / "db", SMALL, block_size=256)
    database = Database(tmp_path / "db")
    for start, stop in ((b"", b"key00007"), (b"key00400", b"key00900"), (b"key014990", None), (b"x", b"y")):
        expected = {
            key: value
            for key, value in SMALL["default"].items()
            if key >= start and (stop is None or key < stop)
        }
        assert dict(database.scan("default", start, stop)) == expected
    assert database.get("default", b"key00400") == SMALL["default"][b"key00400"]
    assert database.get("default", b"key004000") is None
    assert database.get("other", b"") == b"empty key"
    database.close()


def test_changes_in_a_log_win_until_damage(tmp_path: Path) -> None:
    """As a broker does, the changes before the damage are kept, and the place is noted."""
    folder = tmp_path / "db"
    write_rows(folder, SMALL)
    good = write_ahead_log([(0, b"key00001", b"new"), (1, b"k", None)])
    (folder / "000900.log").write_bytes(good + good[:10] + b"X" + good[11:] + good)
    database = Database(folder)
    assert database.get("default", b"key00001") == b"new"
    assert database.get("other", b"k") is None
    assert [(each.path.name, each.offset) for each in database.damage] == [("000900.log", len(good))]
    database.close()
    (folder / "000900.log").write_bytes(good + good[:-3])  # being written, or cut by a crash
    database = Database(folder)
    assert database.get("default", b"key00001") == b"new" and not database.damage
    database.close()


def test_a_table_that_is_missing(tmp_path: Path) -> None:
    write_rows(tmp_path / "db", SMALL)
    table = max((tmp_path / "db").glob("*.sst"), key=lambda path: path.stat().st_size)
    table.unlink()
    with pytest.raises(UnreadableError, match="does not exist") as caught:
        rows_of(tmp_path / "db")
    assert caught.value.is_gone and Path(str(caught.value.path)).name == table.name


def test_the_database_is_read_again_on_request(tmp_path: Path) -> None:
    write_rows(tmp_path / "db", SMALL)
    database = Database(tmp_path / "db")
    assert database.get("other", b"k") == b"v"
    (tmp_path / "db/000900.log").write_bytes(write_ahead_log([(1, b"k", b"w")]))
    assert database.get("other", b"k") == b"v"
    database.reload()
    assert database.get("other", b"k") == b"w"
    database.close()


@pytest.mark.parametrize("name", [name for name in case_names() if name.startswith("kind_")])
def test_databases_of_brokers(name: str, cases: Library, tmp_path: Path) -> None:
    """Every database of the real stores reads as the library reads a copy of it."""
    from rocksdict import Options, Rdict

    for number, mark in enumerate(sorted(cases.path(name).rglob("CURRENT"))):
        copy = tmp_path / str(number)
        shutil.copytree(mark.parent, copy)
        names = Rdict.list_cf(str(copy), Options(raw_mode=True))
        families = dict.fromkeys(names, Options(raw_mode=True))
        library = Rdict(str(copy), options=Options(raw_mode=True), column_families=families)
        expected = {
            each: dict((library if each == "default" else library.get_column_family(each)).items())
            for each in names
        }
        library.close()
        with unchanged(mark.parent):
            assert rows_of(mark.parent) == expected
            assert not Database(mark.parent).lost_edits(is_clean=not name.endswith("running"))


def rows_of_library(folder: Path) -> Rows | None:
    """What RocksDB reads; None if it does not open the database."""
    from rocksdict import Options, Rdict

    try:
        names = Rdict.list_cf(str(folder), Options(raw_mode=True))
        families = dict.fromkeys(names, Options(raw_mode=True))
        library = Rdict(str(folder), options=Options(raw_mode=True), column_families=families)
    except Exception:  # the library has no other type for it
        return None
    found = {
        name: dict((library if name == "default" else library.get_column_family(name)).items())
        for name in names
    }
    library.close()
    return found


@pytest.mark.parametrize("folder", ["consumequeue", "config/topics"])
def test_a_manifest_that_was_cut(folder: str, cases: Library, tmp_path: Path) -> None:
    """Without its first records a broker of 5.4.0 was seen not to load; later it opens what they say.

    Of an atomic group that is not complete nothing counts. Where rows are lost, it is noticed.
    """
    source = cases.path("kind_rocksdb_540") / folder
    (manifest,) = source.glob("MANIFEST-*")
    content, complete = manifest.read_bytes(), rows_of(source)
    records = format_.log_records(lambda at, length: content[at : at + length], len(content))
    opens = []
    for cut in [*(offset for offset, _ in records), len(content) - 1, len(content)]:
        mine, theirs = tmp_path / f"mine{cut}", tmp_path / f"theirs{cut}"
        for copy in (mine, theirs):
            shutil.copytree(source, copy)
            (copy / manifest.name).write_bytes(content[:cut])
        expected = rows_of_library(theirs)
        opens.append(expected is not None)
        if expected is not None:
            assert rows_of(mine) == expected, cut
            assert Database(mine).lost_edits(is_clean=True) or expected == complete
            continue
        with pytest.raises(FormatError, match="the MANIFEST does not say the") as caught:
            rows_of(mine)
        assert Path(str(caught.value.path)).name == manifest.name
    assert not opens[0] and opens[-1] and opens == sorted(opens)


@pytest.mark.parametrize("folder", ["consumequeue", "config/topics"])
def test_a_manifest_that_was_damaged(folder: str, cases: Library, tmp_path: Path) -> None:
    """Only what is cut off may be missing: RocksDB takes no wrong record for one that is being written."""
    source = cases.path("kind_rocksdb_540") / folder
    (manifest,) = source.glob("MANIFEST-*")
    content = manifest.read_bytes()
    size = len(content)
    damaged = {"zeros": content + bytes(99), "text": content + b"garbage", "more": content + b"x"}
    for at in (*range(0, size, 53), size - 2, size - 1):
        damaged[f"byte{at}"] = content[:at] + bytes((content[at] ^ 0x41,)) + content[at + 1 :]
        damaged[f"tail{at}"] = content[:at] + bytes(size - at)
    for name, each in damaged.items():
        mine, theirs = tmp_path / f"mine{name}", tmp_path / f"theirs{name}"
        for copy in (mine, theirs):
            shutil.copytree(source, copy)
            (copy / manifest.name).write_bytes(each)
        expected = rows_of_library(theirs)
        if expected is not None:
            assert rows_of(mine) == expected, name
            continue
        with pytest.raises(FormatError) as caught:
            rows_of(mine)
        assert Path(str(caught.value.path)).name == manifest.name


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with tables and changes in a write-ahead log."""
    folder = tmp_path_factory.mktemp("rocksdb") / "db"
    rng = random.Random(3)
    while not (folder.exists() and any(Database(folder).families["default"].changes)):
        shutil.rmtree(folder, ignore_errors=True)
        random_database(folder, rng, steps=12)
    return folder


@pytest.mark.sweep
@settings(
    max_examples=150 if IS_WHOLE else 50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damage_is_an_error_with_its_place(sound: Path, tmp_path: Path, data: st.DataObject) -> None:
    """Bytes of any file changed or cut: the same rows, fewer of a log, or one error with file and offset."""
    folder = tmp_path / "db"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    files = sorted(path for path in folder.iterdir() if path.name[0] in "0MC" and path.stat().st_size)
    path = data.draw(st.sampled_from(files))
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[at:]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        rows_of(folder)
    except (FormatError, UnreadableError) as error:
        assert error.path is not None, error
        assert error.physical_offset is not None or isinstance(error, UnreadableError), error


def test_holes_of_a_log_are_not_read() -> None:
    """A log of a terabyte, of which the file system has one block: what follows the hole is read."""
    record = log_of([b"record"])
    places = {0: record, 1 << 40: record}
    reads = []

    def read(offset: int, length: int) -> bytes:
        reads.append(offset)
        return places.get(offset, b"").ljust(min(length, format_.BLOCK_SIZE), b"\0")

    def data_from(offset: int) -> int:
        return next((place for place in places if place >= offset), 1 << 41)

    found = format_.log_records(read, 1 << 41, None, data_from)
    assert list(found) == [(0, b"record"), (1 << 40, b"record")] and len(reads) < 9


def test_a_sequence_number_that_no_key_can_hold(sound: Path, tmp_path: Path) -> None:
    """It is damage of the write-ahead log, and the changes are not read."""
    folder = shutil.copytree(sound, tmp_path / "db")
    wanted = rows_of(folder)
    (folder / "999999.log").write_bytes(write_ahead_log([(0, b"key", b"value")], sequence=(1 << 56) - 1))
    assert rows_of(folder) == wanted
    database = Database(folder)
    assert database.families and [damage.path.name for damage in database.damage] == ["999999.log"]
    database.close()


def test_the_default_family_cannot_be_dropped(sound: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sound, tmp_path / "db")
    (path,) = folder.glob("MANIFEST-*")
    records = [record for _, record in format_.log_records(*reader_of(path.read_bytes()))]
    path.write_bytes(log_of([*records, b"\xca\x01"]))
    with pytest.raises(FormatError, match="default column family"):
        rows_of(folder)


def reader_of(data: bytes) -> tuple[Callable[[int, int], bytes], int]:
    return (lambda offset, length: data[offset : offset + length]), len(data)


@given(data=st.binary(max_size=3000))
def test_crc32c_is_the_same_bytewise(data: bytes) -> None:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    assert format_.crc32c(data) == crc ^ 0xFFFFFFFF


@given(data=st.binary(max_size=200))
def test_any_bytes_give_values_or_a_format_error(data: bytes) -> None:
    for decode in (
        lambda: list(format_.block_entries(data)),
        lambda: list(format_.index_entries(data, has_deltas=True)),
        lambda: list(format_.index_entries(data, has_deltas=False)),
        lambda: format_.version_edit(data),
        lambda: list(format_.changes(data)),
        lambda: format_.footer(data),
        lambda: list(format_.log_records(lambda at, length: data[at : at + length], len(data))),
    ):
        try:
            decode()
        except FormatError:
            continue
