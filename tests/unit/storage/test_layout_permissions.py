"""Stores of which an ordinary user may not read all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqtool.errors import RmqtoolError, UnreadableError
from rmqtool.storage.layout import detect
from tests.support.build_store import one_queue, write_store
from tests.support.ordinary_user import as_nobody, open_to_all


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(tmp_path / "store", one_queue(40))
    return tmp_path / "store"


class TestPermissions:
    @pytest.fixture(autouse=True)
    def reachable(self, tmp_path: Path) -> None:
        open_to_all(tmp_path)

    def expect(self, path: Path, error: type[RmqtoolError]) -> Callable[[], None]:
        def action() -> None:
            with pytest.raises(error):
                detect(path)

        return action

    @pytest.mark.parametrize("closed", [".", ".."])
    def test_the_store_cannot_be_listed(self, store: Path, closed: str) -> None:
        (store / closed).chmod(0o600)
        as_nobody(self.expect(store, UnreadableError))
        (store / closed).chmod(0o755)

    def test_a_part_that_cannot_be_listed_is_said(self, store: Path) -> None:
        (store / "consumequeue/TopicTest/0").chmod(0)

        def action() -> None:
            found = detect(store)
            assert found.commit_log
            assert found.consume_queues["TopicTest", 0].files == ()
            assert found.unreadable == ((store / "consumequeue/TopicTest/0", "Permission denied"),)

        as_nobody(action)
        (store / "consumequeue/TopicTest/0").chmod(0o755)

    def test_a_broker_conf_that_cannot_be_read(self, store: Path, tmp_path: Path) -> None:
        with pytest.raises(UnreadableError):
            detect(store, broker_conf=tmp_path / "no.conf")
