"""A log torn at every byte of its last records: all whole records are read, the rest is a torn tail."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from rmqtool.check.verify import Report, verify
from rmqtool.formats.message import BORN_HOST_V6, STORE_HOST_V6, Message
from rmqtool.problems import Finding
from rmqtool.read.store import Store
from tests.support.build_store import file_name, write_log
from tests.support.records import record
from tests.support.sweep import sample
from tests.support.whole_store import keyed, write_units

FILE_SIZE = 4096


def kinds() -> dict[str, list[Message]]:
    """Logs whose last records are of one kind each; every one ends inside its file."""
    host = bytes(16) + (10911).to_bytes(4)
    both_v6 = {"sys_flag": BORN_HOST_V6 | STORE_HOST_V6, "born_host": host, "store_host": host}
    return {
        "keys and tags": keyed(8, body=20),
        "no properties": [record(body=b"x" * 30, queue_offset=n) for n in range(6)],
        "no body": [record(body=b"", found={"TAGS": "A"}, queue_offset=n) for n in range(6)],
        "body of zeros": [record(body=bytes(60), found={"TAGS": "A"}, queue_offset=n) for n in range(6)],
        "IPv6": [record(found={"TAGS": "A"}, queue_offset=n, **both_v6) for n in range(6)],
        "long topic": [record("T" * 200, found={"TAGS": "A"}, queue_offset=n) for n in range(6)],
    }


@dataclass
class Torn:
    """A store of one log file that is written anew for every cut."""

    root: Path
    stored: list[Message]
    data: bytes
    last: int  # how many records are torn, one after the other, at each of their bytes

    @property
    def ends(self) -> list[int]:
        """Offsets behind each record."""
        return [item.physical_offset + item.total_size for item in self.stored]

    def whole(self, cut: int) -> int:
        """How many records end at or before `cut`."""
        return sum(end <= cut for end in self.ends)

    def check(self, content: bytes) -> tuple[list[Finding], Report]:
        """Write the log's file and verify it, log and queues only."""
        (self.root / "commitlog" / file_name(0)).write_bytes(content)
        report = Report()
        with Store.open(self.root) as store:
            findings = list(verify(store, passes=["log", "queues"], jobs=1, report=report))
        return findings, report


@pytest.fixture(params=list(kinds()))
def torn(request: pytest.FixtureRequest, tmp_path: Path) -> Torn:
    root = tmp_path / "store"
    stored = write_log(root / "commitlog", kinds()[request.param], file_size=FILE_SIZE)
    write_units(root, stored)
    data = (root / "commitlog" / file_name(0)).read_bytes()
    return Torn(root, stored, data, 3 if request.param == "keys and tags" else 1)


def is_lost(torn: Torn, cut: int) -> bool:
    """Whether the cut took anything but zeros from the record that it went through."""
    stop = torn.ends[torn.whole(cut)] if cut < torn.ends[-1] else cut
    return any(torn.data[cut:stop])


def cuts(torn: Torn) -> list[int]:
    """Places in the last records, every one in a sweep; and all of their ends with the bytes next to them."""
    first, end = torn.stored[-torn.last].physical_offset, torn.ends[-1]
    edges = {cut for at in (first, *torn.ends) for cut in (at - 1, at, at + 1) if first <= cut <= end}
    return sorted({*sample(range(first, end + 1), 8), *edges})


def check_tail(torn: Torn, cut: int, findings: list[Finding], start: int) -> None:
    """A torn tail from `start` on, or nothing where nothing but zeros is left of the record."""
    log = [item for item in findings if item.problem.code.startswith("CL")]
    is_there = any(torn.data[start:cut])
    assert [item.problem.code for item in log] == (["CL01"] if is_there else []), (cut, log)
    assert all(item.physical_offset == start for item in log), (cut, log)
    assert all(item.problem.severity == "note" for item in log)
    # The torn record's unit may point to what is no record any more.
    assert {item.problem.code for item in findings} <= {"CL01", "CQ03"}, (cut, findings)


@pytest.mark.sweep
def test_cut_at_every_byte_the_rest_zero(torn: Torn) -> None:
    """A mapped file after a crash: what was not written is zero up to the file's end.

    A record that lost only zeros is whole. One whose head and body are there is counted, and its
    tail is torn all the same.
    """
    for cut in cuts(torn):
        findings, report = torn.check(torn.data[:cut].ljust(FILE_SIZE, b"\0"))
        if not is_lost(torn, cut):
            whole = torn.whole(cut) + (cut not in torn.ends)
            assert (report.records, report.log_end) == (whole, torn.ends[whole - 1]), cut
            assert {item.problem.code for item in findings} <= {"CQ03"}, (cut, findings)
            continue
        whole = torn.whole(cut)
        assert report.records - whole in (0, 1), cut
        check_tail(torn, cut, findings, torn.ends[whole - 1])


@pytest.mark.sweep
def test_file_truncated_at_every_byte(torn: Torn) -> None:
    """A copy that stopped short: the file ends where it was cut."""
    for cut in cuts(torn):
        findings, report = torn.check(torn.data[:cut])
        whole = torn.whole(cut)
        assert (report.records, report.log_end) == (whole, torn.ends[whole - 1]), cut
        check_tail(torn, cut, findings, torn.ends[whole - 1])
