"""A look-up after a repair: fillers stand where lost messages were, and the look-up says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.commands import lookup_text
from rmqtool.formats import filler, properties
from rmqtool.formats.message_id import offset_message_id
from rmqtool.log.events import StoredMessage
from rmqtool.read import fillers as fillers_module
from rmqtool.read.fillers import fillers, lost_by, ranges_of
from rmqtool.read.store import Store
from tests.support.recover_checks import recovered
from tests.support.stores import Library

Look = Callable[..., tuple[int, list[dict[str, Any]], str]]
HOLE = (86016, 86016 + 4096)  # of gap_cl08_zeroed_page


@pytest.fixture
def look(capsys: pytest.CaptureFixture[str]) -> Look:
    """`rmqtool lookup` in JSON: its exit code, rows, and standard error."""

    def call(*arguments: object) -> tuple[int, list[dict[str, Any]], str]:
        code = main(["lookup", *map(str, arguments), "--format", "json"])
        captured = capsys.readouterr()
        return code, json.loads(captured.out), captured.err

    return call


@pytest.fixture
def repaired(cases: Library, store_copy: Callable[[str], Path]) -> tuple[Path, list[StoredMessage]]:
    """A store with a hole after `recover --apply`, and the messages that were in the hole."""
    root = store_copy("gap_cl08_zeroed_page")
    recovered(root)
    with Store.open(cases.path("ok_540_small_ipv6")) as sound:
        start, stop = HOLE
        events = [each for each in sound.events(start - 4096, stop) if isinstance(each, StoredMessage)]
        lost = [each for each in events if each.physical_offset + each.message.total_size > start]
    assert len(lost) > 3
    return root, lost


def test_nothing_that_recover_lost_is_denied(
    repaired: tuple[Path, list[StoredMessage]], look: Look, capsys: pytest.CaptureFixture[str]
) -> None:
    """By key, unique key, id, physical offset and queue offset."""
    root, lost = repaired
    for stored in lost:
        record, offset = stored.message, stored.physical_offset
        topic, place = record.topic, ("--topic", record.topic, "--queue", record.queue_id)
        found = properties.decode(record.properties_bytes)
        searches: list[tuple[object, ...]] = [("--offset", offset), ("--offset", offset + 50)]
        searches += [("--queue-offset", record.queue_offset, *place)]
        searches += [("--msg-id", offset_message_id(record.store_host, offset))]
        searches += [("--uniq-key", found[properties.UNIQ_KEY]), (found[properties.UNIQ_KEY],)]
        searches += [("--key", found[properties.UNIQ_KEY], "--topic", topic)]
        for arguments in searches:
            code, rows, error = look(root, *arguments)
            assert code == 1, arguments
            assert rows and {row["found_by"] for row in rows} == {"filler"}, arguments
            assert any(
                row["physical_offset"] <= offset < row["physical_offset"] + row["size"] for row in rows
            )
            is_exact = arguments[0] in ("--offset", "--queue-offset")
            assert "filler" in error, arguments
            assert ("the message is lost: " if is_exact else "may have been") in error, arguments
            assert "no message with" in error
    assert main(["lookup", str(root), found[properties.UNIQ_KEY]]) == 1
    shown = capsys.readouterr()
    assert 1 <= shown.out.count("filler ") <= 3 and "may have been" in shown.err


def test_a_large_log_is_searched_only_on_request(
    repaired: tuple[Path, list[StoredMessage]], look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key costs no walk over terabytes; an offset leads to its filler in a log of any size."""
    root, lost = repaired
    monkeypatch.setattr(lookup_text, "_SEARCHED_BYTES", 1 << 10)
    code, rows, error = look(root, "--key", "never-sent")
    assert (code, rows) == (1, []) and "--scan always" in error
    code, rows, error = look(root, "--key", "never-sent", "--scan", "always")
    assert code == 1 and rows and "--scan always" not in error
    code, rows, error = look(root, "--offset", lost[0].physical_offset)
    assert code == 1 and rows and "--scan always" not in error


def test_what_is_found_or_elsewhere_has_no_filler(
    repaired: tuple[Path, list[StoredMessage]], cases: Library, look: Look
) -> None:
    root, lost = repaired
    code, rows, error = look(root, "--offset", 0)
    assert code == 0 and rows[0]["found_by"] == "offset" and "filler" not in error
    code, rows, error = look(cases.path("ok_540_small_ipv6"), "--key", "never-sent")
    assert (code, rows) == (1, []) and "filler" not in error
    topics = {each.message.topic for each in lost}
    with Store.open(root) as store:
        other = next(topic for topic, _ in store.queues if topic not in topics)
        has_unknown = any(not lost_by(each) for each in fillers(store))
    code, rows, error = look(root, "--key", "never-sent", "--topic", other)
    assert code == 1 and (rows != []) == has_unknown and ("filler" in error) == has_unknown


def test_both_walks_find_the_same(
    repaired: tuple[Path, list[StoredMessage]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record by record, and by the compiled walk; as many messages as were lost."""
    root, lost = repaired
    with Store.open(root) as store:
        plain = list(fillers(store))
        monkeypatch.setattr(fillers_module, "is_small", lambda *arguments: False)
        assert list(fillers(store)) == plain != []
        first = plain[0].physical_offset
        assert list(fillers(store, start=first, stop=first + 1)) == plain[:1]
    assert all(filler.is_filler(each.message) for each in plain)
    assert sum(each.messages for each in ranges_of(plain)) == len(lost)
    assert sum(each.fillers for each in ranges_of(plain)) == len(plain)
