"""The program `rmqtool`, and `python -m rmqtool`: an interrupt ends it quietly from the first moment on.

Small on purpose: loading the command line takes time, and signals must be handled before that.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType

_COLLECTED_OBJECTS = 50_000  # so many new objects, and the youngest are looked through
_EXIT_INTERRUPTED = 130  # errors.EXIT_INTERRUPTED, before anything is loaded


def _leave(number: int, frame: FrameType | None) -> None:
    # No exception: an import could swallow or show it. Nothing is written yet,
    # or all of it is: while a command runs, `cli.main` has its own handlers.
    os._exit(_EXIT_INTERRUPTED)


def main() -> int:
    """Runs the command line of this process; returns the exit code."""
    # Loading modules makes many objects and no garbage; a collection for every 700 objects takes time.
    gc.set_threshold(_COLLECTED_OBJECTS)
    # numpy's OpenBLAS would start a thread per core when it is loaded. No command multiplies matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # SIGHUP is not everywhere
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _leave)
    try:
        from rmqtool.cli import main as run

        return run()
    except KeyboardInterrupt:  # a second interrupt while the first is handled
        return _EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
