"""What lies in a store is found from its files: kinds, sizes, folders, and what is none of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqtool.errors import InputError, NotAStoreError
from rmqtool.formats.consume_queue import BatchUnit, Unit
from rmqtool.formats.index import Shape
from rmqtool.formats.message import MAGIC_V1
from rmqtool.storage.layout import StoreLayout, common_file_size, detect
from rmqtool.storage.next_command import command_on
from tests.support.build_store import (
    KEYS,
    file_name,
    one_queue,
    write_index,
    write_log,
    write_queue,
    write_sparse,
    write_store,
)
from tests.support.records import STORE_TIMESTAMP
from tests.support.rocksdb_databases import write_rows
from tests.support.stores import Library, case, real_cases
from tests.support.trees import unchanged

NOBODY = 65534


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(tmp_path / "store", one_queue(40))
    write_index(tmp_path / "store/index/20260101000000000", Shape(100, 400), KEYS)
    (tmp_path / "store/config").mkdir()
    (tmp_path / "store/config/topics.json").write_text("{}")
    return tmp_path / "store"


def test_store_of_small_files(store: Path) -> None:
    with unchanged(store):
        found = detect(store)
    assert (found.kind, found.root) == ("store", store)
    assert [file.file_from_offset for file in found.commit_log] == [
        4096 * n for n in range(len(found.commit_log))
    ]
    assert found.commit_log_file_size == 4096
    assert found.consume_queue_file_size == 400
    assert (found.index_slots, found.index_entries) == (100, 400)
    assert found.index_file_size == Shape(100, 400).size
    assert found.batch_queue_file_size == 13_800_000
    assert found.origins == {
        "commit_log_file_size": "detected", "consume_queue_file_size": "detected",
        "batch_queue_file_size": "default", "ext_queue_file_size": "default", "index_slots": "detected",
        "index_entries": "detected",
    }  # fmt: skip
    assert list(found.consume_queues) == [("TopicTest", 0)]
    assert found.config == {"topics.json": store / "config/topics.json"}
    assert found.relative(found.commit_log[0].path) == f"commitlog/{file_name(0)}"
    assert found.unreadable == found.unsupported == ()


def test_defaults_where_nothing_tells(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    found = detect(tmp_path)
    assert found.commit_log_file_size == 1 << 30
    assert found.consume_queue_file_size == 6_000_000
    assert found.index_file_size == 420_000_040
    assert set(found.origins.values()) == {"default"}


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ([(0, 1000)], 1000),
        ([(0, 1000), (1000, 1000), (2000, 30)], 1000),  # the last one is short
        ([(0, 1000), (1000, 500)], 1000),
        ([(0, 1000), (3000, 500)], 1000),  # a gap, and a short file
        ([(0, 30), (1000, 40), (2000, 50)], 1000),  # all cut short: the names tell
        ([(5000, 1000), (6000, 0)], 1000),
        ([(0, 0)], None),
        ([], None),
    ],
)
def test_common_file_size(files: list[tuple[int, int]], size: int | None) -> None:
    assert common_file_size([files]) == size


def test_common_file_size_over_queues() -> None:
    queues = [[(0, 400)], [(800, 400)], [(0, 390)], [(0, 800)]]
    assert common_file_size(queues, unit=20) == 400


@pytest.mark.parametrize("name", real_cases())
def test_real_stores(cases: Library, name: str) -> None:
    settings = case(name).settings
    found = detect(cases.path(name))
    assert found.commit_log_file_size == settings["mappedFileSizeCommitLog"]
    assert found.consume_queue_file_size == settings["mappedFileSizeConsumeQueue"]
    assert (found.index_slots, found.index_entries) == (settings["maxHashSlotNum"], settings["maxIndexNum"])
    if found.batch_queues:
        assert found.batch_queue_file_size == settings["mapperFileSizeBatchConsumeQueue"]
    # 4.x makes empty queues of SCHEDULE_TOPIC_XXXX in memory, so Java may name more
    known = {(row["topic"], row["queueId"]) for row in case(name).queues}
    assert set(found.consume_queues) | set(found.batch_queues) <= known
    assert found.commit_log_strays == found.consume_queue_strays == found.index_strays == ()


class TestOrigins:
    def test_flag_wins_over_file_over_detected(self, store: Path, tmp_path: Path) -> None:
        conf = tmp_path / "broker.conf"
        conf.write_text("mappedFileSizeCommitLog = 8192\nmappedFileSizeConsumeQueue=401\n")
        found = detect(store, broker_conf=conf)
        assert (found.commit_log_file_size, found.origins["commit_log_file_size"]) == (8192, "file")
        assert found.consume_queue_file_size == 420  # rounded up to whole units
        assert found.origins["index_slots"] == "detected"
        found = detect(store, broker_conf=conf, file_sizes={"commit_log_file_size": 2048})
        assert (found.commit_log_file_size, found.origins["commit_log_file_size"]) == (2048, "flag")

    def test_a_size_that_is_no_size(self, store: Path) -> None:
        with pytest.raises(InputError, match="positive"):
            detect(store, file_sizes={"index_slots": 0})


class TestCommitLogFolders:
    def test_several_folders(self, tmp_path: Path) -> None:
        write_log(tmp_path / "all", one_queue(40))
        for number, path in enumerate(sorted((tmp_path / "all").iterdir())):
            target = tmp_path / "abc"[number % 3]
            target.mkdir(exist_ok=True)
            path.rename(target / path.name)
        root = tmp_path / "store"
        root.mkdir()
        found = detect(
            root, commitlog_paths=[tmp_path / "a", tmp_path / "b"], read_only_paths=[tmp_path / "c"]
        )
        assert [file.file_from_offset for file in found.commit_log] == [4096 * n for n in range(4)]
        assert found.commit_log_folders == (tmp_path / "a", tmp_path / "b", tmp_path / "c")
        assert found.relative(found.commit_log[0].path) == f"{tmp_path}/a/{file_name(0)}"
        options = f"--commitlog {tmp_path}/a --commitlog {tmp_path}/b --read-only-commitlog {tmp_path}/c"
        assert command_on(found, "recover", "--apply") == f"rmqtool recover {root} {options} --apply"

    def test_each_folder_once(self, store: Path) -> None:
        paths = [store / "commitlog", f"{store}/config/../commitlog"]
        found = detect(store, commitlog_paths=paths, read_only_paths=paths[:1])
        assert len(found.commit_log) == len(list((store / "commitlog").iterdir()))

    def test_a_folder_in_the_store_however_it_is_named(
        self, store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(store.parent)
        root = Path(store.name)
        found = detect(root, commitlog_paths=[store / "commitlog"])
        assert found.commit_log_folders == (root / "commitlog",)
        assert found.relative(found.commit_log[0].path).startswith("commitlog/")

    def test_a_folder_that_is_missing(self, store: Path) -> None:
        with pytest.raises(InputError, match="does not exist") as caught:
            detect(store, commitlog_paths=[store / "no"])
        assert caught.value.path == store / "no"

    def test_folders_of_broker_conf_move_with_the_store(self, store: Path, tmp_path: Path) -> None:
        (store / "commitlog").rename(store / "log1")
        conf = tmp_path / "broker.conf"
        conf.write_text("storePathRootDir=/data/rmq\nstorePathCommitLog=/data/rmq/log1\n")
        assert detect(store, broker_conf=conf).commit_log_folders == (store / "log1",)

    def test_a_linked_folder_is_read(self, store: Path, tmp_path: Path) -> None:
        (store / "commitlog").rename(tmp_path / "elsewhere")
        (store / "commitlog").symlink_to(tmp_path / "elsewhere")
        found = detect(store)
        assert found.commit_log and found.relative(found.commit_log[0].path).startswith("commitlog/")


def test_entries_that_do_not_belong(store: Path) -> None:
    (store / "commitlog/notes.txt").write_text("")
    (store / "commitlog/rmqtool-repair").write_text("1")
    (store / f"commitlog/{file_name(1 << 40)}").mkdir()
    (store / "commitlog/99999999999999999999").write_text("")  # more than a Java long
    os.mkfifo(store / f"commitlog/{file_name(1 << 41)}")
    (store / "consumequeue/plain").write_text("")
    (store / "consumequeue/TopicTest/x").mkdir()
    (store / "consumequeue/TopicTest/00").mkdir()
    (store / "consumequeue/TopicTest/0/tmp").write_text("")
    (store / "consumequeue/Empty/3").mkdir(parents=True)
    (store / "index/old").write_text("")
    (store / "index/20260101000000001").mkdir()
    found = detect(store)
    strays = {path.name for path in found.commit_log_strays}
    assert strays == {"notes.txt", file_name(1 << 40), "99999999999999999999", file_name(1 << 41)}
    assert found.guard == store / "commitlog/rmqtool-repair"
    assert {path.name for path in found.consume_queue_strays} == {"plain", "x", "00"}
    assert [path.name for path in found.consume_queues["TopicTest", 0].strays] == ["tmp"]
    assert found.consume_queues["Empty", 3].files == ()
    assert [path.name for path in found.index_strays] == ["20260101000000001", "old"]


def test_dead_links_and_names_that_are_not_text(store: Path) -> None:
    (store / "commitlog/dead").symlink_to(store / "nothing")
    (store / "consumequeue" / os.fsdecode(b"\xff\xfe")).mkdir()
    found = detect(store)
    assert found.commit_log_strays == (store / "commitlog/dead",)
    assert [topic for topic, _ in found.consume_queues] == ["TopicTest"]


@pytest.mark.parametrize(
    ("make", "what", "form"),
    [
        ("consumequeue/CURRENT", "second consume queues", "RocksDB"),
        ("config/topics/CURRENT", "config", "RocksDB"),
        ("kvStore/CURRENT", "pop records", "RocksDB"),
        ("config/tieredStoreMetadata.json", "tiered files", "tiered storage"),
    ],
)
def test_out_of_reach_but_recognised(store: Path, make: str, what: str, form: str) -> None:
    write_sparse(store / make, 1)
    found = detect(store)
    assert [(part.what, part.form) for part in found.unsupported] == [(what, form)]
    assert found.has_files_of_queues == (what != "consume queues")


def test_the_side_store_alone_is_no_sign(store: Path, tmp_path: Path) -> None:
    write_rows(store / "rocksdbstore", {"default": {}, "timer": {}, "trans": {}})
    assert detect(store).not_written == ()
    conf = tmp_path / "broker.conf"
    conf.write_text("indexRocksDBEnable=TRUE\ntransRocksDBEnable=no\n")
    assert [part.what for part in detect(store, broker_conf=conf).not_written] == ["index entries"]


class TestSingleFiles:
    def check(self, path: Path, kind: str) -> StoreLayout:
        with unchanged(path.parent):
            found = detect(path)
        assert (found.kind, found.root) == (kind, None)
        return found

    def test_commit_log(self, store: Path, tmp_path: Path) -> None:
        path = store / "commitlog" / file_name(4096)
        found = self.check(path, "commitlog")
        assert [(file.file_from_offset, file.size) for file in found.commit_log] == [(4096, 4096)]
        assert found.relative(path) == file_name(4096)
        path.rename(tmp_path / "piece.bin")  # the first record says where it was
        assert self.check(tmp_path / "piece.bin", "commitlog").commit_log[0].file_from_offset == 4096

    def test_commit_log_file_never_used(self, store: Path) -> None:
        path = write_sparse(store / "commitlog" / file_name(1 << 20), 4096)
        assert self.check(path, "commitlog").commit_log[0].file_from_offset == 1 << 20

    @pytest.mark.parametrize("start", [1, 300, 1024])
    def test_part_of_a_commit_log_file(self, store: Path, tmp_path: Path, start: int) -> None:
        """As fsck leaves it, whatever its name. Two records in a row have to agree on its place."""
        data = (store / "commitlog" / file_name(4096)).read_bytes()[start:]
        for name in ("#131074", file_name(0)):
            (tmp_path / name).write_bytes(data)
            (file,) = self.check(tmp_path / name, "commitlog").commit_log
            assert (file.file_from_offset, file.size) == (4096 + start, len(data))
        first = data.index(MAGIC_V1.to_bytes(4, signed=True)) - 4
        size = int.from_bytes(data[first : first + 4])
        (tmp_path / "one").write_bytes(b"\1" * 4 + data[first : first + size + 4])
        with pytest.raises(NotAStoreError):
            detect(tmp_path / "one")

    def test_consume_queue(self, store: Path, tmp_path: Path) -> None:
        path = store / "consumequeue/TopicTest/0" / file_name(400)
        found = self.check(path, "consumequeue")
        assert list(found.consume_queues) == [("TopicTest", 0)]
        assert found.consume_queues["TopicTest", 0].files[0].file_from_offset == 400
        path.rename(tmp_path / "units")
        assert list(self.check(tmp_path / "units", "consumequeue").consume_queues) == [("", 0)]

    def test_batch_queue(self, tmp_path: Path) -> None:
        units = [BatchUnit(500 * n, 500, 0, STORE_TIMESTAMP, 10 * n, 10) for n in range(3)]
        write_queue(tmp_path / "batchconsumequeue/T/2", units, file_size=460)
        path = tmp_path / "batchconsumequeue/T/2" / file_name(0)
        assert list(self.check(path, "consumequeue").batch_queues) == [("T", 2)]
        path.rename(tmp_path / "units")
        assert list(self.check(tmp_path / "units", "consumequeue").batch_queues) == [("", 0)]

    def test_index(self, store: Path, tmp_path: Path) -> None:
        path = store / "index/20260101000000000"
        found = self.check(path, "index")
        assert (found.index_slots, found.origins["index_slots"]) == (100, "detected")
        path.rename(tmp_path / "keys")
        self.check(tmp_path / "keys", "index")

    @pytest.mark.parametrize("folder", ["commitlog", "consumequeue/TopicTest/0"])
    def test_a_folder_of_files(self, store: Path, folder: str) -> None:
        found = self.check(store / folder, folder.partition("/")[0])
        assert len(found.commit_log) + len(found.consume_queues) > 0

    @pytest.mark.parametrize("data", [b"", b"hello", b"\0" * 20, b"\0" * 4096, b"\xff" * 920])
    def test_some_other_file(self, tmp_path: Path, data: bytes) -> None:
        (tmp_path / "file").write_bytes(data)
        with pytest.raises(NotAStoreError):
            detect(tmp_path / "file")


class TestNotAStore:
    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(NotAStoreError, match="no such file or folder"):
            detect(tmp_path / "no")

    @pytest.mark.parametrize(("name", "hint"), [("stoer", "did you mean {}?"), ("xyz", "stores there: {}")])
    def test_what_is_near(self, store: Path, name: str, hint: str) -> None:
        with pytest.raises(NotAStoreError) as caught:
            detect(store.parent / name)
        assert caught.value.hint == hint.format(store)

    def test_stores_below(self, store: Path) -> None:
        store.rename(store.parent / "broker-a")
        (store.parent / "broker-b" / "commitlog").mkdir(parents=True)
        (store.parent / "logs").mkdir()
        with pytest.raises(NotAStoreError) as caught:
            detect(store.parent)
        assert caught.value.hint == f"stores there: {store.parent / 'broker-a'}, {store.parent / 'broker-b'}"

    def test_nothing_near(self, tmp_path: Path) -> None:
        (tmp_path / "logs").mkdir()
        for path in (tmp_path / "xyz", tmp_path / "no" / "xyz"):
            with pytest.raises(NotAStoreError, match="no such file or folder") as caught:
                detect(path)
            assert caught.value.hint is None

    def test_neither_file_nor_folder(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(NotAStoreError, match="neither a file nor a folder"):
            detect(tmp_path / "pipe")

    @pytest.mark.parametrize("given", ["..", "consumequeue", "consumequeue/TopicTest", "config", "index"])
    def test_a_folder_nearby(self, store: Path, given: str) -> None:
        path = store.parent if given == ".." else store / given
        with pytest.raises(NotAStoreError) as caught:
            detect(path)
        what = given.partition("/")[0]
        assert caught.value.hint == (
            f"a store is at {store}"
            if given == ".."
            else f"give the store root {store}; dump it with --what {what}"
        )

    def test_config_alone_is_no_store(self, tmp_path: Path) -> None:
        (tmp_path / "config").mkdir()
        with pytest.raises(NotAStoreError):
            detect(tmp_path)

    @pytest.mark.parametrize("keep", ["commitlog", "consumequeue", "index", "checkpoint"])
    def test_one_part_is_enough(self, store: Path, tmp_path: Path, keep: str) -> None:
        (store / "checkpoint").write_bytes(bytes(4096))
        target = tmp_path / "part"
        target.mkdir()
        (store / keep).rename(target / keep)
        assert detect(target).kind == "store"


def test_units_of_one_queue_in_several_files(tmp_path: Path) -> None:
    write_queue(tmp_path / "consumequeue/T/1", [Unit(100 * n, 100, 0) for n in range(45)])
    found = detect(tmp_path)
    assert [file.file_from_offset for file in found.consume_queues["T", 1].files] == [0, 400, 800]
    assert found.consume_queue_file_size == 400


def test_sizes_that_a_broker_ignores_are_ignored(tmp_path: Path) -> None:
    """A blank behind a number, what is none, or more than 32 bits: then what the files show counts."""
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=2048 \nmappedFileSizeConsumeQueue=1k\nmaxIndexNum=3000000000\n")
    (tmp_path / "s" / "commitlog").mkdir(parents=True)
    write_sparse(tmp_path / "s" / "commitlog" / f"{0:020d}", 1 << 20)
    found = detect(tmp_path / "s", broker_conf=conf)
    assert (found.commit_log_file_size, found.origins["commit_log_file_size"]) == (1 << 20, "detected")
    assert (found.consume_queue_file_size, found.origins["consume_queue_file_size"]) == (6_000_000, "default")
    assert (found.index_entries, found.origins["index_entries"]) == (20_000_000, "default")
