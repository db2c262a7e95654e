"""The small files about a store's state: `abort` while it is open, `checkpoint` for the next start.

Source: DefaultMessageStore#createTempFile, #shutdown, StoreCheckpoint#flush; spec 01 sections 7 and 8.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rmqtool.command_line import on_store
from rmqtool.errors import UnreadableError, UnwritableError
from rmqtool.formats import checkpoint as checkpoint_format
from rmqtool.formats.checkpoint import Checkpoint
from rmqtool.formats.markers import encode_abort
from rmqtool.storage import durable as disk
from rmqtool.storage.open_files import head_of
from rmqtool.storage.profile import Profile


class StateFiles:
    """`abort` and `checkpoint` of a store whose lock is held."""

    def __init__(self, root: Path, profile: Profile) -> None:
        self._root = root
        self._profile = profile
        self._abort = root / "abort"
        self._path = root / "checkpoint"
        data = head_of(self._path, checkpoint_format.FILE_SIZE) if self._path.exists() else b""
        size = checkpoint_format.CHECKPOINT.size
        self.checkpoint = checkpoint_format.decode(data.ljust(size, b"\0")) if data else Checkpoint()

    def mark_open(self) -> None:
        """Make `abort`: from here on a start finds the store not cleanly closed. Raises UnwritableError."""
        pid = os.getpid() if self._profile.abort_holds_pid else None
        backup = self._root / "abort.bak"
        if pid is not None and not backup.exists():
            disk.write_new(backup, b"")
        disk.write_new(self._abort, encode_abort(pid))
        disk.sync_folder(self._root)

    def mark_closed(self) -> None:
        """Delete `abort`: everything is on the device. Raises UnwritableError."""
        disk.remove(self._abort)
        disk.sync_folder(self._root)

    def save_checkpoint(self, physic: int, logics: int, index: int) -> None:
        """Write the checkpoint. Times are ms; one that is older than what is known changes nothing.

        Args:
            physic: store time of the newest record on the device; 0: none.
            logics: store time of the newest record whose units are on the device; 0: none.
            index: end time of the newest full index file on the device; 0: none.

        Raises:
            UnwritableError: it cannot be written.
        """
        before = self.checkpoint
        self.checkpoint = replace(
            before,
            physic_msg_timestamp=physic or before.physic_msg_timestamp,
            logics_msg_timestamp=logics or before.logics_msg_timestamp,
            index_msg_timestamp=max(index, before.index_msg_timestamp),
        )
        data = checkpoint_format.encode(self.checkpoint, self._profile.checkpoint_fields)
        if not self._path.exists() or self._path.stat().st_size != len(data):
            disk.remove(self._path)  # a loss of power has left its name only
            disk.write_new(self._path, data)
            disk.sync_folder(self._root)
            return
        descriptor = disk.open_file(self._path)
        try:
            # A 4.x broker leaves the last two fields as it finds them.
            times = data[: 8 * self._profile.checkpoint_fields]
            # The same times again would change the file's time: a repair could no longer be undone.
            if os.pread(descriptor, len(times), 0) != times:
                disk.write(descriptor, times, 0, self._path)
            disk.sync(descriptor, self._path)
        finally:
            os.close(descriptor)


@contextmanager
def hint_unclean(root: Path) -> Iterator[None]:
    """Add a hint on recovery to an error of the system that leaves the store open: `abort` exists."""
    try:
        yield
    except (UnwritableError, UnreadableError) as error:
        if error.hint is None and (root / "abort").exists():
            error.hint = f"the store is left as after a crash: {on_store(root, 'recover')}"
        raise


@contextmanager
def hint_begun(root: Path) -> Iterator[None]:
    """Add a hint on cleaning up to an UnwritableError that leaves a new store without a log file."""
    try:
        yield
    except UnwritableError as error:
        if error.hint is None and root.is_dir() and any(root.iterdir()):
            error.hint = begun(root)
        raise


def hint_on_store(root: Path) -> str:
    """Return the hint on a folder that a new store cannot be made in because it is a store."""
    left = [path for path in root.rglob("*") if not path.is_dir() and path.suffix != ".tmp"]
    if all(path.name in ("lock", "abort") for path in left):
        return begun(root)
    return "omit --create to add messages to it, or name a new folder"


def begun(root: Path) -> str:
    """Return the hint on a new store that has no message yet."""
    return f"a store was begun, with nothing in it: delete {root} and run it again"
