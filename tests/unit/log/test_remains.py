"""What is left of a record of which bytes are lost: only what is certain, in recover, verify and dump."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmqtool import NewMessage, Store
from rmqtool.cli import main
from rmqtool.formats import message as form
from rmqtool.formats import properties
from rmqtool.formats.body import compress
from rmqtool.log.remains import Remains, remains_of
from rmqtool.write.store_writer import StoreWriter
from tests.support.stores import Library

PAGE = 4096
HEAD = form.HEAD_SIZE_V4
BODY = bytes(range(1, 256)) * 60  # without zeros
SIZES: dict[str, Any] = {"commit_log_file_size": 1 << 20, "consume_queue_file_size": 20_000}
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three messages; the second one has a long body."""
    root = tmp_path / "store"
    with StoreWriter.create(root, auto_create_queues=1, **SIZES) as writer:
        for number, body in enumerate((b"first", BODY, b"last")):
            writer.put(
                NewMessage("T", body, tags="A", keys=[f"k{number}"], queue_id=0, uniq_key=f"U{number}")
            )
    return root


def record_of(root: Path) -> tuple[int, bytes]:
    """The place and the bytes of the second record."""
    with Store.open(root) as opened:
        found = list(opened.messages())[1]
        return found.physical_offset, opened.commit_log.bytes_of(found)


def change(root: Path, start: int, data: bytes) -> None:
    """Write bytes into the only file of the log."""
    with (root / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(start)
        file.write(data)


def left(root: Path, place: int, data: bytes) -> Remains | None:
    """What is left of the record with these bytes, of a record with all of them."""
    return remains_of(data, place, place, len(record_of(root)[1]), "T")


def test_a_record_that_is_cut(store: Path) -> None:
    """Header and the start of the body; of a shorter header nothing."""
    place, data = record_of(store)
    found = left(store, place, data[:5000])
    assert found is not None and found.head is not None and found.properties is None
    assert (found.body, found.body_length) == (((HEAD, 5000),), len(BODY))
    assert found.head["queue_offset"] == 1 and found.head["store_timestamp"] > 0
    assert left(store, place, data[: HEAD - 1]) is None


def test_a_record_whose_start_is_zeros(store: Path) -> None:
    """Topic, properties and the end of the body."""
    place, data = record_of(store)
    found = left(store, place, bytes(5000) + data[5000:])
    assert found is not None and found.head is None and found.properties is not None
    assert found.body == ((5000, HEAD + len(BODY)),) and found.body_length is None
    assert properties.decode(found.properties)["UNIQ_KEY"] == "U1"


def test_a_page_of_zeros_in_the_middle(store: Path) -> None:
    """All but the page; it lies where the file has its pages, not the record."""
    place, data = record_of(store)
    start = -place % PAGE + PAGE
    found = left(store, place, data[:start] + bytes(PAGE) + data[start + PAGE :])
    assert found is not None and found.head is not None and found.properties is not None
    assert found.body == ((HEAD, start), (start + PAGE, HEAD + len(BODY)))
    assert found.body_bytes == len(BODY) - PAGE


def test_a_header_that_is_damaged(store: Path) -> None:
    """The length of the body, which the place of the topic confirms, still says where the body begins."""
    place, data = record_of(store)
    found = left(store, place, data[:4] + b"XXXX" + data[8:])
    assert found is not None and found.head is None and found.body == ((HEAD, HEAD + len(BODY)),)
    length = HEAD - 4
    found = left(store, place, data[:4] + b"XXXX" + data[8:length] + b"XXXX" + data[HEAD:])
    assert found is not None and found.properties is not None
    assert (found.body, found.body_length) == ((), None)


@pytest.mark.parametrize(("start", "new"), [(28, b"\1"), (0, b"\1"), (84, b"\1"), (48 - 8, bytes(8))])
def test_a_header_that_does_not_fit_is_not_believed(start: int, new: bytes, store: Path) -> None:
    """Another offset, size or length of the body, or no time."""
    place, data = record_of(store)
    damaged = data[:start] + new + data[start + len(new) :]
    found = left(store, place, damaged[:5000])
    assert found is None


def test_a_page_of_zeros_that_begins_in_the_header(store: Path) -> None:
    """The fields in the page are zeros, which say nothing."""
    place, data = record_of(store)
    position = PAGE - 60  # of the record in its file: the page begins in the header
    damaged = data[:60] + bytes(PAGE) + data[60 + PAGE :]
    found = remains_of(damaged, place, position, len(data), "T")
    assert found is not None and found.head is None and found.properties is not None
    assert found.body == ((60 + PAGE, HEAD + len(BODY)),)
    assert remains_of(damaged[:5000], place, position, len(data), "T") is None


def test_zeros_to_the_end_of_the_record(store: Path) -> None:
    """A page of zeros that reaches beyond it: the header counts only if it is before the zeros."""
    place, data = record_of(store)
    for start, body in ((5000, ((HEAD, 5000),)), (HEAD, ())):
        found = left(store, place, data[:start] + bytes(len(data) - start))
        assert found is not None and found.head is not None and found.body == body
    assert left(store, place, data[: HEAD - 10] + bytes(len(data) - HEAD + 10)) is None


def test_an_end_that_does_not_fit_is_not_believed(store: Path) -> None:
    """The length of the properties is another, they are no text, or the topic is another."""
    place, data = record_of(store)
    zeros = bytes(5000)
    at = data.rindex(b"\1T", 0, data.index(b"KEYS"))
    for start, new in ((at + 3, b"\x7f"), (at + 6, b"\xff"), (at + 1, b"U")):
        assert left(store, place, zeros + data[5000:start] + new + data[start + len(new) :]) is None
    assert remains_of(zeros + data[5000:], place, place, len(data) + 1, "T") is None


def test_recover_shows_and_saves_it(
    store: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A row with its key and tag, and a line whose output has the bytes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    place, _ = record_of(store)
    change(store, place, bytes(5000))
    main(["recover", "store", "--format", "text"])
    out = capsys.readouterr().out
    assert "1 message is lost already (can be read in part)" in out
    count = HEAD + len(BODY) - 5000
    (row,) = [line for line in out.splitlines() if f"  body {count}, properties  " in line]
    assert row.split()[:7] == [str(place), "body", f"{count},", "properties", "T", "0", "1"]
    assert row.split()[-3:] == ["A", "k1", "U1"]
    (save,) = [line[13:] for line in out.splitlines() if line.startswith("save first")]
    command, _, name = save.partition(" >> ")
    assert f" -o damaged-{place}.body " in command
    assert name == f"damaged-{place}.jsonl"  # >> keeps it if a second run refuses
    assert main(command.split()[1:]) == 1
    out_, err = capsys.readouterr()
    assert f"damaged-{place}.body: {count} bytes of the body; how many it had is unknown; as stored: " in err
    assert main(command.split()[1:]) == 4
    assert capsys.readouterr().out == ""
    fields = [json.loads(line) for line in out_.splitlines()]
    fields = fields[0] if isinstance(fields[0], list) else fields
    assert {"properties.UNIQ_KEY": "U1", "properties.TAGS": "A"}.items() <= {
        each["field"]: each["value"] for each in fields
    }.items()
    names = [each["field"] for each in fields]
    assert len(set(names)) == len(names) and not any(name.startswith("body.") for name in names)
    body = bytes.fromhex(fields[names.index("body")]["hex"])
    assert body == BODY[-count:] == Path(f"damaged-{place}.body").read_bytes()
    assert "After --apply, this stores it again, if not compressed:" in out
    (line,) = [line.strip() for line in out.splitlines() if " --body-file " in line]
    assert line == (
        "rmqtool append store --topic T --queue 0 --tag A --uniq-key U1 --key k1"
        f" --body-file damaged-{place}.body"
    )
    main(["recover", "store", "--json"])
    (row_,) = json.loads(capsys.readouterr().out)["lost"]
    assert row_["status"] is None and (row_["keys"], row_["uniq_key"]) == (["k1"], "U1")
    assert (row_["remains"]["header"], row_["remains"]["body_bytes"]) == (False, count)
    main(["verify", "store", "--format", "jsonl"])
    said = f"a part of a damaged record can still be read: rmqtool dump store --explain {place}"
    assert said in capsys.readouterr().err
    assert main(["recover", "store", "--apply"]) == 0
    assert main(line.split()[1:]) == 0
    with Store.open("store") as opened:
        *_, last = opened.messages()
        assert last.message.body == body
        assert properties.decode(last.message.properties_bytes).items() >= {
            "TAGS": "A", "KEYS": "k1", "UNIQ_KEY": "U1",
        }.items()  # fmt: skip


def test_each_field_is_shown_once(store: Path, capsys: Capture) -> None:
    """Where the header is damaged, but leads to the end of the record; the body has all bytes, as JSON."""
    place, _ = record_of(store)
    change(store, place + 4, b"\1\2\3\4")
    assert main(["dump", str(store), "--explain", str(place), "--format", "jsonl"]) == 1
    fields = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = [each["field"] for each in fields]
    assert len(set(names)) == len(names) and {"queue_id", "topic", "properties.KEYS"} <= set(names)
    assert bytes.fromhex(fields[names.index("body")]["hex"]) == BODY


def test_only_the_record_asked_for_is_shown(store: Path, capsys: Capture) -> None:
    """Of damage that begins in the record before it, whose header is sound: that is of another message."""
    with StoreWriter.open(store) as writer:
        last = writer.put(NewMessage("T", BODY, keys=["k3"], queue_id=0)).physical_offset
    place, _ = record_of(store)
    change(store, place + 200, bytes(last - place + 5000 - 200))
    assert main(["dump", str(store), "--explain", str(last), "--json"]) == 1
    out, err = capsys.readouterr()
    fields = [json.loads(line) for line in out.splitlines()]
    fields = fields[0] if isinstance(fields[0], list) else fields
    assert fields[0]["field"] == "body" and {"topic", "properties.KEYS"} < {each["field"] for each in fields}
    assert min(each["offset"] for each in fields) >= last + 5000
    assert (
        f"the header of the record at {last} is lost or damaged; its queue unit says that it ends at " in err
    )
    assert str(place) not in err


def test_a_header_without_a_unit_shows_its_own_record(store: Path, capsys: Capture) -> None:
    """Its body is whole, its end is lost; the end of the next record belongs to another message."""
    with StoreWriter.open(store) as writer:
        last = writer.put(NewMessage("T", BODY[::-1], keys=["k3"], queue_id=0)).physical_offset
        writer.put(NewMessage("T", b"sound", queue_id=0))
    place, data = record_of(store)
    change(store, place + HEAD + len(BODY), bytes(last + 5000 - place - HEAD - len(BODY)))
    shutil.rmtree(store / "consumequeue/T")
    assert main(["dump", str(store), "--explain", str(place), "--body", "hex", "--json"]) == 1
    out, err = capsys.readouterr()
    fields = [json.loads(line) for line in out.splitlines()]
    (whole,) = [each for each in fields if each["field"] == "body"]
    assert bytes.fromhex(whole["hex"]) == BODY
    assert max(each["offset"] + each["size"] for each in fields) <= place + len(data)
    assert "header" not in err
    change(store, place + HEAD - 30, bytes(30 + len(BODY)))  # of the header, only its start is left
    assert main(["dump", str(store), "--explain", str(place), "--json"]) == 1
    out, err = capsys.readouterr()
    assert "k3" not in out and "header" not in err


@pytest.mark.parametrize("wrong", ["body_length", "topic_length", "properties_length"])
def test_a_wrong_length_shows_nothing_of_the_next_record(store: Path, capsys: Capture, wrong: str) -> None:
    place, data = record_of(store)
    topic = HEAD + len(BODY)
    at, value = {
        "body_length": (HEAD - 4, (len(BODY) + 300).to_bytes(4)),
        "topic_length": (topic, b"\x7f"),
        "properties_length": (topic + 2, (5000).to_bytes(2)),
    }[wrong]
    change(store, place + at, value)
    assert main(["dump", str(store), "--explain", str(place), "--json"]) == 1
    out = capsys.readouterr().out
    fields = [json.loads(line) for line in out.splitlines()]
    fields = fields[0] if isinstance(fields[0], list) else fields
    assert {"total_size", "queue_offset"} < {each["field"] for each in fields}
    assert max(each["offset"] + each["size"] for each in fields) <= place + len(data)


def test_a_file_that_was_cut(store: Path, capsys: Capture) -> None:
    """Its last record has a header and the start of the body; dump shows the bytes that are there."""
    place, _ = record_of(store)
    os.truncate(store / "commitlog" / f"{0:020}", place + 5000)
    assert main(["dump", str(store), "--explain", str(place), "--body", "hex", "--json"]) == 1
    out = capsys.readouterr().out
    fields = [json.loads(line) for line in out.splitlines()]
    fields = fields[0] if isinstance(fields[0], list) else fields
    (whole,) = [each for each in fields if each["field"] == "body"]
    assert whole["value"] == f"{5000 - HEAD} of {len(BODY)} bytes are left"
    assert bytes.fromhex(whole["hex"]) == BODY[: 5000 - HEAD]


def test_a_queue_whose_name_is_not_utf_8(store: Path, capsys: Capture) -> None:
    """Its folder was renamed: no record has the name, and dump and verify say what they see."""
    place, _ = record_of(store)
    (store / "consumequeue" / "T").rename(store / "consumequeue" / os.fsdecode(b"T\xff"))
    change(store, place, bytes(200))
    assert main(["dump", str(store), "--explain", str(place)]) == 1
    assert main(["verify", str(store)]) == 1
    assert "this is a bug" not in capsys.readouterr().err


def explained(store: Path, place: int, file: Path, capsys: Capture, *more: str) -> tuple[int, str, bytes]:
    """The exit code of dump --explain -o, its note on the body, and what is in the file."""
    file.unlink(missing_ok=True)
    code = main(["dump", str(store), "--explain", str(place), "-o", str(file), *more])
    (note,) = [line for line in capsys.readouterr().err.splitlines() if f"{file}: " in line]
    return code, note.partition(f"{file}: ")[2], file.read_bytes()


def test_dump_says_what_it_wrote_of_a_body(store: Path, tmp_path: Path, capsys: Capture) -> None:
    """How many bytes, as stored or decompressed and why, and whether that is all; --body-limit counts."""
    stored = compress(BODY, "zlib")
    with StoreWriter.open(store) as writer:
        place = writer.put(NewMessage("T", BODY, queue_id=0, compression="zlib")).physical_offset
        empty = writer.put(NewMessage("T", b"", queue_id=0)).physical_offset
    file = tmp_path / "body"
    said = f"{len(BODY)} bytes, the whole body, decompressed from {len(stored)} bytes"
    assert explained(store, place, file, capsys) == (0, said, BODY)
    code, note, data = explained(store, place, file, capsys, "--body-limit", "100")
    assert code == 1 and data == stored
    assert note.startswith(f"{len(stored)} bytes, the whole body, compressed as stored: ")
    assert "more than 100 bytes" in note
    assert explained(store, empty, file, capsys) == (0, "0 bytes, the whole body", b"")
    change(store, place + HEAD + 20, b"\xff\xff\xff")
    code, note, data = explained(store, place, file, capsys)
    assert code == 1 and len(data) == len(stored)
    assert "its CRC does not match, compressed as stored: damaged zlib body" in note
    os.truncate(store / "commitlog" / f"{0:020}", place + HEAD + 50)
    said = f"50 of {len(stored)} bytes of the body; compressed as stored: a part cannot be decompressed"
    assert explained(store, place, file, capsys)[:2] == (1, said)


def test_dump_says_that_parts_of_a_body_are_joined(store: Path, tmp_path: Path, capsys: Capture) -> None:
    place, _ = record_of(store)
    change(store, place, bytes(HEAD - 10))
    change(store, PAGE * 2, bytes(PAGE))
    code, note, data = explained(store, place, tmp_path / "body", capsys)
    assert code == 1 and len(data) < len(BODY) - PAGE + 1
    assert "; 2 parts, joined, from the physical offsets " in note


def test_dump_explains_what_has_no_body(store: Path, tmp_path: Path, capsys: Capture) -> None:
    """A queue unit, with a note instead of a file; - and an empty name are no files."""
    words = ["dump", str(store), "--explain", "0", "-o"]
    assert main([*words, str(tmp_path / "body"), "--what", "consumequeue", "--topic", "T"]) == 0
    out, err = capsys.readouterr()
    assert "tags_code" in out and "not written, because no byte of a body is here" in err
    assert not (tmp_path / "body").exists()
    assert main([*words, "-"]) == 2 and main([*words, ""]) == 2
    assert "--output writes a file, not to standard output" in (err := capsys.readouterr().err)
    assert "--output names no file" in err


@pytest.mark.parametrize(
    ("case", "place"), [("bad_cl06_foreign_record", 76607), ("bad_cl03_body_crc", 27362)]
)
def test_what_recover_says_to_save_can_be_saved(
    case: str, place: int, cases: Library, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a record at a foreign offset, which no look-up by offset finds."""
    monkeypatch.chdir(tmp_path)
    main(["recover", str(cases.path(case)), "--format", "text"])
    out = capsys.readouterr().out
    (save,) = [line[13:] for line in out.splitlines() if line.startswith("save first")]
    command, _, name = save.partition(" >> ")
    assert name == f"damaged-{place}.jsonl"
    assert main(shlex.split(command)[1:]) == 1
    assert '"field":"topic"' in capsys.readouterr().out
    assert Path(f"damaged-{place}.body").stat().st_size > 0
