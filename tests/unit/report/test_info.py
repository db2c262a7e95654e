"""`rmqtool info`: what it says of a store that it cannot read in full, and what it reads of a huge one."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import termios
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from wcwidth import wcswidth

from rmqtool.cli import main
from rmqtool.commands.info import info
from rmqtool.errors import EXIT_INPUT, EXIT_OK, FormatError
from rmqtool.formats import message
from rmqtool.formats.consume_queue import Unit
from rmqtool.formats.index import Shape
from rmqtool.formats.message import Message
from rmqtool.read.store import Store
from rmqtool.report.info import store_info
from rmqtool.storage import open_files
from tests.support.build_store import (
    KEYS,
    file_name,
    patch,
    two_queues,
    write_index,
    write_queue,
    write_store,
)
from tests.support.ordinary_user import as_nobody, open_to_all
from tests.support.programs import RMQTOOL, started, surroundings
from tests.support.records import record
from tests.support.stores import Library

HUGE = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    write_store(root, two_queues(40))
    write_index(root / "index/20260101000000000", Shape(100, 400), KEYS[:50])
    (root / "config").mkdir()
    (root / "config/topics.json").write_text('{"topicConfigTable":{"TopicTest":{}}}')
    (root / "checkpoint").write_bytes(bytes(4096))
    open_to_all(tmp_path)
    return root


def run(root: Path) -> tuple[int, dict[str, Any]]:
    with Store.open(root) as store:
        return info(str(root), format="json"), store_info(store)  # type: ignore[arg-type]


def test_a_sound_store(root: Path) -> None:
    code, found = run(root)
    assert (code, found["unreadable"]) == (EXIT_OK, [])


@pytest.mark.parametrize(
    "name",
    [
        "commitlog", "consumequeue", "consumequeue/TopicTest", "index", "config", "checkpoint",
        f"commitlog/{file_name(0)}", f"commitlog/{file_name(8192)}",
        f"consumequeue/TopicTest/0/{file_name(0)}", "index/20260101000000000", "config/topics.json",
    ],
)  # fmt: skip
def test_what_an_ordinary_user_may_not_read_is_named_once(root: Path, name: str) -> None:
    path = root / name
    mode = path.stat().st_mode
    path.chmod(0)

    def action() -> None:
        code, found = run(root)
        assert code == EXIT_INPUT
        assert [row["path"] for row in found["unreadable"]] == [name]
        assert "Permission denied" in found["unreadable"][0]["reason"]
        assert "CP06" not in {row["problem"] for row in found["problems"]}

    as_nobody(action)
    path.chmod(mode)


def test_a_newest_file_that_cannot_be_read(root: Path) -> None:
    """The log is known up to it, and the units that lead into it do not hide the rest."""
    newest = max((root / "commitlog").iterdir())
    newest.chmod(0)

    def action() -> None:
        _, found = run(root)
        assert found["commit_log"]["end_offset"] == int(newest.name)
        assert found["commit_log"]["last_store_timestamp"] is not None

    as_nobody(action)
    newest.chmod(0o644)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_checkpoint_that_is_no_file(root: Path, make: Callable[[Path], None]) -> None:
    (root / "checkpoint").unlink()
    make(root / "checkpoint")
    code, found = run(root)
    assert code == EXIT_INPUT and found["checkpoint"] is None
    assert [row["path"] for row in found["unreadable"]] == ["checkpoint"]


def test_what_a_live_broker_deletes_is_not_unreadable(root: Path) -> None:
    with Store.open(root) as store:
        for path in (*(root / "consumequeue/TopicTest/0").iterdir(), root / "checkpoint"):
            path.unlink()
        min((root / "commitlog").iterdir()).unlink()
        found = store_info(store)
    assert found["unreadable"] == []


def test_a_part_of_a_log_file(cases: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As fsck leaves it, under a foreign name: it begins inside a record, and its messages count."""
    name, start = file_name(0), 500_000
    source = cases.path("ok_540_clean") / "commitlog" / name
    with Store.open(source) as store:
        known = [(each.physical_offset, each.end, each.message.store_timestamp) for each in store.messages()]
    inside = [place for place in known if place[0] > start]
    part = tmp_path / "#131074"
    part.write_bytes(source.read_bytes()[start:])
    with Store.open(part) as store:
        found = store_info(store)["commit_log"]
    assert (found["min_offset"], found["end_offset"]) == (start, inside[-1][1])
    assert found["bytes_before_records"] == inside[0][0] - start > 0
    times = found["first_store_timestamp"], found["last_store_timestamp"]
    assert times == (inside[0][2], inside[-1][2])
    assert main(["info", str(part)]) == EXIT_OK
    out = capsys.readouterr().out
    assert f"the first record begins after {inside[0][0] - start} bytes\n" in out
    assert f"No whole record is in the first {inside[0][0] - start} bytes: damage, or a record" in out
    (tmp_path / "commitlog").mkdir()
    empty = tmp_path / "commitlog" / name
    empty.write_bytes(bytes(1 << 20))
    assert main(["info", str(empty)]) == EXIT_OK
    assert "none begins in the first 1.0 MiB; verify looks at every byte\n" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["a hole", "cut", "whole", "zeros after it"])
def test_a_log_file_with_a_hole(
    kind: str, cases: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first hole is not its end: info looked only up to there, and does not say that all is well."""
    path = cases.path("ok_540_clean") / "commitlog" / file_name(0)
    with Store.open(path) as store:
        places = [each.physical_offset for each in store.messages()]
    data, hole = path.read_bytes(), places[500]
    if kind == "a hole":
        data = data[:hole] + b"\x11" * 700 + data[hole + 700 :]
    elif kind != "whole":
        data = data[: hole + 20] if kind == "cut" else data[:hole] + bytes(5000)
    part = tmp_path / file_name(0)
    part.write_bytes(data)
    with Store.open(part) as store:
        found = store_info(store)["commit_log"]
    is_hole = kind in ("a hole", "cut")
    assert found["bytes_after"] == (len(data) - hole if is_hole else None)
    assert (found["last_file_used_bytes"] is None) == is_hole
    assert main(["info", str(part)]) == EXIT_OK
    out = capsys.readouterr().out
    assert (f"No whole record is at {hole}, where info stopped" in out) == is_hole
    assert ("show no damage" in out) != is_hole and ("(up to there)" in out) == is_hole


class TestHugeRecord:
    """A record of 1,000 MB in a sparse file: heads tell all that is wanted."""

    @pytest.fixture
    def huge(self, tmp_path: Path) -> Message:
        body = 1_000_000_000
        small = record(body=b"x", queue_offset=1)
        huge = replace(
            small, total_size=small.total_size - 1 + body, body_length=body, physical_offset=small.total_size
        )
        root = tmp_path / "store"
        (root / "commitlog").mkdir(parents=True)
        path = root / "commitlog" / file_name(0)
        with path.open("wb") as file:
            file.truncate(HUGE)
        patch(path, 0, message.encode(replace(small, queue_offset=0)))
        encoded = message.encode(huge)  # its body is 1 byte here: head, and topic and properties
        patch(path, small.total_size, encoded[: message.HEAD_SIZE_V4])
        patch(
            path,
            small.total_size + message.HEAD_SIZE_V4 + body,
            encoded[message.HEAD_SIZE_V4 + 1 :],
        )
        units = [Unit(0, small.total_size, 0), Unit(small.total_size, huge.total_size, 0)]
        write_queue(root / "consumequeue/TopicTest/0", units)
        (root / "checkpoint").write_bytes(bytes(4096))
        return huge

    def test_info(self, tmp_path: Path, huge: Message, monkeypatch: pytest.MonkeyPatch) -> None:
        read = open_files.OpenFiles.read
        total = 0

        def counted(self: open_files.OpenFiles, path: Path, offset: int, length: int) -> bytes:
            nonlocal total
            data = read(self, path, offset, length)
            total += len(data)
            return data

        monkeypatch.setattr(open_files.OpenFiles, "read", counted)
        tracemalloc.start()
        with Store.open(tmp_path / "store") as store:
            found = store_info(store)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found["commit_log"]["end_offset"] == huge.physical_offset + huge.total_size
        assert found["commit_log"]["last_store_timestamp"] == huge.store_timestamp
        assert total < 8 << 20 and peak < 8 << 20

    def test_it_is_not_read_whole(self, tmp_path: Path, huge: Message) -> None:
        with Store.open(tmp_path / "store") as store:
            with pytest.raises(FormatError, match="the maximum"):
                store.get(huge.physical_offset)
            head = store.head(huge.physical_offset)
            assert store.find(huge.physical_offset) is None
        assert head is not None and head.end == huge.physical_offset + huge.total_size


def test_a_torn_record_that_has_a_unit(root: Path) -> None:
    """Units may reach the disk before the log: the last whole record is the one before."""
    with Store.open(root) as store:
        records = list(store.messages())
    last = records[-1]
    patch(last.path, last.physical_offset % 4096 + message.HEAD_SIZE_V4, b"\xee\xee\xee")
    with Store.open(root) as store:
        tail = store.commit_log.tail([(last.physical_offset, last.message.total_size)])
    assert tail.end == last.physical_offset
    assert tail.last is not None and tail.last.physical_offset == records[-2].physical_offset


def screen(store: Path, columns: int, lines: int) -> list[str]:
    """What `info` prints on a terminal of this size."""
    primary, secondary = os.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    env = {name: value for name, value in surroundings().items() if name not in ("COLUMNS", "LINES")}
    shown = b""
    with started(
        [*RMQTOOL, "info", store.name], env=env, stdout=secondary, stdin=subprocess.DEVNULL, cwd=store.parent
    ):
        os.close(secondary)
        with suppress(OSError):  # EIO: the program ended
            while piece := os.read(primary, 1 << 16):
                shown += piece
    os.close(primary)
    return shown.decode().replace("\r", "").splitlines()


@pytest.mark.parametrize(
    "name", ["ok_540_clean", "torn_497_killed_burst", "bad_cf08_consumer_offsets_missing"]
)
def test_a_terminal_shows_one_screen(cases: Library, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All lines, and the prompt after them, are on a screen of 80 by 24; a larger one has more topics."""
    small, large = (screen(cases.path(name), columns, lines) for columns, lines in ((80, 24), (120, 50)))
    assert len(small) <= 23 and len(large) <= 49
    assert max(map(wcswidth, small)) <= 80
    assert small[0].startswith("store ") and small[-1].startswith(("next ", " " * 13 + "section: "))
    if name == "ok_540_clean":
        assert any(line.startswith("takes ") for line in small)
    for label in ("written by", "state", "commit log", "messages", "disk", "dispatch", "topics", "verdict"):
        assert [line for line in small if line.startswith(label)], label
    assert main(["info", str(cases.path(name))]) in (0, 1)
    piped, shown = (re.sub(r"[\d.]+", "1", text) for text in (capsys.readouterr().out, "\n".join(small)))
    whole = {" ".join(line.split()) for line in piped.splitlines()}
    rows = [" ".join(row.split()) for row in re.split(r"\n(?! {13})", shown) if not row.startswith("store")]
    labels = ("written by", "state", "last file", "messages", "disk", "dispatch", "takes", "index")
    assert [row for row in rows if row.startswith(labels) and row not in whole] == []
    gone = [
        label
        for label in ("sizes", "takes", "last file", "checkpoint")
        if re.search(rf"^{label} ", piped, re.M) and not re.search(rf"^{label} ", shown, re.M)
    ]
    more = next((row for row in rows if row.startswith("more rows ")), "more rows :").removeprefix(
        "more rows "
    )
    assert re.split(", | and ", more.partition(":")[0]) == (gone or [""])
    bars = [sum(line[-1:] in ("█", *"▏▎▍▌▋▊▉") for line in shown) for shown in (small, large)]
    assert 2 <= bars[0] < bars[1]


def test_a_pipe_gets_the_largest_topics(cases: Library, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(cases.path("ok_540_clean"))]) == EXIT_OK
    lines = capsys.readouterr().out.splitlines()
    assert "and 5 more topics with 9 messages; --queues shows all" in lines
    assert "checkpoint   2026-11-21 log and queues 08:51:16, index 08:50:29+00:00" in lines


def test_sizes_that_are_not_the_defaults_are_settings(
    cases: Library, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ready for a broker.conf; a batch queue file size that no queue shows is the default."""
    main(["info", str(cases.path("ok_533_small_propcrc"))])
    text = " ".join(capsys.readouterr().out.split())
    sizes = "mappedFileSizeCommitLog=1048576, mappedFileSizeConsumeQueue=20000"
    assert f" sizes {sizes}, maxHashSlotNum=1000, maxIndexNum=4000 checkpoint " in text


def test_a_missing_checkpoint_is_said(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a store; one that is there and cannot be read is said to be unreadable."""
    (root / "checkpoint").unlink()
    main(["info", str(root)])
    assert "checkpoint   missing" in capsys.readouterr().out.splitlines()
    main(["info", str(root / "commitlog")])
    assert "checkpoint   missing" not in capsys.readouterr().out
    (root / "checkpoint").mkdir()
    main(["info", str(root)])
    assert "checkpoint   missing" not in capsys.readouterr().out
