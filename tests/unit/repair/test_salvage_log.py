"""Salvage of the log as a whole: its end, its files, without fillers, and garbage."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rmqtool.cli import main
from rmqtool.errors import RefusedError
from rmqtool.formats import message
from rmqtool.formats.message import Message
from rmqtool.log import scan_cache as packed_module
from rmqtool.read.store import Store
from rmqtool.repair.recover import Request, plan_recover
from rmqtool.repair.salvage import Salvaged, run, salvage
from rmqtool.repair.salvage.model import Misplaced
from rmqtool.storage import source
from tests.support.build_store import LOG_FILE_SIZE, file_name, patch, write_log
from tests.support.mend import mend
from tests.support.records import record
from tests.support.salvage_stores import identity, log_path, made, names, zero
from tests.support.trees import copy_tree, tree_digest, unchanged
from tests.support.whole_store import keyed
from tests.unit.repair.test_salvage import check_mended, salvaged


class TestSound:
    """Where nothing is wrong nothing is done."""

    def test_nothing_to_do(self, tmp_path: Path) -> None:
        stored = made(tmp_path / "store", keyed(40))
        result = salvaged(tmp_path / "store")
        end = stored[-1].physical_offset + stored[-1].total_size
        assert result == Salvaged((), end, kept=40)

    def test_progress(self, tmp_path: Path) -> None:
        made(tmp_path / "store", keyed(40))
        told: list[int] = []
        with Store.open(tmp_path / "store") as store:
            salvage(store, jobs=1, progress=told.append)
        assert sum(told) == LOG_FILE_SIZE * len(list((tmp_path / "store" / "commitlog").iterdir()))

    def test_no_log(self, tmp_path: Path) -> None:
        (tmp_path / "store" / "commitlog").mkdir(parents=True)
        (tmp_path / "store" / "consumequeue").mkdir()
        assert salvaged(tmp_path / "store") == Salvaged((), 0)


class TestEnd:
    """Where the log ends, and what is behind."""

    def test_torn_tail(self, tmp_path: Path) -> None:
        root, stored = tmp_path / "store", made(tmp_path / "store", keyed(43))
        last = stored[-1]
        at = last.physical_offset % LOG_FILE_SIZE
        patch(log_path(root, last.physical_offset), at + 120, bytes(last.total_size - 120))
        result = salvaged(root)
        cut = result.actions[0]
        assert (cut.kind, cut.problem, cut.offset, len(result.actions)) == ("cut", "CL01", at, 1)
        assert cut.length <= 120 and result.end == last.physical_offset
        assert [(one.fate, one.topic) for one in result.lost] == [("cut", "TopicTest")]
        check_mended(root, result)

    @pytest.mark.parametrize("where", ["alone", "second file", "inside"])
    def test_a_hole_before_a_torn_tail_goes_with_it(self, tmp_path: Path, where: str) -> None:
        """Nothing sound follows it: no filler, and no byte of it stays, also where its file has no more."""
        root, every = tmp_path / "store", made(tmp_path / "measured", keyed(60))
        of_second = [number for number, one in enumerate(every) if one.physical_offset >= LOG_FILE_SIZE]
        count = {"alone": 2, "second file": of_second[0] + 2, "inside": 10}[where]
        stored = made(root, keyed(count))
        zero(root, stored[-2], length=60)
        end = stored[-1].physical_offset + stored[-1].total_size
        patch(log_path(root, end - 1), end % LOG_FILE_SIZE - 20, bytes(20))
        result = salvaged(root)
        ends = [one.physical_offset + one.total_size for one in stored[:-2]]
        assert (result.kept, result.fillers, result.end) == (count - 2, 0, ends[-1] if ends else 0)
        check_mended(root, result)

    def zombies(self, root: Path, *, newer: bool) -> list[Message]:
        """Records 30 to 34 of an older log behind record 39, whose store times go back."""
        records = keyed(40)
        old = keyed(35)[30:]
        if newer:
            old += keyed(41, first=0)[40:]
        return write_log(root / "commitlog", [*records, *old])

    def test_zombies_are_cut(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        stored = self.zombies(root, newer=False)
        (root / "consumequeue").mkdir()
        result = salvaged(root)
        assert result.end == stored[40].physical_offset
        assert (result.kept, result.lost) == (40, ()) and "older records" in result.notes[0]
        assert {action.problem for action in result.actions} == {"CL07"}
        check_mended(root, result)

    def test_a_record_without_its_last_bytes_goes_with_the_zombies(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        last = self.zombies(root, newer=False)[39]
        end = last.physical_offset + last.total_size
        patch(log_path(root, last.physical_offset), end % LOG_FILE_SIZE - 4, bytes(4))
        result = salvaged(root)
        assert result.end <= last.physical_offset and result.kept == 39
        assert names(result.lost) == identity([last])
        mend(root, result.actions)
        again = salvaged(root)
        assert (again.actions, again.kept, again.end) == ((), 39, result.end)

    def test_records_that_newer_ones_follow_are_no_zombies(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        stored = self.zombies(root, newer=True)
        (root / "consumequeue").mkdir()
        result = salvaged(root)
        assert (result.actions, result.kept) == ((), len(stored))

    def test_a_clock_that_goes_back_makes_no_zombies(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        records = [replace(one, store_timestamp=one.store_timestamp - 10_000 * (number > 20))
                   for number, one in enumerate(keyed(40))]  # fmt: skip
        made(root, records)
        assert salvaged(root).actions == ()

    def test_garbage_behind_the_end_goes(self, tmp_path: Path) -> None:
        root, stored = tmp_path / "store", made(tmp_path / "store", keyed(20))
        end = stored[-1].physical_offset // LOG_FILE_SIZE * LOG_FILE_SIZE + LOG_FILE_SIZE
        for number in range(3):
            log_path(root, end + number * LOG_FILE_SIZE).write_bytes(bytes([number % 2]) * LOG_FILE_SIZE)
        result = salvaged(root)
        deleted = [action.path[-20:] for action in result.actions if action.kind == "delete"]
        assert deleted == [file_name(end + LOG_FILE_SIZE), file_name(end + 2 * LOG_FILE_SIZE)]
        check_mended(root, result)

    def test_the_last_empty_file_stays(self, tmp_path: Path) -> None:
        """Without any file a broker would delete all queues, and number messages from 0 again."""
        root = tmp_path / "store"
        made(root, keyed(20))
        for path in sorted((root / "commitlog").iterdir())[:-1]:
            path.unlink()
        last = next((root / "commitlog").iterdir())
        last.write_bytes(b"")
        with Store.open(root, file_sizes={"commit_log_file_size": LOG_FILE_SIZE}) as store:
            result = salvage(store, jobs=1)
        mend(root, result.actions)
        assert last.read_bytes() == bytes(LOG_FILE_SIZE)

    def test_nothing_is_sound(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        (root / "commitlog").mkdir(parents=True)
        (root / "consumequeue").mkdir()
        log_path(root, 0).write_bytes(Random(1).randbytes(LOG_FILE_SIZE))
        result = salvaged(root)
        assert result.kept == 0 and "no record of the log is sound" in result.notes[0]
        check_mended(root, result)


class TestFiles:
    """The set of files."""

    @pytest.fixture
    def stored(self, tmp_path: Path) -> list[Message]:
        return made(tmp_path / "store", keyed(60))

    @pytest.mark.parametrize("size", [LOG_FILE_SIZE + 1, LOG_FILE_SIZE + 5000])
    @pytest.mark.parametrize("offset", [0, LOG_FILE_SIZE])
    def test_too_long(self, tmp_path: Path, stored: list[Message], size: int, offset: int) -> None:
        root, path = tmp_path / "store", log_path(tmp_path / "store", offset)
        before = path.read_bytes()
        path.write_bytes(before + b"?" * (size - LOG_FILE_SIZE))
        result = salvaged(root)
        assert [action.kind for action in result.actions] == ["replace"]
        assert result.kept == len(stored)
        check_mended(root, result)
        assert path.read_bytes() == before

    @pytest.mark.parametrize("size", [0, 1, 1000, LOG_FILE_SIZE - 1])
    def test_too_short_in_the_middle(self, tmp_path: Path, stored: list[Message], size: int) -> None:
        root = tmp_path / "store"
        inside = [one for one in stored if LOG_FILE_SIZE <= one.physical_offset < 2 * LOG_FILE_SIZE]
        lost = [one for one in inside if one.physical_offset + one.total_size > LOG_FILE_SIZE + size]
        with log_path(root, LOG_FILE_SIZE).open("r+b") as file:
            file.truncate(size)
        result = salvaged(root)
        assert names(one for one in result.lost if one.topic) == identity(lost)
        check_mended(root, result)
        assert log_path(root, LOG_FILE_SIZE).stat().st_size == LOG_FILE_SIZE

    def test_names_far_apart(self, tmp_path: Path, stored: list[Message]) -> None:
        """A thousand missing files are not made; everything that is there is kept."""
        root = tmp_path / "store"
        copy = log_path(root, LOG_FILE_SIZE * 1000)
        copy.write_bytes(bytes(LOG_FILE_SIZE))
        records = write_log(tmp_path / "far", keyed(3, first=60), start=LOG_FILE_SIZE * 1000)
        shutil.copy(tmp_path / "far" / copy.name, copy)
        with Store.open(root) as store:
            result = salvage(store, jobs=1)
        assert "too many to be created again" in result.notes[0]
        assert result.kept == len(stored) + len(records)
        assert not [action for action in result.actions if action.kind == "create"]

    def test_an_overlapping_file_with_records_is_refused(self, tmp_path: Path, stored: list[Message]) -> None:
        root = tmp_path / "store"
        data = message.encode(record("T", b"x", physical_offset=100)).ljust(LOG_FILE_SIZE, b"\0")
        (root / "commitlog" / file_name(100)).write_bytes(data)
        with (
            unchanged(root),
            Store.open(root) as store,
            pytest.raises(RefusedError, match="overlaps others") as caught,
        ):
            salvage(store, jobs=1)
        assert caught.value.hint is not None and "--broker-conf" in caught.value.hint

    def test_what_cannot_be_read_is_left(
        self, tmp_path: Path, stored: list[Message], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Unreadable is not corrupt: nothing is planned there, the rest is."""
        root = tmp_path / "store"
        opened = source.open_source

        def refuse(path: Path, **arguments: Any) -> Any:
            if path == log_path(root, LOG_FILE_SIZE):
                raise PermissionError(13, "Permission denied", str(path))
            return opened(path, **arguments)

        zero(root, stored[5])
        monkeypatch.setattr("rmqtool.repair.salvage.run.open_source", refuse)
        result = salvaged(root)
        name = f"commitlog/{file_name(LOG_FILE_SIZE)}"
        assert result.unreadable == ((name, 0, LOG_FILE_SIZE),)
        assert [action.path for action in result.actions] == [f"commitlog/{file_name(0)}"]

    def test_a_range_that_cannot_be_read_is_left(
        self, tmp_path: Path, stored: list[Message], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also in a later file: no filler is planned over bytes that may be sound."""
        root = tmp_path / "store"
        bad = next(one for one in stored if one.physical_offset > LOG_FILE_SIZE)
        path = log_path(root, bad.physical_offset)
        low = bad.physical_offset % LOG_FILE_SIZE
        high = low + bad.total_size

        class Unreadable(source.FileSource):
            def _fill(self, buffer: memoryview, offset: int) -> None:
                super()._fill(buffer, offset)
                start, stop = max(low - offset, 0), min(high - offset, len(buffer))
                if start < stop:
                    buffer[start:stop] = bytes(stop - start)
                    self._unreadable.note(offset + start, offset + stop)

        def opened(asked: Path, **arguments: Any) -> source.FileSource:
            return (Unreadable if asked == path else source.FileSource)(asked, **arguments)

        zero(root, stored[5])
        monkeypatch.setattr("rmqtool.repair.salvage.run.open_source", opened)
        result = salvaged(root)
        assert result.unreadable == ((f"commitlog/{path.name}", low, high),)
        assert [action.path for action in result.actions] == [f"commitlog/{file_name(0)}"]


class TestFillNone:
    """Without fillers the log ends at the first hole."""

    def test_the_rest_is_the_tail(self, tmp_path: Path) -> None:
        root, stored = tmp_path / "store", made(tmp_path / "store", keyed(60))
        zero(root, stored[5])
        zero(root, stored[30])
        result = salvaged(root, fill="none")
        assert (result.end, result.kept, result.given_up) == (stored[5].physical_offset, 5, 53)
        behind = [
            one for one in stored if any(low <= one.physical_offset < high for low, high in result.tail)
        ]
        assert behind == [*stored[6:30], *stored[31:]]
        cut = result.actions[0]
        assert (cut.kind, cut.problem) == ("cut", "CL02") and "what follows is given up" in cut.reason
        assert names(result.lost) == identity([stored[5], stored[30]])
        assert {one.fate for one in result.lost} == {"cut"} and result.fillers == 0
        mend(root, result.actions)
        again = salvaged(root, fill="none")
        assert (again.actions, again.kept, again.end) == ((), 5, result.end)

    @pytest.mark.parametrize("count", [1, 3])
    def test_records_without_their_last_bytes_go_with_the_rest(self, tmp_path: Path, count: int) -> None:
        """They are kept while records follow; at the log's end the next run would take them for torn."""
        root, stored = tmp_path / "store", made(tmp_path / "store", keyed(60))
        for one in stored[5 - count : 5]:
            end = one.physical_offset + one.total_size
            patch(log_path(root, one.physical_offset), end % LOG_FILE_SIZE - 4, bytes(4))
        zero(root, stored[5])
        result = salvaged(root, fill="none")
        assert (result.end, result.kept) == (stored[5 - count].physical_offset, 5 - count)
        assert (result.given_up, result.tail[0]) == (54 + count, (result.end, stored[5].physical_offset))
        assert "what follows is given up" in result.actions[0].reason
        assert names(result.lost) == identity([stored[5]])
        mend(root, result.actions)
        again = salvaged(root, fill="none")
        assert (again.actions, again.kept, again.end) == ((), 5 - count, result.end)

    def test_a_blank_is_no_filler(self, tmp_path: Path) -> None:
        root, stored = tmp_path / "store", made(tmp_path / "store", keyed(60))
        last = [one for one in stored if one.physical_offset < LOG_FILE_SIZE][-1]
        patch(log_path(root, 0), last.physical_offset + last.total_size, bytes(8))
        result = salvaged(root, fill="none")
        assert (result.kept, result.tail, [action.length for action in result.actions]) == (60, (), [8])


@pytest.mark.parametrize("seed", range(12))
def test_garbage_never_crashes_or_invents(tmp_path: Path, seed: int) -> None:
    """Heads without end, sizes without sense: whatever comes out is a log that verify takes for sound."""
    random = Random(seed)
    root = tmp_path / "store"
    stored = made(root, keyed(80))
    heads = [message.encode(one)[: random.randrange(8, 120)] for one in random.sample(stored, 20)]
    for one in sorted((root / "commitlog").iterdir()):
        data = bytearray(one.read_bytes())
        for _ in range(random.randrange(6)):
            piece = random.choice(
                [*heads, message.encode_blank(random.randrange(5000)), random.randbytes(50)]
            )
            at = random.randrange(len(data) - len(piece))
            data[at : at + len(piece)] = piece
        one.write_bytes(data)
    copy = copy_tree(root, tmp_path / "copy")
    check_mended(copy, salvaged(root))


class TestStrays:
    """Files with other names among those of the log: one with records of it goes only when that is meant."""

    @pytest.mark.parametrize(
        "name", [f"{LOG_FILE_SIZE:020}.bak", str(LOG_FILE_SIZE), f"{LOG_FILE_SIZE + 1:020}", "folder/foo"]
    )
    def test_renamed_file(self, tmp_path: Path, name: str) -> None:
        root = tmp_path / "store"
        stored = made(root, keyed(40))
        inside = sum(LOG_FILE_SIZE <= each.physical_offset < 2 * LOG_FILE_SIZE for each in stored)
        home = log_path(root, LOG_FILE_SIZE)
        (home.parent / name).parent.mkdir(exist_ok=True)
        home.rename(home.parent / name)
        result = salvaged(root)
        assert result.misplaced == (Misplaced(f"commitlog/{name}", inside, home.name),)
        with Store.open(root) as store:
            refusals = plan_recover(store, Request()).refusals
        assert [refusal.needs for refusal in refusals] == ["yes"]
        assert refusals[0].reason.startswith(f"{inside} records of commitlog/{name} are sound")
        assert f"give the file the name that it had, {home.name}, or" in refusals[0].reason
        before = tree_digest(root / "commitlog")
        assert main(["recover", str(root), "--apply"]) == 4 and tree_digest(root / "commitlog") == before
        (home.parent / name).rename(home)
        shutil.rmtree(home.parent / "folder", ignore_errors=True)
        assert salvaged(root).actions == ()

    def test_each_file_is_read_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One with an odd number too, and nothing is kept of a file that does not stay as it is."""
        root = tmp_path / "store"
        made(root, keyed(40))
        home = log_path(root, LOG_FILE_SIZE)
        home.rename(home.with_name(file_name(LOG_FILE_SIZE + 1)))
        with log_path(root, 2 * LOG_FILE_SIZE).open("ab") as file:
            file.write(bytes(8))
        read: list[str] = []
        packed: list[int] = []
        open_source, pack = run.open_source, packed_module.pack

        def opened(path: Path, **options: Any) -> source.ByteSource:
            read.append(path.name)
            return open_source(path, **options)

        def pack_one(frames: Any, dispatch: Any) -> Any:
            packed.append(frames.file_from_offset)
            return pack(frames, dispatch)

        monkeypatch.setattr(run, "open_source", opened)
        monkeypatch.setattr(packed_module, "pack", pack_one)
        result = salvaged(root)
        assert [each.path for each in result.misplaced] == [f"commitlog/{file_name(LOG_FILE_SIZE + 1)}"]
        assert read.count(file_name(LOG_FILE_SIZE + 1)) == 1
        assert 0 in packed and not {LOG_FILE_SIZE, LOG_FILE_SIZE + 1, 2 * LOG_FILE_SIZE} & set(packed)

    def test_link_to_a_file_elsewhere(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        made(root, keyed(40))
        home = log_path(root, LOG_FILE_SIZE)
        shutil.move(home, tmp_path / "elsewhere")
        (home.parent / "link").symlink_to(tmp_path / "elsewhere")
        (found,) = salvaged(root).misplaced
        assert (found.path, found.name) == ("commitlog/link", home.name)

    def test_copy_beside_the_file(self, tmp_path: Path) -> None:
        root = tmp_path / "store"
        made(root, keyed(40))
        shutil.copy(log_path(root, 0), root / "commitlog" / "copy")
        assert [(each.name, each.is_taken) for each in salvaged(root).misplaced] == [(file_name(0), True)]
        with Store.open(root) as store:
            (refusal,) = plan_recover(store, Request()).refusals
        assert "the log has a file 00000000000000000000 where they belong" in refusal.reason

    def test_what_is_no_log(self, tmp_path: Path) -> None:
        """Text, a pipe, a link, a file larger than any of the log: they go; none is read for longer."""
        root = tmp_path / "store"
        made(root, keyed(40))
        folder = root / "commitlog"
        (folder / "foo").write_text("hello")
        os.mkfifo(folder / "pipe")
        (folder / "link").symlink_to(folder / file_name(0))
        (folder / "large").touch()
        os.truncate(folder / "large", 1 << 40)
        result = salvaged(root)
        assert result.misplaced == () and {Path(each.path).name for each in result.actions} == {
            "foo", "pipe", "link", "large",
        }  # fmt: skip

    def test_that_cannot_be_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        root = tmp_path / "store"
        made(root, keyed(40))
        (root / "commitlog" / "foo").write_text("hello")
        real = run.open_source

        def opened(path: Path, **options: Any) -> source.ByteSource:
            if path.name == "foo":
                raise PermissionError(13, "Permission denied")
            return real(path, **options)

        monkeypatch.setattr(run, "open_source", opened)
        assert salvaged(root).misplaced == (Misplaced("commitlog/foo", is_readable=False),)
        with Store.open(root) as store:
            (refusal,) = plan_recover(store, Request()).refusals
        assert refusal.needs == "yes" and "commitlog/foo cannot be read" in refusal.reason
