"""What lies in the last log file behind the last record that is dispatched: lag, or an older log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rmqtool import NewMessage, Store
from rmqtool.broker.predict import predict_all
from rmqtool.errors import RefusedError
from rmqtool.formats.message import Message
from rmqtool.write.store_writer import StoreWriter
from tests.support.build_store import write_log
from tests.support.records import record
from tests.support.recover_checks import codes, recovered
from tests.support.trees import unchanged
from tests.support.whole_store import findings_of, keyed, write_keys, write_state, write_units

SIZES = [150, 40_000]  # of a body: read by plain code, by compiled code
FILE_SIZE = 4 << 20


def made(root: Path, records: Sequence[Message], dispatched: int) -> list[Message]:
    """A store that was closed cleanly, with units of the first records only."""
    stored = write_log(root / "commitlog", records, file_size=FILE_SIZE)
    write_units(root, stored[:dispatched])
    if dispatched:
        write_keys(root, stored[:dispatched])
    write_state(root, stored)
    return stored


def test_a_zombie_tail_is_refused(store_copy: Callable[[str], Path]) -> None:
    root = store_copy("bad_cl07_zombie_tail")
    with unchanged(root), pytest.raises(RefusedError, match="the log ends in older records") as refused:
        StoreWriter.open(root)
    assert refused.value.physical_offset == 174265
    assert refused.value.hint is not None and "rmqtool recover" in refused.value.hint


@pytest.mark.parametrize("body", SIZES)
@pytest.mark.parametrize("lag", [0, 12])
def test_records_whose_offsets_are_taken_are_refused(tmp_path: Path, body: int, lag: int) -> None:
    """Behind all units, and behind records that are not dispatched yet."""
    root = tmp_path / "store"
    records = keyed(40, body=body)
    stored = made(root, [*records, *records[25:]], 40 - lag)
    with unchanged(root), pytest.raises(RefusedError, match="the log ends in older records") as refused:
        StoreWriter.open(root)
    # plain code meets the first one first, compiled code goes queue by queue
    assert refused.value.physical_offset in [one.physical_offset for one in stored[40:]]


@pytest.mark.parametrize("body", SIZES)
@pytest.mark.parametrize("dispatched", [0, 1, 20, 39])
def test_records_that_are_not_dispatched_yet_are_gone_on_with(
    tmp_path: Path, body: int, dispatched: int
) -> None:
    root = tmp_path / "store"
    made(root, keyed(40, body=body), dispatched)
    with StoreWriter.open(root) as writer:
        assert writer.put(NewMessage("TopicTest", b"more", queue_id=0)).queue_offset == 20
    assert [one for one in findings_of(root) if one.problem.severity != "note"] == []
    with StoreWriter.open(root) as writer:
        writer.put(NewMessage("TopicTest", b"more", queue_id=0))


@pytest.mark.parametrize("name", ["..", ".", "a/b"])
def test_topics_that_no_queue_can_be_called_by(tmp_path: Path, name: str) -> None:
    """Records of such a topic are nobody's: recover mends the rest, verify is content, append goes on."""
    root = tmp_path / "store"
    odd = [record(name, b"x", {}, queue_offset=number) for number in range(3)]
    stored = write_log(root / "commitlog", [*odd, *keyed(6)], file_size=FILE_SIZE)
    write_units(root, stored[3:])
    write_state(root, stored)
    with Store.open(root) as store:
        assert all(start.queues_lost == 0 for start in predict_all(store))
    recovered(root, backup=tmp_path / "backup")
    assert codes(root) == set()
    with StoreWriter.open(root) as writer:
        writer.put(NewMessage("TopicTest", b"more", queue_id=0))
    assert codes(root) == set()
    assert sorted(path.name for path in (root / "consumequeue").iterdir()) == ["TopicTest"]
    assert not (tmp_path / "0").exists() and not (root / "0").exists()
