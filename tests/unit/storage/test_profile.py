"""Which broker version used a store last."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqtool.errors import UsageError
from rmqtool.read.store import Store
from rmqtool.storage.profile import PROFILES, WrittenBy, profile_named
from tests.support.build_store import (
    two_queues,
    write_log,
    write_sparse,
    write_store,
)
from tests.support.stores import Library, case


class TestProfile:
    def test_a_log_alone_tells_nothing(self, tmp_path: Path) -> None:
        write_log(tmp_path / "commitlog", two_queues(3))
        with Store.open(tmp_path) as store:
            assert store.profile.name == "5.4"
        with Store.open(tmp_path / "commitlog") as store:
            assert store.profile.name == "5.4"

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

    @pytest.mark.parametrize(
        ("name", "without", "assumed", "candidates"),
        [
            ("ok_540_clean", (), "5.4", ("5.4",)),
            ("ok_533_clean", (), "5.3", ("5.3",)),
            ("ok_497_clean", (), "4.9", ("4.9",)),
            ("ok_540_clean", ("config",), "5.3", ("5.3", "5.4")),
            ("ok_533_clean", ("config",), "5.3", ("5.3", "5.4")),
            ("ok_497_clean", ("config",), "4.9", ("4.9", "5.3", "5.4")),
        ],
    )
    def test_a_guess_is_called_one(
        self, cases: Library, tmp_path: Path, name: str, without: tuple[str, ...], assumed: str,
        candidates: tuple[str, ...],
    ) -> None:  # fmt: skip
        root = cases.copy(name, tmp_path / "store")
        for folder in without:
            shutil.rmtree(root / folder)
        with Store.open(root) as store:
            found = store.written_by
        assert (found.profile.name, found.candidates) == (assumed, candidates)
        assert found.is_known == (found.reason is None) == (len(candidates) == 1)
        assert WrittenBy.of_row(found.row()) == found

    @pytest.mark.parametrize("name", ["ok_540_clean", "ok_533_clean"])
    @pytest.mark.parametrize("write", [
        lambda text: json.dumps(json.loads(text), indent="\t"),
        lambda text: json.dumps(json.loads(text), separators=(",", ":")),
        lambda text: re.sub(r'"(\d+)":', r"\1:", json.dumps(json.loads(text), indent="\t")),
    ])  # fmt: skip
    def test_a_file_that_no_broker_has_written_shows_no_version(
        self, write: Callable[[str], str], cases: Library, tmp_path: Path, name: str
    ) -> None:
        """Not by its white space, alone or beside files of a broker, which then decide."""
        root = cases.copy(name, tmp_path / "store")
        files = [path for path in (root / "config").iterdir() if ".json" in path.suffixes]
        kept = root / "config/delayOffset.json"
        for path in files:
            if path.name != kept.name:
                path.write_text(write(re.sub(r"([{,]\s*)(\d+)\s*:", r'\1"\2":', path.read_text())))
        with Store.open(root) as store:
            assert store.written_by.candidates == (case(name).profile,)
        kept.write_text(write('{"offsetTable":{"1":24}}'))
        with Store.open(root) as store:
            assert str(store.written_by) == "5.x (5.3 or 5.4; config/ does not say)"

    @pytest.mark.parametrize("name", ["ok_540_clean", "ok_533_expired", "ok_540_small_propcrc"])
    def test_an_archive_tells_5_from_4_by_its_records(
        self, cases: Library, tmp_path: Path, name: str
    ) -> None:
        """What `expire --archive` copies: files of the log and of queues, and nothing else."""
        for part in ("commitlog", "consumequeue"):
            shutil.copytree(cases.path(name) / part, tmp_path / part)
        with Store.open(tmp_path) as store:
            assert str(store.written_by) == "5.x (5.3 or 5.4; config/ is missing)"
        with Store.open(tmp_path, profile="5.4") as store:
            assert (store.profile.name, str(store.written_by)) == ("5.4", "5.4")
            with store.location.open() as again:
                assert again.profile.name == "5.4"

    def test_config_files_that_cannot_be_read(self, cases: Library, tmp_path: Path) -> None:
        """A file that is being replaced has its .bak; nothing readable is a guess, never another version."""
        root = cases.copy("ok_540_clean", tmp_path / "store")
        with Store.open(root) as store:
            for path in (root / "config").glob("*.json"):
                path.unlink()
            assert store.profile.name == "5.4"
        with Store.open(root) as store:
            for path in (root / "config").iterdir():
                path.unlink()
            assert store.written_by.candidates == ("5.3", "5.4")

    def test_by_name(self) -> None:
        assert profile_named("5.3") is PROFILES["5.3"]
        with pytest.raises(UsageError, match="no profile '6'"):
            profile_named("6")
