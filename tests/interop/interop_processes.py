"""No program of the lab outlives the test that started it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.interop.brokers import free_port, write_settings
from tests.interop.processes import wait_until

_CHILD = """
import sys, time
from pathlib import Path
from tests.interop.processes import JavaProcess, Program
home, how = Path(sys.argv[1]), sys.argv[2]
server = JavaProcess("5.4.0", ["Launch", "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", sys.argv[3]],
                     home=home / "server")
program = Program("5.4.0", "StoreLibrary", home=home / "library")
while "boot success" not in server.log_text():
    time.sleep(0.05)
print(server.process.pid, program.process.pid, flush=True)
if how == "error":
    raise RuntimeError("the test fails")
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    """Whether there is a process of that number that has not ended; one that init has not reaped yet has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize("how", ["error", "SIGINT", "SIGTERM", "SIGKILL"])
def test_programs_end_with_the_test(how: str, tmp_path: Path) -> None:
    """It fails, Ctrl-C is pressed, it is told to stop, it is killed: a stock main and one of ours end."""
    settings = tmp_path / "ns.conf"
    write_settings(settings, {"listenPort": str(free_port()), "bindAddress": "127.0.0.1"})
    line = [sys.executable, "-c", _CHILD, str(tmp_path), how, str(settings)]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        pids = [int(text) for text in child.stdout.readline().split()]
        assert len(pids) == 2
        if how != "error":
            assert all(is_running(pid) for pid in pids)
            os.kill(child.pid, signal.Signals[how])
        child.wait()
    wait_until(lambda: not any(is_running(pid) for pid in pids), f"{pids} have ended")
