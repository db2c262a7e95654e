"""The harness itself: records are complete, what was synced stays, what was not may go."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from rmqtool.storage import durable as disk
from tests.support.disk_calls import HOWS, Calls, Stop, numbered, watched
from tests.support.power_loss import MODES, PAGE, rebuild
from tests.support.trees import copy_tree, tree_rows


def content(root: Path) -> list[tuple[str, str, int, str]]:
    return [(name, kind, size, digest) for name, kind, size, _, digest in tree_rows(root)]


def random_work(root: Path, random: Random, steps: range) -> None:
    """Any calls in any order; every file that was there is used too."""
    disk.make_folder(root / "a" / "b")
    disk.make_folder(root / "c")
    for step in steps:
        files = sorted(numbered(root))
        path = Path(random.choice(files)) if files else None
        folder = root / random.choice(("a", "a/b", "c"))
        match random.randrange(10) if path else 0:
            case 0:
                os.close(disk.create_file(folder / f"f{step}", random.randrange(3 * PAGE)))
            case 1 | 2 | 3:
                descriptor = disk.open_file(path)
                for _ in range(3):
                    data = random.randbytes(random.randrange(1, 2 * PAGE))
                    disk.write(descriptor, data, random.randrange(2 * PAGE), path)
                if random.random() < 0.5:
                    disk.sync(descriptor, path)
                    disk.write(descriptor, b"later", random.randrange(PAGE), path)
                os.close(descriptor)
            case 4:
                disk.rename(path, path.with_name(random.choice((f"r{step}", "one name"))))
            case 5:
                disk.remove(path)
            case 6:
                disk.write_new(folder / f"n{step}", random.randbytes(random.randrange(PAGE)))
            case 7:
                disk.rename(path, folder / "moved")
                disk.make_folder(root / "empty")
                disk.remove_folder(root / "empty")
            case 8:
                descriptor = disk.open_file(path)
                disk.truncate(descriptor, random.randrange(3 * PAGE), path)
                disk.write(descriptor, b"end", random.randrange(PAGE), path)
                disk.sync(descriptor, path, times=random.random() < 0.5)
                disk.set_mtime(path, 10**18 + step)
                os.close(descriptor)
            case 9:
                other = random.choice(files)
                source, target = disk.open_file(path), disk.open_file(other)
                disk.copy_range(source, target, 0, random.randrange(path.stat().st_size + 1), other)
                os.close(source)
                os.close(target)
        if random.random() < 0.3:
            disk.sync_folder(folder)


class TestRecord:
    @pytest.mark.parametrize("seed", range(20))
    def test_all_calls_done_again_give_the_same_files(self, tmp_path: Path, seed: int) -> None:
        root, base = tmp_path / "root", tmp_path / "base"
        random = Random(seed)
        random_work(root, random, range(10))
        copy_tree(root, base)
        with watched(root) as calls:
            random_work(root, random, range(10, 40))
        done = calls.done
        assert len(done) == calls.number
        rebuild(done, len(done), root, tmp_path / "again", "everything", seed, base)
        assert content(tmp_path / "again") == content(root)
        rebuild(done, 0, root, tmp_path / "before", "everything", seed, base)
        assert content(tmp_path / "before") == content(base)

    @pytest.mark.parametrize("at_once", [False, True])
    def test_a_synced_tree_is_the_same_in_every_mode(self, tmp_path: Path, at_once: bool) -> None:
        root = tmp_path / "root"
        with watched(root) as calls:
            random_work(root, Random(1), range(30))
            if not (at_once and disk.sync_all(root)):
                for path in map(Path, numbered(root)):
                    descriptor = disk.open_file(path)
                    disk.sync(descriptor, path)
                    os.close(descriptor)
                for folder in (tmp_path, root, *(path for path in root.rglob("*") if path.is_dir())):
                    disk.sync_folder(folder)
        for mode in MODES:
            rebuild(calls.done, len(calls.done), root, tmp_path / mode, mode, 0)
            assert content(tmp_path / mode) == content(root)


class TestLosses:
    """One file: 'old' is synced, 'new' is written over it and is not."""

    @pytest.fixture
    def calls(self, tmp_path: Path) -> Calls:
        root = tmp_path / "root"
        with watched(root) as calls:
            disk.make_folder(root)
            disk.sync_folder(tmp_path)
            path = root / "file"
            descriptor = disk.create_file(path, 4 * PAGE)
            disk.write(descriptor, b"old" * PAGE, 0, path)
            disk.sync(descriptor, path)
            disk.sync_folder(root)
            disk.write(descriptor, b"new" * PAGE, 0, path)
            disk.write_new(root / "other", b"1")
            os.close(descriptor)
        return calls

    def states(self, calls: Calls, tmp_path: Path, mode: str, seeds: int = 30) -> set[bytes | None]:
        found: set[bytes | None] = set()
        for seed in range(seeds):
            target = tmp_path / f"{mode}{seed}"
            rebuild(calls.done, len(calls.done), tmp_path / "root", target, mode, seed)
            found.add((target / "file").read_bytes())
            other = target / "other"
            assert not other.exists() or other.read_bytes() == b"1"
            found.add(b"other" if other.exists() else None)
        return found

    def test_modes(self, calls: Calls, tmp_path: Path) -> None:
        old, new = b"old" * PAGE + bytes(PAGE), b"new" * PAGE + bytes(PAGE)
        assert self.states(calls, tmp_path, "nothing") == {old, None}
        assert self.states(calls, tmp_path, "names") == {old, b"other"}
        assert self.states(calls, tmp_path, "bytes") == {new, None}
        assert self.states(calls, tmp_path, "one lost") >= {old, new, None, b"other"}
        assert self.states(calls, tmp_path, "one kept") >= {old, new, None, b"other"}
        assert self.states(calls, tmp_path, "everything") == {new, b"other"}

    def test_pages_and_sectors_are_torn(self, calls: Calls, tmp_path: Path) -> None:
        old, new = b"old" * PAGE + bytes(PAGE), b"new" * PAGE + bytes(PAGE)
        found = self.states(calls, tmp_path, "random") - {None, b"other"}
        assert len(found) > 10
        for data in found:
            for at in range(0, len(data), 512):
                assert data[at : at + 512] in (old[at : at + 512], new[at : at + 512])
        pages = [[data[at : at + PAGE] in (old[at : at + PAGE], new[at : at + PAGE])
                  for at in range(0, 3 * PAGE, PAGE)] for data in found]  # fmt: skip
        assert any(all(whole) for whole in pages)
        assert any(not all(whole) for whole in pages)


@pytest.mark.parametrize("how", HOWS)
def test_a_process_ends_at_a_call(tmp_path: Path, how: str) -> None:
    """What the calls before have done is there, and of this one what `how` says."""
    expected = {
        "before": [{}, {}, {"file": bytes(4)}, {"file": b"1234"}],
        "half": [{}, {"file": b""}, {"file": b"12\0\0"}, {"file": b"1234"}],
        "after": [{}, {"file": bytes(4)}, {"file": b"1234"}, {"new": b"1234"}],
    }[how]
    for number, wanted in enumerate(expected, 1):
        root = tmp_path / str(number)
        child = os.fork()
        if child == 0:
            with watched(root, stop=Stop(number, how)):
                disk.make_folder(root)
                descriptor = disk.create_file(root / "file", 4)
                disk.write(descriptor, b"1234", 0, root / "file")
                disk.rename(root / "file", root / "new")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
        assert root.exists() == ((number, how) not in ((1, "before"), (1, "half")))
        assert {path.name: path.read_bytes() for path in root.glob("*")} == wanted
