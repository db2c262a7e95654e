"""Stores with a DLedger log: what the broker answered, the same messages in a classic log, and damage."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from rmqtool.broker.predict import predict_all
from rmqtool.cli import main
from rmqtool.errors import (
    EXIT_FINDINGS,
    EXIT_INPUT,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_USAGE,
    FormatError,
    RefusedError,
)
from rmqtool.formats import ledger, properties
from rmqtool.log.events import StoredMessage
from rmqtool.message.rows import message_row
from rmqtool.problems import LEDGER_CURE
from rmqtool.read.access import plan_access
from rmqtool.read.messages import message_batches
from rmqtool.read.selection import Selection
from rmqtool.read.split import split
from rmqtool.read.store import Store
from rmqtool.repair.recover.assemble import plan_recover
from rmqtool.repair.recover.request import Request
from tests.support.build_store import patch
from tests.support.ledgers import converted, write_ledger
from tests.support.rebuild_checks import without
from tests.support.records import record
from tests.support.stores import FIXTURES, Library, case
from tests.support.sweep import in_sweeps, sample
from tests.support.trees import tree_rows, unchanged
from tests.support.whole_store import codes_of, findings_of, keyed, report_of

pytestmark = pytest.mark.sweep

Capture = pytest.CaptureFixture[str]
REAL = ("kind_dledger_497", "kind_dledger_540")
ORIGIN = "ok_540_clean"


def answers(name: str) -> dict[str, Any]:
    """What the broker of a real store answered."""
    found: dict[str, Any] = json.loads(lzma.decompress((FIXTURES / name / "answers.json.xz").read_bytes()))
    return found


@pytest.mark.parametrize("name", REAL)
def test_units_and_messages_are_those_of_the_broker(name: str, cases: Library) -> None:
    """The half topic may have grown by a transaction check after the answers."""
    path, checked = cases.path(name), 0
    with unchanged(path), Store.open(path) as store:
        for key, said in answers(name)["topics"].items():
            topic, _, number = key.rpartition("-")
            queue = store.queue(topic, int(number))
            assert queue is not None
            units = [[u.physical_offset, u.size, u.tags_code] for _, u in queue.units()]
            assert units[: len(said["units"])] == said["units"]
            assert store.min_offset(topic, int(number)) == said["min"]
            assert store.max_offset(topic, int(number)) - said["max"] in (0, int("HALF" in topic))
            for message in said["messages"]:
                stored = store.get_by_queue_offset(topic, int(number), message[0])
                assert stored is not None and not stored.status
                assert row_of(stored) == message
                identifier = message_row(stored.message, stored.physical_offset, stored.file)["offset_msg_id"]
                assert store.get_by_id(identifier) == stored
                checked += 1
    assert checked > 70


def row_of(stored: StoredMessage) -> list[Any]:
    """A message as the answers have it; without a unique key its id is the offset message id."""
    message, physical_offset = stored.message, stored.physical_offset
    found = properties.decode(message.properties_bytes)
    identifier = message_row(message, physical_offset, stored.file)["offset_msg_id"]
    return [
        message.queue_offset, physical_offset, message.total_size, message.store_timestamp,
        found.get("TAGS"), found.get("KEYS"), message.body_crc, found.get("UNIQ_KEY", identifier),
    ]  # fmt: skip


@pytest.mark.parametrize("scan", ["auto", "always", "never"])
@pytest.mark.parametrize("name", REAL)
def test_keys_are_found_where_the_broker_found_them(
    name: str, scan: str, cases: Library, capfd: Capture
) -> None:
    path = cases.path(name)
    for asked, said in answers(name)["query"].items():
        if isinstance(said, str):
            continue  # an error of the client: there is no such topic
        topic, _, key = asked.partition("#")
        capfd.readouterr()
        with unchanged(path):
            assert (
                main(
                    ["lookup", str(path), "--topic", topic, "--key", key, "--scan", scan, "--format", "jsonl"]
                )
                == EXIT_OK
            )
        found = [json.loads(line)["physical_offset"] for line in capfd.readouterr().out.splitlines()]
        assert sorted(found) == said


@pytest.mark.parametrize("name", REAL)
def test_healthy_stores_are_sound(name: str, cases: Library, capfd: Capture) -> None:
    path = cases.path(name)
    with unchanged(path):
        assert main(["verify", str(path)]) == EXIT_OK
        assert "sound" in capfd.readouterr().err
        assert main(["info", str(path)]) == EXIT_OK
    count = report_of(path).records
    assert (
        f"DLedger      dledger-n0: 1 file from offset 0, entries to {count - 1}, committed to"
        in capfd.readouterr().out
    )


@pytest.mark.parametrize("name", REAL)
def test_the_log_is_never_written(name: str, cases: Library, capfd: Capture, tmp_path: Path) -> None:
    """Replicas would differ: exit 4, with the way out."""
    store = cases.copy(name, tmp_path / "store")
    commands = (
        ("append", "--topic", "TopicA", "--body", "x"), ("deliver", "--apply"), ("recover", "--fill", "none"),
        ("recover", "--mode", "broker", "--broker", "5.4", "--apply", "--force", "--yes"), ("expire",),
        ("expire", "--apply", "--force"),
    )  # fmt: skip
    for command, *arguments in commands:
        capfd.readouterr()
        with unchanged(store):
            assert main([command, str(store), *arguments]) == EXIT_REFUSED
        err = capfd.readouterr().err
        assert "the commit log is in DLedger: its replicas would differ" in err
        assert f"rmqtool copy {store} --output NEW writes the sound messages" in err
    with Store.open(store) as opened:
        with pytest.raises(RefusedError):
            plan_recover(opened, Request("broker", "5.4"))
        assert predict_all(opened) == []


@pytest.fixture(scope="module")
def pairs(cases: Library, tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, Path]]:
    """A classic store of four files, and its messages in a DLedger log: from the start or a file on."""
    folder, source = tmp_path_factory.mktemp("ledgers"), cases.path(ORIGIN)
    settings = dict(case(ORIGIN).settings)
    return {
        kept: (source, converted(source, folder / f"from_{kept}", classic_files=kept, settings=settings))
        for kept in (*in_sweeps([0]), 2)
    }


def rows(path: Path, **selected: Any) -> list[dict[str, Any]]:
    """The messages of a store as rows, but for their places."""
    with Store.open(path) as store:
        found = [row for batch in message_batches(store, Selection(**selected)) for row in batch.to_pylist()]
    for row in found:
        del row["physical_offset"], row["file"], row["offset_msg_id"]
    return found


@pytest.mark.parametrize("kept", [*in_sweeps([0]), 2])
def test_a_ledger_reads_like_the_classic_log(kept: int, pairs: dict[int, tuple[Path, Path]]) -> None:
    """All messages, and those of a topic by way of the queues, are the same."""
    classic, other = pairs[kept]
    assert {"CL", "DL"}.isdisjoint(code[:2] for code in codes_of(other))
    report = report_of(other)
    assert report.records == report_of(classic).records == 4099
    assert rows(other) == rows(classic)
    for selected in (
        {"topics": ["pubTopicOne"]},
        {"tags": ["TagA"]},
        {"topics": ["pubOrder"], "queues": [1]},
    ):
        assert rows(other, **selected) == rows(classic, **selected)


@pytest.mark.parametrize("kept", [*in_sweeps([0]), 2])
def test_walks_in_plain_python(kept: int, pairs: dict[int, tuple[Path, Path]]) -> None:
    """Forwards, backwards and from any place they give the records of the batches."""
    with Store.open(pairs[kept][1]) as store:
        wanted = [
            offset for batch in message_batches(store) for offset in batch["physical_offset"].to_pylist()
        ]
        assert [each.physical_offset for each in store.messages()] == wanted
        assert [each.physical_offset for each in store.messages(reverse=True)] == wanted[::-1]
        for number in (0, 1, 700, 1500, 2600, len(wanted) - 1):
            for start in (
                wanted[number],
                wanted[number] - 48 * (number > 2500),
                wanted[number] - 10 * (number > 0),
            ):
                part = Selection(from_offset=start, limit=5)
                assert [each.physical_offset for each in store.messages(part)] == wanted[number : number + 5]
            end = Selection(to_offset=wanted[number], limit=20)
            last = [each.physical_offset for each in store.messages(end, reverse=True)]
            assert last == wanted[:number][::-1][:20]
            head = store.head(wanted[number])
            assert head is not None and head.stored_offset == wanted[number]
        assert store.end_offset() == store.get(wanted[-1]).end  # type: ignore[union-attr]


@pytest.mark.parametrize("kept", [*in_sweeps([0]), 2])
def test_pieces_give_what_the_whole_gives(kept: int, pairs: dict[int, tuple[Path, Path]]) -> None:
    """Workers begin at records, by the queues or, without queues, by a walk."""
    with Store.open(pairs[kept][1]) as store:
        for selection in (Selection(), Selection(topics=["pubTopicOne"]), Selection(from_offset=100_000)):
            access = plan_access(store, selection)
            whole = offsets(store, selection, access)
            pieces = split(store, access, target_bytes=100_000)
            assert len(pieces) > 2
            assert [each for piece in pieces for each in offsets(store, selection, piece)] == whole


def offsets(store: Store, selection: Selection, access: Any) -> list[int]:
    """The physical offsets of the messages of an access."""
    batches = message_batches(store, selection, access=access, columns=["physical_offset"])
    return [offset for batch in batches for offset in batch["physical_offset"].to_pylist()]


def test_a_copy_has_no_ledger(pairs: dict[int, tuple[Path, Path]], tmp_path: Path, capfd: Capture) -> None:
    """The way out: a sound classic store, equal to the copy of the classic store byte for byte."""
    copies = []
    for number, source in enumerate((pairs[2][0], *(ledger_store for _, ledger_store in pairs.values()))):
        copies.append(tmp_path / f"copy{number}")
        assert main(["copy", str(source), "--output", str(copies[-1]), "--quiet"]) == EXIT_OK
        assert not list(copies[-1].glob("dledger*")) and not codes_of(copies[-1])
    capfd.readouterr()
    for sides in ((copies[0], pairs[2][1]), (pairs[2][1], copies[0])):
        assert main(["diff", *map(str, sides)]) == EXIT_USAGE
        assert "only one of the stores has its log in DLedger" in capfd.readouterr().err
    for other in copies[1:]:
        assert main(["diff", str(copies[0]), str(other)]) == EXIT_OK
        for part in ("commitlog", "consumequeue"):
            files = sorted(path for path in (copies[0] / part).rglob("*") if path.is_file())
            assert files
            for path in files:
                assert path.read_bytes() == (other / path.relative_to(copies[0])).read_bytes()


@pytest.mark.parametrize("name", REAL)
def test_queues_and_index_are_rebuilt(
    name: str, cases: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte as the broker had written them; the log stays as it is."""
    store = cases.copy(name, tmp_path / "store")
    files = {
        path: path.read_bytes() for part in ("consumequeue", "index") for path in (store / part).rglob("*")
        if path.is_file()
    }  # fmt: skip
    without(store, "consumequeue", "index")
    (store / "consumequeue").mkdir()
    conf = tmp_path / "broker.conf"
    conf.write_text((FIXTURES / name / "broker.conf").read_text().replace("STORE", str(tmp_path)))
    kept = (store / "dledger-n0/data/00000000000000000000").read_bytes()
    assert main(["rebuild", str(store), "--apply", "--broker-conf", str(conf), "--quiet"]) == EXIT_OK
    queues = {path: data for path, data in files.items() if "consumequeue" in path.parts}
    assert {path: path.read_bytes() for path in queues} == queues
    assert not codes_of(store)
    assert (store / "dledger-n0/data/00000000000000000000").read_bytes() == kept
    assert not (store / "commitlog").exists() and not list(store.rglob("rmqtool-repair"))
    (backup,) = tmp_path.glob("store.rmqtool-backup-*")
    monkeypatch.chdir(tmp_path)  # the line that is printed has the paths that were typed
    assert main(["recover", "store", "--undo", backup.name]) == EXIT_OK
    assert not any(path.exists() for path in queues) and "CQ01" in codes_of(store)


# damage


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A sound DLedger store of three small files."""
    return small_store(tmp_path / "small")


FILE_SIZE = 4096


def small_store(root: Path) -> Path:
    """A DLedger store whose queues and index are not there yet."""
    made = write_ledger(root / "dledger-n0", [each for each in keyed(30)], file_size=FILE_SIZE, term=4)
    (root / "consumequeue").mkdir()
    assert len({each.physical_offset // FILE_SIZE for each in made}) > 2
    return root


def entries_of(root: Path) -> list[tuple[Path, int, int]]:
    """(file, position in it, size) of each entry."""
    found = []
    for path in sorted((root / "dledger-n0/data").iterdir()):
        data, position = path.read_bytes(), 0
        while len(data) - position >= 8:
            magic, size = struct.unpack_from(">ii", data, position)
            if magic != ledger.MAGIC:
                break
            found.append((path, position, size))
            position += size
    return found


def log_codes(root: Path) -> set[str]:
    """What verify says of the log and of the ledger."""
    return {code for code in codes_of(root, passes=["files", "log"])}


def test_a_wrong_header_costs_no_message(small: Path, tmp_path: Path) -> None:
    """Every reader gets the record, and a copy has it."""
    for path, position, _ in entries_of(small)[3:9]:
        patch(path, position, bytes(range(48)))
    assert "DL01" in log_codes(small)
    with Store.open(small) as store:
        assert sum(1 for _ in store.messages()) == 30
        found = [row["status"] for batch in message_batches(store) for row in batch.to_pylist()]
        assert len(found) == 30 and all(status in ("ok", ["ok"]) for status in found)
    assert main(["copy", str(small), "--output", str(tmp_path / "copy"), "--quiet"]) == EXIT_OK
    assert report_of(tmp_path / "copy").records == 30


def test_a_small_store_is_sound(small: Path) -> None:
    assert not log_codes(small)
    assert report_of(small).records == 30


@pytest.mark.parametrize(
    ("field", "codes"),
    [("magic", {"DL01"}), ("size", {"DL01"}), ("position", {"DL01"}), ("body_length", {"DL01"}),
     ("entry_index", {"DL02", "DL04"}), ("term", {"DL03", "DL04"}),
     ("channel", set()), ("chain_crc", set()), ("body_crc", set())],
)  # fmt: skip
def test_every_field_of_every_header(field: str, codes: set[str], small: Path) -> None:
    """A changed bit is found in any entry, the first of a file and the last of the log included."""
    entries = entries_of(small)
    files = [path for path, _, _ in entries]
    ends = [n for n, path in enumerate(files) if path not in files[:n] or path not in files[n + 1 :]]
    for number in sorted({*ends, *sample(range(len(entries)), 6)}):
        path, position, _ = entries[number]
        at = (
            position
            + ledger.HEADER.offsets[field]
            + (7 if field in ("entry_index", "term", "position") else 3)
        )
        before = path.read_bytes()[at]
        patch(path, at, bytes([before ^ 2]))
        found = log_codes(small)
        patch(path, at, bytes([before]))
        assert "DL01" not in found or codes == {"DL01"}
        assert codes - {"DL03", "DL04"} <= found, (path.name, position)
        assert ("DL04" in codes) == bool(found & {"DL04", "DL05"}), (path.name, position)
    assert not log_codes(small)


def test_a_term_that_falls(small: Path) -> None:
    """Also from the last entry of a file to the first of the next one."""
    places = entries_of(small)
    for number in (3, next(n for n, (path, _, _) in enumerate(places) if path != places[0][0]) - 1):
        path, position, _ = places[number]
        patch(path, position + ledger.HEADER.offsets["term"], struct.pack(">q", 5))
        assert "DL03" in log_codes(small)
        patch(path, position + ledger.HEADER.offsets["term"], struct.pack(">q", 4))
    (small / "dledger-n0/currterm").write_text("currTerm=3\nvoteLeader=n0\n")
    assert log_codes(small) == {"DL07"}


def test_an_entry_that_is_missing_or_twice(small: Path) -> None:
    """The numbers of the entries of one file are one higher or lower than the file before says."""
    first = entries_of(small)[0][0]
    for step in (1, -1):
        copy = shutil.copytree(small, small.with_name(f"step{step}"))
        for path, position, _ in entries_of(copy):
            if path.name != first.name:
                at = position + ledger.HEADER.offsets["entry_index"]
                (number,) = struct.unpack_from(">q", path.read_bytes(), at)
                patch(path, at, struct.pack(">q", number + step))
        found = [item for item in findings_of(copy, passes=["log"]) if item.problem.code == "DL02"]
        assert [item.detail["records"] for item in found] == [1]


def test_damaged_records_do_not_hide_the_numbers_after_them(small: Path) -> None:
    """A hole is the record's own damage; the entry after it continues."""
    path, position, _ = entries_of(small)[4]
    patch(path, position + 48 + 4, b"\0")
    assert log_codes(small) == {"CL05"}
    path, position, _ = entries_of(small)[6]
    patch(path, position + ledger.HEADER.offsets["entry_index"], struct.pack(">q", 2))
    assert {"CL05", "DL02"} <= log_codes(small)


def test_a_torn_tail(small: Path) -> None:
    """The last entry was not written in full: a note, and the entry index may be ahead of it."""
    path, position, size = entries_of(small)[-1]
    for kept in (4, 30, 48, 60, size - 40):
        data = path.read_bytes()
        patch(path, position + kept, bytes(size - kept))
        assert log_codes(small) <= {"CL01", "DL09"} and "CL01" in log_codes(small), kept
        (small / "dledger-n0/checkpoint").write_text("committedIndex=28\nendIndex=28\n")
        assert log_codes(small) == {"CL01"}
        (small / "dledger-n0/checkpoint").write_text("committedIndex=29\nendIndex=29\n")
        path.write_bytes(data)


def test_the_end_mark_of_a_file(small: Path) -> None:
    """Without it, or with a wrong size, the file before the last is damaged."""
    path, position, size = [each for each in entries_of(small) if each[0].name == "0" * 20][-1]
    end = position + size
    assert struct.unpack_from(">ii", path.read_bytes(), end) == (-1, FILE_SIZE - end)
    patch(path, end + 4, struct.pack(">i", FILE_SIZE - end - 1))
    assert log_codes(small) == {"CL10"}
    patch(path, end, bytes(8))
    assert log_codes(small) == {"CL11"}


def test_the_index_of_entries(small: Path) -> None:
    """Missing units at its end are a note, between others damage; without any file the note says all."""
    index = small / "dledger-n0/index" / ("0" * 20)
    saved = index.read_bytes()[: 30 * 32]
    patch(index, 29 * 32, bytes(32))
    assert log_codes(small) == {"DL05"}
    patch(index, 11 * 32, bytes(32))
    assert log_codes(small) == {"DL04", "DL05"}
    patch(index, 0, saved)
    for field in ("magic", "position", "size", "entry_index", "term"):
        at = 3 * 32 + ledger.INDEX_UNIT.offsets[field] + 3
        before = index.read_bytes()[at : at + 1]
        patch(index, at, b"\x55")
        assert log_codes(small) == {"DL04"}, field
        patch(index, at, before)
    shutil.rmtree(small / "dledger-n0/index")
    found = findings_of(small, passes=["log"])
    assert [(item.problem.code, item.detail) for item in found] == [
        ("DL05", {"entry_index": 0, "entries": 30})
    ]


def test_the_state_of_the_ledger(small: Path) -> None:
    checkpoint, term = small / "dledger-n0/checkpoint", small / "dledger-n0/currterm"
    for text, codes in (
        ("committedIndex=27\nendIndex=29\n", {"DL08"}), ("committedIndex=27\nendIndex=27\n", {"DL08"}),
        ("committedIndex=30\nendIndex=30\n", {"DL09"}), ("committedIndex=29\nendIndex=31\n", {"DL09"}),
        ("endIndex=29\n", {"DL07"}), ("committedIndex=x\nendIndex=29\n", {"DL07"}), ("", {"DL07"}),
        ("#a comment\n\nendIndex = 29\ncommittedIndex:29", set()), ("no pairs", {"DL07"}),
    ):  # fmt: skip
        checkpoint.write_text(text)
        assert log_codes(small) == codes, text
    term.unlink()
    assert log_codes(small) == {"DL07"}


def test_sources_of_every_form(small: Path, capfd: Capture, tmp_path: Path) -> None:
    """A file or the folder of a DLedger log alone, a file with another name, a tar."""
    data = small / "dledger-n0/data"
    moved = shutil.copyfile(sorted(data.iterdir())[1], tmp_path / "taken")
    packed = tmp_path / "small.tar"
    shutil.make_archive(str(tmp_path / "small"), "tar", small.parent, small.name)
    counts = []
    for path in (data, sorted(data.iterdir())[1], moved, packed):
        capfd.readouterr()
        assert (
            main(["dump", str(path), "--fields", "physical_offset,status", "--format", "jsonl"]) == EXIT_OK
        ), path
        found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        assert all(row["status"] == ["ok"] or row["status"] == "ok" for row in found), found[:3]
        counts.append(len(found))
    assert counts[0] == counts[3] == 30 and counts[1] == counts[2] > 5


def test_the_folder_of_a_ledger_alone_is_no_store(small: Path, capfd: Capture, tmp_path: Path) -> None:
    """Its checkpoint and index are not those of a store: a repair would replace them."""
    for name in ("dledger-n0", "renamed"):
        ledger_folder = shutil.copytree(small / "dledger-n0", tmp_path / "copy" / name)
        before = tree_rows(ledger_folder)
        for command in (["verify"], ["recover", "--apply", "--yes"], ["rebuild", "--apply"]):
            assert main([command[0], str(ledger_folder), *command[1:]]) == EXIT_INPUT
            assert f"{ledger_folder / 'data'} shows its records alone" in capfd.readouterr().err
        assert tree_rows(ledger_folder) == before
    shutil.rmtree(tmp_path / "copy" / "renamed")
    with Store.open(tmp_path / "copy") as store:  # all that is left of a store
        assert sum(1 for _ in store.messages()) == 30


def test_an_empty_folder_is_no_ledger(cases: Library, capfd: Capture, tmp_path: Path) -> None:
    """A broker makes data/ and index/ at once: the store is a classic one, for every command."""
    store = cases.copy("ok_540_small_ipv6", tmp_path / "store")
    (store / "dledger-n0").mkdir()
    with Store.open(store) as opened:
        assert opened.layout.ledger is None and opened.layout.has_files_of_log
    assert not codes_of(store)
    for command in (["recover"], ["append", "--topic", "New", "--body", "x", "--create-topic"], ["verify"]):
        assert main([command[0], str(store), *command[1:]]) == EXIT_OK, capfd.readouterr().err
    (tmp_path / "alone/dledger-n0").mkdir(parents=True)
    assert main(["verify", str(tmp_path / "alone")]) == EXIT_INPUT
    assert "this folder holds no store" in capfd.readouterr().err
    (store / "dledger-n0/data").mkdir()
    with Store.open(store) as opened:
        assert opened.layout.ledger is not None


def test_a_file_that_is_missing_on_either_side(
    pairs: dict[int, tuple[Path, Path]], small: Path, capfd: Capture, tmp_path: Path
) -> None:
    """Of a converted store: the last classic file, or the first of the ledger; inside of each it is known."""
    places = "commitlog or dledger-n0/data"
    for origin, lost, sides in (
        (pairs[2][1], "dledger-n0/data/00000000000002097152", f", in {places}: 00000000000002097152"),
        (pairs[2][1], "commitlog/00000000000001048576", f", in {places}: 00000000000001048576"),
        (small, f"dledger-n0/data/{FILE_SIZE:020}", ""),
    ):
        store = shutil.copytree(origin, tmp_path / f"lost{Path(lost).name}")
        (store / lost).unlink()
        (found,) = [item for item in findings_of(store, passes=["files"]) if item.problem.code == "CL20"]
        assert found.row()["message"] == f"a file is missing between two others{sides}"
        assert main(["dump", str(store), "--stats-only"]) == EXIT_FINDINGS
        assert f"CL20 a file is missing between two others{sides}: " in capfd.readouterr().err


def test_one_of_several_ledgers(small: Path, tmp_path: Path, capfd: Capture) -> None:
    """Which one it is, broker.conf says; without it nothing is guessed."""
    shutil.copytree(small / "dledger-n0", small / "dledger-n1")
    assert "UN01" in codes_of(small)
    assert main(["lookup", str(small), "--key", "k", "--topic", "T"]) == EXIT_INPUT
    err = capfd.readouterr().err
    assert "one of several DLedger logs" in err and "dLegerSelfId says which one (--broker-conf FILE)" in err
    assert main(["doctor", str(small)]) == EXIT_INPUT
    assert "No error was found, but 1 warning" in capfd.readouterr().out
    conf = tmp_path / "broker.conf"
    conf.write_text("dLegerSelfId=n1\n")
    with Store.open(small, broker_conf=conf) as store:
        assert sum(1 for _ in store.messages()) == 30
        assert store.layout.ledger is not None and store.layout.ledger.folder.name == "dledger-n1"
    elsewhere = shutil.move(small / "dledger-n1/data", tmp_path / "data")
    conf.write_text(f"dLegerSelfId=n1\nstorePathDLedgerCommitLog={elsewhere}\n")
    with Store.open(small, broker_conf=conf) as store:
        assert sum(1 for _ in store.messages()) == 30


@pytest.mark.parametrize("lost", ["data", "data/" + "0" * 20])
def test_a_ledger_without_its_log(lost: str, cases: Library, capfd: Capture, tmp_path: Path) -> None:
    """Every command names the folder; none offers to copy messages that are not there."""
    store = cases.copy("kind_dledger_540", tmp_path / "store")
    path = store / "dledger-n0" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = {item.problem.code: item for item in findings_of(store)}
    assert found.keys() >= {"CL26", "DL09"} and found["CL26"].path == "dledger-n0/data"
    for command in ("verify", "info", "doctor", "dump", "stats"):
        capfd.readouterr()
        with unchanged(store):
            assert main([command, str(store)]) == EXIT_FINDINGS, command
        out, err = capfd.readouterr()
        text = " ".join((out + err).split())
        assert "CL26" in text and "dledger-n0/data" in text and "storePathDLedgerCommitLog" in text, command
        assert "copy" not in err or command != "verify"


def test_classic_files_that_the_ledger_hides(small: Path) -> None:
    """Only files below the ledger's first offset belong to the log."""
    path = small / "commitlog" / ("0" * 20)
    path.parent.mkdir()
    path.write_bytes(bytes(FILE_SIZE))
    assert log_codes(small) == {"DL10"}
    assert report_of(small).records == 30


def test_explained(small: Path, capfd: Capture) -> None:
    """A record, the header of its entry, and the end of a file."""
    places = entries_of(small)
    path, position, size = places[3]
    for offset, field, note in (
        (position + 48, "total_size", ""), (position, "magic", f"is at {position + 48}"),
        (position + 47, "magic", f"is at {position + 48}"), (20, "magic", "is at 48"),
        (position + 60, "total_size", f"inside the record at {position + 48}"),
    ):  # fmt: skip
        assert main(["dump", str(small), "--explain", str(offset), "--format", "jsonl"]) == EXIT_OK
        out, err = capfd.readouterr()
        assert json.loads(out.splitlines()[0])["field"] == field and note in err
    last = [each for each in places if each[0] == path][-1]
    end = last[1] + last[2]
    assert main(["dump", str(small), "--explain", str(end), "--format", "jsonl"]) == EXIT_OK
    assert [json.loads(line)["value"] for line in capfd.readouterr().out.splitlines()] == [
        "FFFFFFFF  end of a DLedger file",
        str(FILE_SIZE - end),
    ]


def test_every_hint_leads_to_the_damaged_record(cases: Library, capfd: Capture, tmp_path: Path) -> None:
    """It is 48 bytes after the start of the damaged range, which is that of its entry."""
    store = cases.copy("kind_dledger_540", tmp_path / "store")
    with Store.open(store) as opened:
        lost = opened.get_by_queue_offset("TopicA", 0, 10)
        assert lost is not None
        place, name = lost.physical_offset, "TopicA queue 0 offset 10, key20"
    with (store / "dledger-n0/data" / "0".zfill(20)).open("r+b") as file:
        file.seek(place + 80)
        file.write(b"\xee" * 40)
    assert main(["verify", str(store)]) == EXIT_FINDINGS
    out, err = capfd.readouterr()
    assert f"its record at {place}" in " ".join(out.split())
    line = f"rmqtool dump {store} --explain {place}\n"
    assert f"1 message of TopicA: {name}" in err and line in err
    assert main(["verify", str(store), "--json"]) == EXIT_FINDINGS
    (row,) = (json.loads(each) for each in capfd.readouterr().out.splitlines())
    assert row["repair"] == LEDGER_CURE and row["detail"]["record_physical_offset"] == place
    assert (row["problem"], row["physical_offset"]) == ("CL04", place - 48)
    assert main(["doctor", str(store)]) == EXIT_FINDINGS
    out = " ".join(capfd.readouterr().out.split())
    assert f"1 message of TopicA is damaged or already lost: {name}." in out
    for offset in (place - 48, place):
        assert main(["lookup", str(store), "--offset", str(offset)]) == EXIT_FINDINGS
        assert f"a damaged record starts at offset {place}" in (err := capfd.readouterr().err) and line in err
        assert main(["dump", str(store), "--explain", str(offset), "--format", "jsonl"]) == EXIT_FINDINGS
        fields = {row["field"]: row for row in map(json.loads, capfd.readouterr().out.splitlines())}
        assert fields["properties.KEYS"]["value"] == "key20" and fields["queue_offset"]["value"] == "10"
        assert ("entry_index" in fields) == (offset != place) and fields["total_size"]["offset"] == place


def test_doctor_says_that_all_queues_are_gone(cases: Library, capfd: Capture, tmp_path: Path) -> None:
    """Not that the newest records are not in the queue yet, which a start would repair."""
    store = cases.copy("kind_dledger_540", tmp_path / "store")
    lose_files(store, "consumequeue")
    assert main(["doctor", str(store), "--json"]) == EXIT_FINDINGS
    rows = {row["name"]: row for row in json.loads(capfd.readouterr().out)["results"]}
    found = rows["queues_missing"]
    assert (found["severity"], found["path"]) == ("warning", "consumequeue") and "CQ01" not in rows
    assert found["message"] == "consumequeue is missing: 12 queues with 95 messages"
    assert found["command"] == f"rmqtool recover {store}"
    main(["info", str(store)])
    assert "topics       no topic has a queue, although the log has records" in capfd.readouterr().out


def test_entries_beyond_a_window(tmp_path: Path) -> None:
    """A record larger than a block of the plain walk, and than what is read ahead."""
    records = [record("T", bytes(200_000)), record("T", b"x"), record("T", os.urandom(300_000))]
    write_ledger(tmp_path / "dledger-n0", records, file_size=1 << 20)
    (tmp_path / "consumequeue").mkdir()
    assert not log_codes(tmp_path)
    with Store.open(tmp_path) as store:
        found = [each.message for each in store.messages()]
    assert [each.body for each in found] == [each.body for each in records]


def test_an_offset_of_an_entry_is_no_record(small: Path) -> None:
    with Store.open(small) as store:
        assert store.get(48) is not None
        with pytest.raises(FormatError):
            store.get(0)


def test_a_damaged_ledger_leads_to_copy(cases: Library, capfd: Capture, tmp_path: Path) -> None:
    """Recover does not repair it, so info and verify do not name recover; the manual leads to copy."""
    store = cases.copy("kind_dledger_540", tmp_path / "store")
    log = store / "dledger-n0/data/00000000000000000000"
    with log.open("r+b") as file:
        file.seek(2000)
        file.write(b"\xff" * 64)
    capfd.readouterr()
    assert main(["verify", str(store), "--severity", "error"]) == EXIT_FINDINGS
    out, err = capfd.readouterr()
    assert "rmqtool never changes a DLedger log" in out and f"rmqtool recover {store}" not in out
    line = f"rmqtool copy {store} --output NEW"
    assert err.endswith(f"to write the sound messages as a store without DLedger: {line}\n")
    main(["info", str(store)])
    assert capfd.readouterr().out.endswith(f"next         rmqtool verify {store}\n")
    (log.parent / "00000000000000001000").write_bytes(b"x" * 1000)  # seen by names and sizes
    main(["info", str(store)])
    assert capfd.readouterr().out.endswith(f"next         {line}\n")
    assert main(["help", "recovery"]) == EXIT_OK
    assert "rmqtool copy STORE --output NEW" in capfd.readouterr().out
    assert main(["help", "concepts"]) == EXIT_OK
    assert "enableDLegerCommitLog" in capfd.readouterr().out


# repair


def lose_files(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def lose_but_bak(root: Path) -> None:
    """delayOffset.json is lost, and topics.json cannot be parsed: both have a .bak."""
    for name in ("delayOffset.json", "topics.json"):
        path = root / "config" / name
        shutil.copy(path, f"{path}.bak")
        path.unlink() if name.startswith("delay") else path.write_text("{")


def lose_topics(root: Path) -> None:
    lose_files(root, "config/topics.json")
    (root / "config/topics.json.bak").unlink(missing_ok=True)


def break_queues(root: Path) -> None:
    """A queue is gone, another is cut, a third names a wrong place; the index and the checkpoint are gone."""
    lose_files(root, "consumequeue/TopicA/0", "index", "checkpoint")
    os.truncate(root / "consumequeue/TopicA/1" / ("0" * 20), 60)
    patch(root / "consumequeue/TopicB/0" / ("0" * 20), 20, bytes(7) + b"\7")


REPAIRS = {
    "wheel": (lambda root: lose_files(root, "timerwheel"), {"TM03"}),
    "timer log": (lambda root: lose_files(root, "timerlog"), {"TM03"}),
    "timer check": (lambda root: lose_files(root, "config/timercheck"), {"TM03"}),
    "timer": (lambda root: lose_files(root, "timerwheel", "timerlog", "config/timercheck"), {"TM03"}),
    "bak": (lose_but_bak, {"CF01"}),
    "topics": (lose_topics, {"CF06"}),
    "queues": (break_queues, {"CQ05", "CQ09", "CQ13", "IX10", "CP01"}),
    "killed": (lambda root: (root / "abort").write_text("1"), {"CP04"}),
}


def ledger_files(root: Path) -> list[tuple[str, int, bytes]]:
    """(name, mtime, content) of every file of the DLedger log."""
    found = (path for path in (root / "dledger-n0").rglob("*") if path.is_file())
    return sorted((path.name, path.stat().st_mtime_ns, path.read_bytes()) for path in found)


@pytest.mark.parametrize("what", REPAIRS)
def test_all_but_the_log_is_repaired(what: str, cases: Library, capfd: Capture, tmp_path: Path) -> None:
    """With a backup that gives everything back; of the log no byte and no time changes."""
    store = cases.copy("kind_dledger_540", tmp_path / "store")
    conf = tmp_path / "broker.conf"
    conf.write_text((FIXTURES / "kind_dledger_540/broker.conf").read_text().replace("STORE", str(tmp_path)))
    damage, codes = REPAIRS[what]
    damage(store)
    before, log = tree_rows(store), ledger_files(store)
    assert codes <= set(codes_of(store))
    words = [str(store), "--broker-conf", str(conf)]
    with unchanged(store):
        assert main(["recover", *words]) == EXIT_FINDINGS
    assert "is never changed" in " ".join(capfd.readouterr().out.split())
    backup = tmp_path / "backup"
    assert main(["recover", *words, "--apply", "--backup-dir", str(backup)]) == EXIT_OK
    capfd.readouterr()
    assert not codes_of(store) and ledger_files(store) == log and not (store / "commitlog").exists()
    assert main(["recover", *words]) == EXIT_OK
    out = " ".join(capfd.readouterr().out.split())
    assert "nothing to do" in out
    assert (
        "its effect on the DLedger log, and on queues and index because of the log, is not predicted" in out
    )
    assert out.endswith(
        " verdict There is nothing to repair. A start with a log in DLedger is not predicted."
    )
    assert main(["recover", *words, "--undo", str(backup)]) == EXIT_OK
    is_kept = {"lock", ".", "dledger-n0/data"}  # times of folders: the guard was there
    rows_now = tree_rows(store)
    assert [row for row in rows_now if row[0] not in is_kept] == [
        row for row in before if row[0] not in is_kept
    ]


def test_a_damaged_log_stays_while_all_else_is_repaired(
    cases: Library, capfd: Capture, tmp_path: Path
) -> None:
    """The way out is named; what the log cannot give is left as it is, and so are checkpoint and abort."""
    store = cases.copy("kind_dledger_540", tmp_path / "store")
    log = store / "dledger-n0/data/00000000000000000000"
    patch(log, 2000, b"\xff" * 64)
    lose_files(store, "config/timercheck", "consumequeue/TopicB/0")
    (store / "abort").write_text("1")
    before = ledger_files(store)
    assert main(["recover", str(store), "--json"]) == EXIT_FINDINGS
    found = json.loads(capfd.readouterr().out)
    assert found["ledger"] == "dledger-n0" and found["remaining"] == ["CL04"] and not found["refusals"]
    assert main(["recover", str(store)]) == EXIT_FINDINGS
    out, err = capfd.readouterr()
    text = " ".join(out.split())
    assert "The DLedger log is damaged, and recover never changes it: see the warnings." in text
    assert f"Without one, rmqtool copy {store} --output NEW writes the sound messages" in text
    assert "no message is lost" not in text and "to apply the plan" in err
    assert main(["recover", str(store), "--apply"]) == EXIT_OK
    assert "remains: do not start the broker yet" in " ".join(capfd.readouterr().out.split())
    assert ledger_files(store) == before and (store / "abort").exists()
    assert set(codes_of(store)) - {"CP04", "IX09"} == {"CL04"}  # notes of a store that was killed
    assert main(["recover", str(store)]) == EXIT_FINDINGS
    assert capfd.readouterr().out.splitlines()[-1].endswith(f"rmqtool copy {store} --output NEW")


def test_the_index_of_entries_does_not_keep_abort(cases: Library, capfd: Capture, tmp_path: Path) -> None:
    """It is not repaired, and recover says how it is; log, queues and index agree nevertheless."""
    store = cases.copy("kind_dledger_540", tmp_path / "store")
    (store / "abort").write_text("1")
    index = store / "dledger-n0/index" / ("0" * 20)
    os.truncate(index, index.stat().st_size - 32)
    assert main(["recover", str(store)]) == EXIT_FINDINGS
    text = " ".join(capfd.readouterr().out.split())
    assert "DL06 a file of the DLedger index has the wrong size or name" in text
    assert "To repair it, delete the folder index of the DLedger log while the broker is stopped" in text
    assert "rmqtool copy" not in text
    assert main(["recover", str(store), "--apply"]) == EXIT_OK
    assert not (store / "abort").exists() and set(codes_of(store)) == {"DL06"}


def test_starts_that_fail_before_the_log(cases: Library, capfd: Capture, tmp_path: Path) -> None:
    """A config file that cannot be parsed, a queue file of a wrong size: of these the verdict is known."""
    store = cases.copy("kind_dledger_540", tmp_path / "store")
    with Store.open(store) as opened:
        assert predict_all(opened) == []
    os.truncate(store / "consumequeue/TopicA/0" / ("0" * 20), 60)
    assert main(["recover", str(store)]) == EXIT_FINDINGS
    text = " ".join(capfd.readouterr().out.split())
    assert "A start of 5.4 fails: it does not load consumequeue/TopicA/0/00000000000000000000." in text
    for path in (store / "config/delayOffset.json", store / "config/delayOffset.json.bak"):
        path.write_text("{")
    for command in ("recover", "doctor", "verify"):
        assert main([command, str(store)]) == EXIT_FINDINGS
        out, err = capfd.readouterr()
        text = " ".join((out + err).split())
        assert "Do not start the broker yet. A start of 5.4 fails: neither config/delayOffset.json" in text
