"""Items that another thread makes in advance."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.programs import PATIENCE_S, started, surroundings, until

# A signal that comes just before the main thread waits is noted, but wakes nobody. Here another thread is
# given it, which has the same effect at any moment.
WAITS = """
import signal, sys, threading, time
from pathlib import Path
from rmqtool.storage.prefetch import ahead

def items():
    yield 1
    seen = 0
    while seen < 20:
        frame = sys._current_frames()[threading.main_thread().ident]
        seen = seen + 1 if frame.f_code is threading.Condition.wait.__code__ else 0
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    Path(sys.argv[1]).touch()
    threading.Event().wait()

def stop(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGTERM, stop)
try:
    for item in ahead(items(), 1):
        print(item, flush=True)
except KeyboardInterrupt:
    sys.exit(7)
"""


def test_a_signal_that_wakes_nobody_ends_the_wait(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    command = [sys.executable, "-c", WAITS, str(sent)]
    with started(command, env=surroundings(), stdout=subprocess.PIPE) as program:
        until(sent.exists)
        assert program.wait(PATIENCE_S) == 7
