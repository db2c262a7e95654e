"""What tests start has the default of every signal, whatever the run inherited, and ends with its test."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.support.programs import PATIENCE_S, SIGNALS, started, until

ASKED = """
import signal, sys
of_python = {signal.SIGPIPE, signal.SIGXFSZ}
ignored = [n for n in signal.Signals if n not in of_python and signal.getsignal(n) == signal.SIG_IGN]
print(sorted(ignored), signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True)
"""


@pytest.mark.parametrize("ignored", [(), (signal.SIGHUP, signal.SIGINT)])
def test_a_program_ignores_what_it_is_asked_to(ignored: tuple[signal.Signals, ...]) -> None:
    """Also where this process ignores every signal, as below `nohup`."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS if number != signal.SIGCHLD}
    try:
        with started([sys.executable, "-c", ASKED], ignored=ignored) as program:
            out, _ = program.communicate(timeout=PATIENCE_S)
        assert all(signal.getsignal(number) == signal.SIG_IGN for number in before)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert out.decode().strip() == f"{sorted(ignored)} set()"


def test_nothing_is_left_when_the_test_fails() -> None:
    """Neither the program nor what that has started, though both ignore what can be ignored."""
    code = "trap '' HUP INT TERM; sleep 3600 & echo $!; wait; sleep 3600"
    with pytest.raises(ZeroDivisionError), started(["/bin/sh", "-c", code]) as program:
        assert program.stdout is not None
        child = int(program.stdout.readline())
        raise ZeroDivisionError
    assert program.returncode == -signal.SIGKILL

    def has_ended() -> bool:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return True
        state = Path(f"/proc/{child}/stat")  # a zombie that nobody has waited for yet has ended too
        return state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z"

    until(has_ended)


def test_a_state_that_does_not_come_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.programs.PATIENCE_S", 0.01)
    with pytest.raises(AssertionError, match="no such state"):
        until(lambda: False, "no such state")
    came = threading.Event()
    came.set()
    until(came.is_set)


def test_the_run_has_forgotten_what_it_inherited() -> None:
    """Signals that the shell ignores or blocks, its umask, variables that change what programs say."""
    code = (
        "import os, signal, sys; sys.path.insert(0, '.'); import tests.conftest;"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler,"
        "signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,"
        "signal.getsignal(signal.SIGHUP) == signal.SIG_IGN,"
        "signal.pthread_sigmask(signal.SIG_BLOCK, []), os.umask(0),"
        "[os.environ.get(name) for name in ('RMQTOOL_STORE', 'PYTHONUTF8', 'https_proxy', 'LC_TIME', 'TZ')])"
    )
    shell = f"trap '' HUP INT TERM; umask 077; exec '{sys.executable}' -c \"$0\""
    env = {**os.environ, "RMQTOOL_STORE": "x", "PYTHONUTF8": "0", "https_proxy": "http://127.0.0.1:1",
           "LC_TIME": "de_DE", "TZ": "Asia/Shanghai"}  # fmt: skip
    with started(["/bin/sh", "-c", shell, code], env=env) as program:
        out, err = program.communicate(timeout=PATIENCE_S)
    assert out.decode().strip() == "True True True set() 18 [None, None, None, None, 'UTC']", err
