"""Asking who holds a store's lock."""

from __future__ import annotations

import fcntl
import struct
import sys
from pathlib import Path

import pytest

from rmqtool.read.store import Store
from rmqtool.storage.lock import LockState, holder
from tests.support.build_store import (
    two_queues,
    write_sparse,
    write_store,
)
from tests.support.programs import started
from tests.support.trees import unchanged

HOLD = """
import fcntl, struct, sys
file = open(sys.argv[1], "r+b")
if sys.argv[2] == "posix":
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
else:
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("@hhqqi", fcntl.F_WRLCK, 0, 0, 1, 0))
print("held", flush=True)
sys.stdin.read()
"""


OFD = pytest.mark.skipif(sys.platform != "linux", reason="the numbers and structure are those of Linux")


class TestLock:
    def test_free(self, tmp_path: Path) -> None:
        path = write_sparse(tmp_path / "lock", 4)
        with unchanged(tmp_path):
            assert holder(path) == holder(None) == holder(tmp_path / "none") == LockState("free")

    @pytest.mark.parametrize("kind", ["posix", pytest.param("ofd", marks=OFD)])
    def test_held_by_another_process(self, tmp_path: Path, kind: str) -> None:
        write_store(tmp_path, two_queues(3))
        path = write_sparse(tmp_path / "lock", 4)
        command = [sys.executable, "-c", HOLD, str(path), kind]
        with started(command, stderr=None) as process:
            assert process.stdout is not None and process.stdout.readline() == b"held\n"
            with unchanged(tmp_path), Store.open(tmp_path) as store:
                assert store.live
                assert (store.holder.pid, store.holder.reason) == (process.pid, "")
                assert len(list(store.messages())) == 3
            process.communicate()
        assert holder(path) == LockState("free")

    @OFD
    def test_asking_does_not_drop_the_lock_of_this_process(self, tmp_path: Path) -> None:
        path = write_sparse(tmp_path / "lock", 4)
        with path.open("r+b") as file:
            flock = struct.pack("@hhqqi", fcntl.F_WRLCK, 0, 0, 1, 0)
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, flock)
            assert holder(path).is_held
            assert holder(path).is_held

    def test_a_lock_that_cannot_be_asked_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write_sparse(tmp_path / "lock", 4)

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("rmqtool.storage.lock.fcntl.fcntl", refuse)
        reason = "the lock cannot be asked for: Permission denied"
        assert holder(path) == LockState("unknown", None, reason, "Permission denied")

    def test_on_a_network_file_system(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write_sparse(tmp_path / "lock", 4)
        monkeypatch.setattr("rmqtool.storage.lock._network_file_system", lambda device: "nfs4")
        assert holder(path).state == "unknown" and "nfs4" in holder(path).reason
