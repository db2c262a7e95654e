"""Parts of a predicted start: start() of 4.x, rules that no verdict shows, the outcome as actions."""

from __future__ import annotations

import shutil
import struct
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from rmqtool.broker import queue_reader
from rmqtool.broker.predict import predict_all
from rmqtool.broker.reput import LogFile, Reput, half_message
from rmqtool.broker.rules import RULES
from rmqtool.errors import InputError
from rmqtool.formats import message as form
from rmqtool.message.system_topics import SCHEDULE_TOPIC
from rmqtool.read.store import Store
from rmqtool.storage.layout import StoreFile
from rmqtool.storage.open_files import OpenFiles
from tests.support.build_store import file_name, write_log
from tests.support.records import record as message_record

# -- light queues -----------------------------------------------------------------------------------


def light_store(root: Path) -> None:
    """Six records that name two light queues, one of a retry topic that does, one that names plain queues."""
    found = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "TAGS": "t"}
    made = [
        message_record(
            "TopicTest", b"x", {**found, "INNER_MULTI_QUEUE_OFFSET": f"{n},{n + 4}"}, queue_offset=n
        )
        for n in range(6)
    ]
    made += [message_record("%RETRY%g", b"x", {**found, "INNER_MULTI_QUEUE_OFFSET": "6,10"})]
    other = {"INNER_MULTI_DISPATCH": "a/b,Other", "INNER_MULTI_QUEUE_OFFSET": "0,0"}
    write_log(root / "commitlog", [*made, message_record("TopicTest", b"x", other, queue_id=2)])
    for name in ("checkpoint", "consumequeue"):
        (root / name).mkdir() if name == "consumequeue" else (root / name).write_bytes(bytes(4096))


@pytest.mark.parametrize("abort", [False, True])
def test_light_queues(abort: bool, tmp_path: Path) -> None:
    """5.x leaves retry topics out, and names with a slash. Source: MultiDispatchUtils, ConsumeQueue."""
    light_store(tmp_path)
    with Store.open(tmp_path) as store:
        starts = {each.broker: each for each in predict_all(store, abort=abort)}
    for broker, start in starts.items():
        is_new = broker != "4.9"
        ends = {key: queue.max_after for key, queue in start.queues.items() if key[0] != SCHEDULE_TOPIC}
        light = {("%LMQ%a", 0): 6, ("%LMQ%b", 0): 10} if is_new else {
            ("%LMQ%a", 0): 7, ("%LMQ%b", 0): 11, ("a/b", 2): 1,
        }  # fmt: skip
        assert ends == {
            ("TopicTest", 0): 6,
            ("TopicTest", 2): 1,
            ("%RETRY%g", 0): 1,
            ("Other", 2): 1,
            **light,
        }
        assert any("enableMultiDispatch" in note for note in start.notes)


def test_light_queues_of_a_broker_without(tmp_path: Path) -> None:
    light_store(tmp_path / "store")
    conf = tmp_path / "broker.conf"
    for text, expected in (("false", 0), ("true", 2)):
        conf.write_text(f"enableMultiDispatch={text}\n")
        with Store.open(tmp_path / "store", broker_conf=conf) as store:
            (start,) = predict_all(store, ["5.4"])
        assert sum(topic.startswith("%LMQ%") for topic, _ in start.queues) == expected
        assert not any("enableMultiDispatch" in note for note in start.notes)


# -- reput of 4.x -----------------------------------------------------------------------------------


def record(body: bytes, total: int | None = None) -> bytes:
    """A record of the first version, of which only the lengths matter."""
    head = bytearray(form.HEAD_SIZE_V4)
    head[-4:] = struct.pack(">i", len(body))
    data = bytes(head) + body + b"\x01t" + b"\0\0"
    return struct.pack(">ii", len(data) if total is None else total, form.MAGIC_V1) + data[8:]


def test_half_messages() -> None:
    """A size that is not that of the parts is stepped over by what it says, the bytes by their parts."""
    sound = record(b"x" * 30)
    assert half_message(lambda at, n: sound[at : at + n], 0, len(sound)) is None
    for total in (len(sound) + 1, len(sound) - 1, 1, 1 << 30):
        data = record(b"x" * 30, total)
        assert half_message(lambda at, n, d=data: d[at : at + n], 0, len(data)) == (total, len(data))
    for data in (record(b"x" * 30, -5), record(b"x" * 30, 0), sound[:-1], bytes(200)):
        assert half_message(lambda at, n, d=data: d[at : at + n], 0, len(data)) is None


@pytest.mark.parametrize("is_master", [True, False])
def test_reput_over_half_messages(is_master: bool, tmp_path: Path) -> None:
    """The offset moves by what a half message says, the bytes by its parts; at the end they have parted.

    A master steps over what is left, a slave waits for ever.
    """
    first, last = record(b"a" * 50), record(b"b" * 70)
    half = record(b"h" * 60, 60 + len(record(b"")) + 1)
    data = first + half + last
    path = tmp_path / file_name(0)
    path.write_bytes(data.ljust(4096, b"\0"))
    sizes: list[int] = []
    log = [LogFile(StoreFile(path, 0, 4096), len(data))]
    reput = Reput(
        log, 4096, RULES["4.9"], lambda batch, count: sizes.extend(batch.rows["size"][:count].tolist()),
        is_master=is_master,
    )  # fmt: skip
    assert reput.run(-1) is is_master
    assert sizes == [len(first), len(last)]
    assert reput.position == len(data) + 1 + (len(half) if is_master else 0)


def test_reput_ends_in_a_gap(tmp_path: Path) -> None:
    """Behind a blank the next file is not there: start() waits for ever."""
    data = record(b"a" * 50)
    for offset in (0, 8192):
        blank = form.encode_blank(4096 - len(data))
        (tmp_path / file_name(offset)).write_bytes((data + blank).ljust(4096, b"\0"))
    log = [LogFile(StoreFile(tmp_path / file_name(offset), offset, 4096), 4096) for offset in (0, 8192)]
    reput = Reput(log, 4096, RULES["4.9"], lambda batch, count: None, is_master=True)
    assert not reput.run(-1)
    assert reput.position == 4096


def reput_of(log: list[LogFile], most: int) -> tuple[bool, int, int]:
    """Whether start() ends, where, and records dispatched; fails where those are more than `most`."""
    taken = 0

    def take(_: object, count: int) -> None:
        nonlocal taken
        taken += count
        assert taken <= most, "dispatch goes round"

    reput = Reput(log, 4096, RULES["4.9"], take, is_master=True)
    return reput.run(-1), reput.position, taken


@pytest.mark.parametrize("copied", [0, 4096, 8192])
@pytest.mark.parametrize("name", [1, 20, 2048, 4095, 4097, 6000, 8191, 12288, (1 << 63) - 1])
def test_reput_of_overlapping_files_ends(name: int, copied: int, tmp_path: Path) -> None:
    """A file under a name that overlaps others leads dispatch back to where it was before."""
    data = record(b"a" * 50)
    for offset in (0, 4096, 8192):
        is_last = offset == 8192
        tail = b"" if is_last else form.encode_blank(4096 - len(data))
        (tmp_path / file_name(offset)).write_bytes((data + tail).ljust(4096, b"\0"))
    (tmp_path / file_name(name)).write_bytes((tmp_path / file_name(copied)).read_bytes())
    log = [
        LogFile(StoreFile(path, int(path.name), 4096), 4096 if number < 3 else len(data))
        for number, path in enumerate(sorted(tmp_path.iterdir()))
    ]
    done, position, taken = reput_of(log, 100)
    assert taken >= 1
    assert done or position < log[-1].file.file_from_offset + log[-1].position


def test_reput_goes_round(tmp_path: Path) -> None:
    """The second file is looked for at its place in the list, where the overlapping one is, from its start.

    Its blank leads to the second file again. Source: MappedFileQueue#findMappedFileByOffset of 4.9.7.
    """
    data = record(b"a" * 50)
    full = (data + form.encode_blank(4096 - len(data))).ljust(4096, b"\0")
    for offset in (0, 20, 4096):
        (tmp_path / file_name(offset)).write_bytes(full)
    log = [LogFile(StoreFile(tmp_path / file_name(offset), offset, 4096), 4096) for offset in (0, 20, 4096)]
    assert reput_of(log, 10) == (False, 4096, 2)


@pytest.mark.parametrize("name", ["20", "1048575", "1048577", "524288", "9223372036854775807"])
@pytest.mark.parametrize("abort", [False, True])
def test_hostile_names_of_log_files(name: str, abort: bool, store_copy: Callable[[str], Path]) -> None:
    """A log file with a name that overlaps, and no queues: every start is predicted, none for ever."""
    root = store_copy("ok_497_clean")
    for folder in ("consumequeue", "batchconsumequeue"):
        shutil.rmtree(root / folder, ignore_errors=True)
    first = min((root / "commitlog").iterdir())
    shutil.copy(first, root / "commitlog" / name.zfill(20))
    with Store.open(root) as store:
        for found in predict_all(store, abort=abort):
            assert found.loads or found.load_error
            assert not found.hangs or any("does not get past" in note for note in found.notes)


# -- where the versions differ beyond the verdicts ---------------------------------------------------


def test_queues_are_cut_by_their_end_after_dispatch(store_copy: Callable[[str], Path]) -> None:
    """5.4 cuts queues when dispatch has brought them to the log's end, 5.3 only when they were there before.

    An empty last file then gets a unit of zeros (5.4), or ends load() with an exception (5.3).
    Source: ConsumeQueueStore#truncateDirty of 5.4.0, CommitLog#recoverAbnormally of 5.3.3.
    """
    root = store_copy("ok_540_clean")
    with Store.open(root) as store:
        offsets = {
            key: unit.physical_offset
            for key in store.layout.consume_queues
            if (unit := store.queues[key].last_unit()) is not None
        }
        newest = max(offsets, key=lambda key: offsets[key])
        end, file = store.max_offset(*newest), store.layout.consume_queues[newest].files[-1]
    with file.path.open("r+b") as out:  # so that the queues are behind the log
        out.seek((end - 1) * 20 - file.file_from_offset)
        out.write(bytes(20))
    folder = root / "consumequeue/NoSuchTopic/0"
    folder.mkdir(parents=True)
    (folder / file_name(0)).write_bytes(struct.pack(">qiq", 0, 359, 0) * 1000)
    (folder / file_name(20_000)).write_bytes(bytes(20_000))
    with Store.open(root) as store:
        _, before, after = predict_all(store, abort=True)
    assert (before.loads, after.loads) == (False, True)
    assert before.load_error is not None and "correctMinOffset" in before.load_error
    assert after.queues["NoSuchTopic", 0].max_after == 1001


@pytest.mark.parametrize(("setting", "value", "least"), [
    ("maxIndexNum", 1, 2), ("mapperFileSizeBatchConsumeQueue", 45, 46), ("maxHashSlotNum", 0, None),
])  # fmt: skip
def test_files_without_room(
    setting: str, value: int, least: int | None, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """A file in which nothing has room is made for ever, by a broker and by whoever computes what it does."""
    root, conf = store_copy("ok_540_clean"), tmp_path / "broker.conf"
    conf.write_text(f"{setting}={value}\n")
    wanted = "must be positive" if least is None else f"must be at least {least}"
    with pytest.raises(InputError, match=wanted):
        Store.open(root, broker_conf=conf)
    conf.write_text(f"{setting}={least or 1}\n")
    shutil.rmtree(root / "index")
    with Store.open(root, broker_conf=conf) as store:
        assert len(predict_all(store, abort=True)) == 3


@pytest.mark.parametrize("room", [32 << 20, 0])
def test_each_queue_file_is_read_once_for_all_brokers(
    room: int, store_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be more queues than files that can be open. Without room, the result is the same."""
    root = store_copy("ok_540_clean")
    with Store.open(root) as store:
        expected = predict_all(store, abort=True)
    reads: Counter[Path] = Counter()
    read = OpenFiles.read

    def counted(files: OpenFiles, path: Path, offset: int, length: int) -> bytes:
        reads[path] += 1
        return read(files, path, offset, length)

    monkeypatch.setattr(OpenFiles, "read", counted)
    monkeypatch.setattr(queue_reader, "_HEADS_BYTES", room)
    with Store.open(root) as store:
        assert predict_all(store, abort=True) == expected
    of_queues = {count for path, count in reads.items() if path.parent.parent.parent.name == "consumequeue"}
    assert of_queues == {1} if room else min(of_queues) > 1


@pytest.mark.parametrize("abort", [False, True])
def test_starts_that_would_scan_too_much_are_left_out(abort: bool, store_copy: Callable[[str], Path]) -> None:
    """The others are predicted as without a limit. One megabyte is one log file; there are four."""
    with Store.open(store_copy("ok_540_clean")) as store:
        every = predict_all(store, abort=abort, unreachable=False)
        found = [
            predict_all(store, abort=abort, unreachable=False, scan_limit=size << 20) for size in range(5)
        ]
    assert found[0] == [] and found[4] == every
    for fewer, more in pairwise(found):
        assert [each for each in every if each in more] == more
        assert [each for each in more if each in fewer] == fewer
    assert abort or 0 < len(found[1]) < len(found[4])
