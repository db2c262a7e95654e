"""Running a piece of a test as an ordinary user, which root is not."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.support.confined import load_everything

NOBODY = 65534


def open_to_all(folder: Path) -> None:
    """Let every user enter `folder` and the folders above it: pytest closes its own to other users."""
    for path in (folder, *folder.parents):
        mode = path.stat().st_mode
        if path.stat().st_uid == os.getuid() and not mode & 0o001:
            path.chmod(mode | 0o055 if path == folder else mode | 0o011)


def as_nobody(action: Callable[[], None]) -> None:
    """Run `action` in a child that is an ordinary user; an exception there fails the test.

    Everything is loaded before: the interpreter may lie in a folder that is closed to that user.
    """
    load_everything()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
