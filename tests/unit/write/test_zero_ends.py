"""Messages whose properties end in a NUL character: no record that rmqtool writes ends in zeros.

Such a record could not be distinguished from one whose last bytes were not written. A 4.9 broker writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqtool import NewMessage
from rmqtool.cli import main
from rmqtool.errors import EXIT_INPUT, EXIT_OK
from rmqtool.formats import properties
from rmqtool.read.store import Store
from rmqtool.write.store_writer import StoreWriter
from tests.support.records import record
from tests.support.whole_store import codes_of, write_whole

Capture = pytest.CaptureFixture[str]
LAST = "m"
"""A name that a 4.9 broker's map of 16 buckets has after those of the broker."""


def read_back(root: Path) -> list[dict[str, str]]:
    """The properties of all messages, of a store in which nothing is wrong."""
    assert not codes_of(root)
    with Store.open(root) as store:
        found = [each.message for each in store.messages()]
    assert not any(each.ends_in_zeros for each in found)
    return [properties.decode(each.properties_bytes) for each in found]


@pytest.mark.parametrize("profile", ["4.9", "5.4"])
def test_a_new_message_ends_with_its_properties(tmp_path: Path, profile: str) -> None:
    """One by one, by the fast path, in a batch and in a table; the last one is read too."""

    def messages(count: int) -> Iterator[NewMessage]:
        return (NewMessage("T", b"x", properties={LAST: "a\0"}, queue_id=0) for _ in range(count))

    with StoreWriter.create(tmp_path, profile, auto_create_queues=1, commit_log_file_size=1 << 20) as writer:
        for message in messages(3):
            writer.put(message)
        writer.put_many([*messages(40)])
        writer.put_batch([*messages(2)])
        writer.put(next(messages(1)))
    found = read_back(tmp_path)
    assert len(found) == 46 and {each[LAST] for each in found} == {"a\0"}


@pytest.mark.usefixtures("json_lines")
@pytest.mark.parametrize("rows", [1, 3])
def test_a_row_of_such_a_record_leads_on(tmp_path: Path, capfd: Capture, rows: int) -> None:
    """A broker of 4.9 has stored it. It may be torn, so it is not stored as if it were sound unasked."""
    source, target = tmp_path / "source", tmp_path / "target"
    named = properties.encode({"UNIQ_KEY": "U1", LAST: "a\0"}, dialect="4.x")
    torn = [record(found=named, queue_offset=n) for n in range(rows)]
    write_whole(source, [*torn, record("Last")])
    assert main(["dump", str(source), "--json", "--topic", "TopicTest"]) == 1
    text = capfd.readouterr().out
    lines = [json.loads(line) for line in text.splitlines()]
    assert [each["status"] for each in lines] == [["CL13"]] * rows
    (tmp_path / "rows").write_text(text)
    append = ["append", str(target), "--input", str(tmp_path / "rows"), "--create", "--profile", "4.9"]
    assert main([*append, "--commitlog-file-size", "1M"]) == EXIT_INPUT
    said = capfd.readouterr().err
    assert "row 1, status: CL13: not stored as if it were sound\n" in said
    assert "--on-error skip leaves out such rows" in said and "delete the column status" in said
    bare: list[dict[str, Any]] = [
        {name: value for name, value in each.items() if name != "status"} for each in lines
    ]
    (tmp_path / "rows").write_text("".join(f"{json.dumps(each)}\n" for each in bare))
    assert main([*append, "--commitlog-file-size", "1M"]) == EXIT_OK
    assert [each[LAST] for each in read_back(target)] == ["a\0"] * rows


def test_a_string_that_ends_in_zero_is_closed() -> None:
    """Brokers read it as the same properties; others stay as they are."""
    for data in (b"", b"a\x01b", b"a\x01b\x02"):
        assert properties.closed(data) == data
    closed = properties.closed(b"a\x01b\0")
    assert closed == b"a\x01b\0\x02" and properties.decode(closed) == properties.decode(b"a\x01b\0")
