"""`receive --dispatch` that ends at any moment: killed, on a full disk, without power.

What a killed run leaves is what a broker's start mends. The same command run again has the whole log, and
queues and index as a run has that nothing happened to.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from rmqtool.check.verify import verify
from rmqtool.errors import EXIT_INPUT, EXIT_OK, RefusedError
from rmqtool.formats import message, replication
from rmqtool.formats.index import Shape
from rmqtool.net import dispatching
from rmqtool.net.ha_connection import Address
from rmqtool.net.receive import Receiver, ReceiveRequest
from rmqtool.read.kernels import load_kernels
from rmqtool.read.store import Store
from rmqtool.write import reput
from tests.faults import CHANGES, Fault, How, Ran, Runner
from tests.support.crash_check import KILLED
from tests.support.crash_child import Tell, in_child
from tests.support.disk_calls import Call, watched
from tests.support.power_loss import MODES, Mode, rebuild
from tests.support.rebuild_checks import index_entries, queue_files
from tests.support.records import STORE_TIMESTAMP, record
from tests.support.replication import FakeBroker, listening, log_of, read_exactly
from tests.support.sweep import IS_WHOLE

pytestmark = pytest.mark.sweep

FILE_SIZE = 2048
SHAPE = Shape(5, 12)
SETTINGS = {"mappedFileSizeConsumeQueue": "100", "maxHashSlotNum": str(SHAPE.slots),
            "maxIndexNum": str(SHAPE.entries)}  # fmt: skip
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT)
HOWS: tuple[How, ...] = ("fail", "kill-before", "kill-half", "kill-after")
SAMPLE = 2
COUNT = 40


def log_with_files() -> tuple[bytes, list[int]]:
    """A log of several files, of two queues, the second of which begins late; where its records end."""
    data, ends, queue_offsets = b"", [], [0, 7]
    for number in range(COUNT):
        queue_id = int(number % 3 == 2)
        one = record(
            "Topic", b"x" * 70, {"KEYS": f"k{number} same", "TAGS": "Tag"}, queue_id=queue_id,
            queue_offset=queue_offsets[queue_id], store_timestamp=STORE_TIMESTAMP + 700 * number,
        )  # fmt: skip
        left = FILE_SIZE - len(data) % FILE_SIZE
        if one.total_size + message.BLANK_SIZE > left:
            data += message.encode_blank(left).ljust(left, b"\0")
        data += message.encode(replace(one, physical_offset=len(data)))
        queue_offsets[queue_id] += 1
        ends.append(len(data))
    return data, ends


LOG, ENDS = log_with_files()


@contextmanager
def a_broker(*, waits: bool) -> Iterator[Address]:
    """A master of the log, and what it says of itself; it `waits` until what it sent is acknowledged."""

    def serve(connection: Any) -> None:
        place = int.from_bytes(read_exactly(connection, 8))
        for end in (each for each in ENDS if each > place):
            while place < end:
                stop = min(end, place - place % FILE_SIZE + FILE_SIZE)
                connection.sendall(replication.FRAME.pack(place, stop - place) + LOG[place:stop])
                place = stop
            report = end if not waits else -1
            while report < end:
                data = read_exactly(connection, 8)
                if len(data) < 8:
                    return
                report = int.from_bytes(data)
        connection.sendall(replication.FRAME.pack(place, 0))
        while connection.recv(64):
            pass

    with listening(serve) as address:
        log = SimpleNamespace(start=0, end=len(LOG), file_size=FILE_SIZE)
        fake = FakeBroker(SimpleNamespace(log=log, address=address))  # type: ignore[arg-type]
        fake.properties |= SETTINGS
        with fake as broker:
            yield broker


def receive(
    runner: Runner, folder: Path, fault: Fault, *options: object, logged: bool = False, waits: bool = True
) -> Ran:
    """Run `receive --dispatch` once."""
    with a_broker(waits=waits) as address:
        line = ["receive", str(address), folder / "copy", "--dispatch", "--once", "--no-reconnect", "--json"]
        return runner.run([*line, *options], fault, logged=logged)


def files_of(copy: Path) -> set[str]:
    """The files of log, queues and index."""
    found = (path for name in ("commitlog", "consumequeue", "index") for path in (copy / name).rglob("*"))
    return {str(path.relative_to(copy)) for path in found if path.is_file()}


def content(copy: Path) -> tuple[dict[str, bytes], list[tuple[int, int]]]:
    """Queues and index."""
    return queue_files(copy), index_entries(copy, SHAPE)


def run(copy: Path, max_bytes: int | None = None) -> None:
    """Receive and dispatch in this process."""
    with a_broker(waits=False) as address:
        request = ReceiveRequest(address, once=True, retries=False, dispatch=True, max_bytes=max_bytes)
        Receiver(request, copy, note=lambda text: None).run()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Queues and index of a run that nothing happened to; they are sound."""
    load_kernels()
    copy = tmp_path_factory.mktemp("expected") / "copy"
    run(copy)
    assert severe(copy) == []
    found = content(copy)
    assert len(found[1]) == 3 * COUNT
    return found


def severe(copy: Path, *, known: Container[str] = ()) -> list[dict[str, Any]]:
    """The findings of `verify` that are more than a note, without `known` ones."""
    with Store.open(copy) as store:
        found = [item for item in verify(store, jobs=1) if item.problem.code not in known]
    return [item.row() for item in found if item.problem.severity != "note"]


@pytest.mark.parametrize("part", ["index", "consumequeue/Topic/1"])
def test_a_file_that_was_being_made(tmp_path: Path, expected: Any, part: str) -> None:
    """The newest one, without its size: the next run makes it again. Another wrong size is refused."""
    copy = tmp_path / "copy"
    run(copy)
    newest = sorted((copy / part).iterdir())[-1]
    size = newest.stat().st_size
    begun = newest.with_name(f"{int(newest.name) + (1 if part == 'index' else size):0{len(newest.name)}}")
    begun.write_bytes(b"")
    (copy / "dispatchCheckpoint").write_text("4321 open\n")
    run(copy)
    assert content(copy) == expected
    begun = sorted((copy / part).iterdir())[-1]
    begun.write_bytes(begun.read_bytes()[:-1])
    with pytest.raises(RefusedError):
        run(copy)


def check_and_finish(copy: Path, expected: Any) -> None:
    """What was left is mended by a broker's start; the next run has everything."""
    is_begun = (copy / "commitlog").exists()
    if is_begun:
        assert severe(copy, known=KILLED) == []
    elif copy.exists() and any(copy.iterdir()):
        shutil.rmtree(copy)  # begun, with nothing in it: the error says so
    run(copy)
    assert log_of(copy) == LOG.rstrip(b"\0")
    assert content(copy) == expected
    assert severe(copy) == []
    assert not (copy / "abort").exists()


@pytest.mark.parametrize("how", HOWS)
def test_each_operation(runner: Runner, tmp_path: Path, how: How, expected: Any) -> None:
    """Any change of a file fails, or is the last one."""
    folder = tmp_path / "run"
    folder.mkdir()
    whole = receive(runner, folder, Fault(folder, CHANGES), logged=True)
    assert whole.code == EXIT_OK, whole.told
    assert content(folder / "copy") == expected
    of_queues = [number for number, name in enumerate(whole.operations, 1) if "/commitlog/" not in name]
    made = [
        Fault(folder, CHANGES, number, sticky, how, ERRORS[number % len(ERRORS)])
        for number in (range(1, len(whole.operations) + 1) if IS_WHOLE else of_queues)
        for sticky in ((False, True) if how == "fail" else (False,))
    ]
    for fault in made if IS_WHOLE else Random(how).sample(made, SAMPLE):
        shutil.rmtree(folder)
        folder.mkdir()
        ran = receive(runner, folder, fault)
        try:
            if how == "fail":
                assert ran.code in (EXIT_OK, EXIT_INPUT), ran.told
                assert "Traceback" not in ran.text and "this is a bug" not in ran.text
                if ran.code == EXIT_INPUT:
                    assert os.strerror(fault.error) in ran.text
            check_and_finish(folder / "copy", expected)
        except BaseException as error:
            error.add_note(f"{fault} of {whole.operations[fault.first - 1]}\n{ran.told}")
            raise


def test_each_operation_of_an_expiry(runner: Runner, tmp_path: Path, expected: Any) -> None:
    """The log goes before queues and index, each from its start on; the next run deletes the rest."""
    kept, folder = tmp_path / "kept", tmp_path / "run"
    run(kept / "copy")
    shutil.copytree(kept, folder)
    line = ("--max-bytes", FILE_SIZE)
    whole = receive(runner, folder, Fault(folder, CHANGES), *line, logged=True, waits=False)
    assert whole.code == EXIT_OK, whole.told
    left, going = files_of(folder / "copy"), files_of(kept / "copy") - files_of(folder / "copy")
    assert {name.split("/")[0] for name in going} == {"commitlog", "consumequeue", "index"}
    places = [
        number
        for number, name in enumerate(whole.operations, 1)
        if name.startswith("unlink") and any(name.endswith(path) for path in going)
    ]
    assert len(places) == len(going)
    made = [
        Fault(folder, CHANGES, number, False, how, errno.EIO)
        for number in (range(1, len(whole.operations) + 1) if IS_WHOLE else places)
        for how in HOWS
    ]
    for fault in made if IS_WHOLE else Random(3).sample(made, SAMPLE):
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        ran = receive(runner, folder, fault, *line, waits=False)
        try:
            if fault.how == "fail":
                assert ran.code in (EXIT_OK, EXIT_INPUT), ran.told
                assert "Traceback" not in ran.text and "this is a bug" not in ran.text
            assert severe(folder / "copy", known=KILLED) == []
            run(folder / "copy", FILE_SIZE)
            assert files_of(folder / "copy") == left
            assert severe(folder / "copy") == []
        except BaseException as error:
            error.add_note(f"{fault} of {whole.operations[fault.first - 1]}\n{ran.told}")
            raise


@pytest.fixture(scope="module")
def record_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], tuple[Path, list[Call]]]:
    """The calls of a run that brings queues and index to the device after every record or two."""
    above = tmp_path_factory.mktemp("record")

    @cache
    def recorded() -> tuple[Path, list[Call]]:
        folder = above / "run"
        folder.mkdir()

        def action(tell: Tell) -> None:
            dispatching._SAVE_MS = reput._PATIENCE_S = 0
            with watched(folder) as calls, a_broker(waits=True) as address:
                request = ReceiveRequest(address, once=True, retries=False, dispatch=True)
                Receiver(request, folder / "copy", note=lambda text: None).run()
            (above / "calls").write_bytes(pickle.dumps(calls.done))

        assert in_child(action)[0] == 0
        return folder / "copy", pickle.loads((above / "calls").read_bytes())

    return recorded


@pytest.mark.parametrize("mode", MODES)
def test_power_lost(record_of: Any, mode: Mode, tmp_path: Path, expected: Any) -> None:
    """Whatever the device has kept of what was not flushed: the next run has everything."""
    root, calls = record_of()
    empty = tmp_path / "empty"
    empty.mkdir()
    marks = [number for number, call in enumerate(calls) if call.path.endswith("dispatchCheckpoint.tmp")]
    assert len(marks) > 3
    places = range(marks[0], len(calls) + 1)
    for cut in places if IS_WHOLE else Random(mode).sample(places, SAMPLE):
        target = tmp_path / str(cut)
        rebuild(calls, cut, root.parent, target, mode, cut, empty)
        try:
            run(target / "copy")
            assert log_of(target / "copy") == LOG.rstrip(b"\0")
            assert content(target / "copy") == expected
            assert severe(target / "copy") == []
        except BaseException as error:
            error.add_note(f"at {cut}: {calls[cut - 1].name} {calls[cut - 1].path}")
            raise
        shutil.rmtree(target)
