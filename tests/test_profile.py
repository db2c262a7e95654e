"""Which broker version used a store last."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqtool.errors import UsageError
from rmqtool.store import (
    Store,
)
from rmqtool.store.profile import PROFILES, detect_profile, profile_named
from tests.build_store import (
    two_queues,
    write_log,
    write_sparse,
    write_store,
)


class TestProfile:
    def test_a_log_alone_tells_nothing(self, tmp_path: Path) -> None:
        write_log(tmp_path / "commitlog", two_queues(3))
        with Store.open(tmp_path) as store:
            assert store.profile.name == "5.4"
        with Store.open(tmp_path / "commitlog") as store:
            assert detect_profile(store.layout).name == "5.4"

    @pytest.mark.parametrize(
        ("made", "content", "name"),
        [
            ("lock", b"lock", "4.9"),
            ("abort", b"", "4.9"),
            ("abort", b"4711", "5.3"),
            ("abort.bak", b"", "5.3"),
            ("timerwheel", b"", "5.3"),
            ("config/timercheck", b"", "5.3"),
            ("checkpoint", bytes(4096), "4.9"),
            ("checkpoint", bytes(39) + b"\1" + bytes(4056), "5.3"),
            ("rocksdbstore/CURRENT", b"", "5.4"),
            ("config/consumerFilter.json", b'{\n\t"filterDataByTopic":{}\n}', "4.9"),
            ("config/consumerFilter.json", b'{\n\t"filterDataByTopic":{\n\t\t\n\t}\n}', "5.4"),
            ("config/delayOffset.json", b'{\n\t"offsetTable":{1:24,2:5\n\t}\n}', "4.9"),
            ("config/delayOffset.json", b'{\n\t"offsetTable":{\n\t\t1:24\n\t}\n}', "5.4"),
        ],
    )
    def test_by_what_a_version_leaves(self, tmp_path: Path, made: str, content: bytes, name: str) -> None:
        write_store(tmp_path, two_queues(3))
        write_sparse(tmp_path / made, len(content), (0, content))
        with Store.open(tmp_path) as store:
            assert store.profile.name == name

    def test_by_name(self) -> None:
        assert profile_named("5.3") is PROFILES["5.3"]
        with pytest.raises(UsageError, match="no profile '6'"):
            profile_named("6")
