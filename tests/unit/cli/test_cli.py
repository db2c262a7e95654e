"""The one error path: what a user sees, and the exit code, for every way a command can end."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import re
import runpy
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, cast

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from rmqtool import __version__, cli
from rmqtool.commands import COMMANDS, GROUPS, guide, interrupts, pages
from rmqtool.commands.interrupts import entering, signals_interrupt
from rmqtool.commands.options import parse_size
from rmqtool.errors import EXIT_INPUT, EXIT_OK, EXIT_USAGE, InputError
from rmqtool.sizes import SIZE_MAX
from tests.support.confined import Ended, confined
from tests.support.programs import PATIENCE_S, is_asleep, started, surroundings, until
from tests.support.stores import Library
from tests.support.sweep import paired

# One command that ends in every way there is; it goes through the same app, options and output.
TRIAL = '''
from __future__ import annotations
import signal, sys, time, types
import rmqtool.cli
from typing import Annotated
from rmqtool.commands import options
from rmqtool.commands.groups import Only, with_groups
from rmqtool.errors import FormatError, RefusedError
from rmqtool.output import Output

@with_groups
def trial(
    *,
    store: Annotated[options.StoreOptions, Only("store")],
    selected: Annotated[options.SelectionOptions, Only("queue since limit")],
    reading: Annotated[options.ScanOptions, Only("io_limit jobs")],
    shown: Annotated[options.RowOutput, Only("fields")],
) -> int:
    """A trial."""
    store, limit = store.store, selected.limit
    selected.selection(None)
    def rows():
        for n in range(3 if limit is None else limit):
            yield {"n": n, "jobs": reading.jobs, "io_limit": reading.io_limit}
        if store.name == "bug":
            raise KeyError("x\\x1b")
        if store.name == "damaged":
            raise FormatError("not a record", path="a\\nb", physical_offset=5, hint="look there")
        if store.name == "refused":
            raise RefusedError("no")
        if store.name == "missing":
            open("/nonexistent/file")
        if store.name == "deaf":  # the first signal is lost, as one just before a system call that waits
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            signal.sigwait([signal.SIGINT])
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        if store.name in ("slow", "deaf"):
            time.sleep(3600)
        if store.name == "slow-module":  # dataclasses and named tuples are made of text
            exec("time.sleep(3600)")
    shown.writer().write_rows(rows(), ("n", "jobs", "io_limit"))
    return 1 if store.name == "findings" else 0

module = types.ModuleType("rmqtool.commands.trial")
module.trial = trial
sys.modules[module.__name__] = module
rmqtool.cli.COMMANDS = ("trial",)
sys.exit(rmqtool.cli.main())
'''


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The command line of a program with the one command `trial`."""
    path = tmp_path_factory.mktemp("cli") / "trial.py"
    path.write_text(TRIAL)
    yield [sys.executable, str(path)]


def run(program: list[str], *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the program; nothing on its standard input."""
    return subprocess.run(
        [*program, *arguments],
        env=surroundings(**environment),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def run_forked(program: list[str], *arguments: str) -> Ended:
    """Runs the program in a child of this process, where all is loaded."""

    def action() -> int:
        sys.argv = [*program[1:], *arguments]
        try:
            runpy.run_path(program[1], run_name="__main__")
        except SystemExit as ended:
            return cast("int", ended.code)
        raise AssertionError("the program ends with sys.exit")

    return confined(action)


@pytest.mark.usefixtures("json_lines")
def test_result_of_the_command_is_the_exit_code(program: list[str]) -> None:
    """0 and 1 alike print everything and say nothing on stderr."""
    for store, code in (("sound", 0), ("findings", 1)):
        result = run(program, "trial", store)
        assert (result.returncode, result.stderr, result.stdout.count("\n")) == (code, "", 3)


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["trial", "damaged"], [r"rmqtool: not a record: a\nb, offset 5", "  look there"]),
        (["trial", "refused"], ["rmqtool: no"]),
        (["trial", "missing"], ["rmqtool: No such file or directory: /nonexistent/file"]),
        (["nope"], ["rmqtool: No such command 'nope'.", "  see 'rmqtool --help'"]),
        (["repair"], ["rmqtool: No such command 'repair'.", "  rmqtool recover STORE"]),
        (["undo"], ["rmqtool: No such command 'undo'.", "  rmqtool recover STORE --undo BACKUP"]),
        (["grep"], ["rmqtool: No such command 'grep'.", "  rmqtool dump STORE --grep TEXT"]),
        (["restore"], ["rmqtool: No such command 'restore'.", "  rmqtool recover STORE --undo BACKUP"]),
        (["delete"], ["rmqtool: No such command 'delete'.", "  rmqtool expire STORE"]),
        (["offsets"], ["rmqtool: No such command 'offsets'.", "  rmqtool stats STORE --by group"]),
        (["topics"], ["rmqtool: No such command 'topics'.", "  rmqtool info STORE"]),
        (["trial"], ["rmqtool: Missing argument 'STORE'.", "  see 'rmqtool trial --help'"]),
        (["trial", "x", "--fields", "m"], ["rmqtool: unknown field: 'm'", "  fields are: n, jobs, io_limit"]),
    ],
)
def test_error_is_three_lines_at_most(program: list[str], arguments: list[str], lines: list[str]) -> None:
    """What and where in one line, and what to do; never a traceback."""
    assert run_forked(program, *arguments).text.splitlines() == lines


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("start crash", "rmqtool recover STORE "),
        ("broken", "rmqtool doctor STORE "),
        ("lost missing", "for a message: rmqtool lookup STORE KEY --trace; for a store: "),
        ("lag", "rmqtool stats STORE --by group"),
        ("slow", "rmqtool doctor STORE; for slow consumers: rmqtool stats STORE --by group"),
        ("full space", "rmqtool expire STORE "),
    ],
)
def test_a_word_for_a_trouble_leads_to_a_command(
    words: str, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who is frightened types what has happened."""
    for word in words.split():
        assert cli.main([word]) == 2
        said, hint = capfd.readouterr().err.splitlines()
        assert said == f"rmqtool: No such command '{word}'."
        assert hint.startswith(f"  {line}")
        assert cli.main(["help", word]) == 2
        assert capfd.readouterr().err.splitlines()[1] == hint


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        (["tail", "s", "-f", "%t %q"], "Got unexpected extra argument(s) (%t %q)",
         "it takes one STORE; -f is --follow here: --format-string FORMAT is the format of dump -f FORMAT"),
        (["dump", "s", "--tail", "1"], "No such option: --tail",
         "rmqtool tail STORE --last N shows the newest messages"),
        (["dump", "s", "--max", "1"], "No such option: --max", "--limit N is its name here"),
        (["verify", "s", "--max", "1"], "No such option: --max", "--limit N is its name here"),
    ],
)  # fmt: skip
def test_an_option_of_another_command_leads_to_the_one_here(
    arguments: list[str], said: str, hint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The hint replaces the options that Typer finds similar."""
    assert cli.main(arguments) == 2
    assert capfd.readouterr().err.splitlines() == [f"rmqtool: {said}", f"  {hint}"]


def test_a_number_out_of_range_says_the_limit(capfd: pytest.CaptureFixture[str]) -> None:
    """In a sentence, for every option of every command that has a range."""
    group: Any = typer.main.get_command(cli.build_app())
    said: dict[tuple[str, str, int], str] = {}
    for name, command in group.commands.items():
        for parameter in command.params:
            least, most = (getattr(parameter.type, bound, None) for bound in ("min", "max"))
            option = max(parameter.opts, key=len)
            for limit, wrong in ((least, -1), (most, 1)):
                if limit is None:
                    continue
                assert cli.main([name, f"{option}={limit + wrong}"]) == EXIT_USAGE
                said[name, option, wrong], hint = capfd.readouterr().err.splitlines()
                assert hint == f"  see 'rmqtool {name} --help'"
                extreme = "least" if wrong < 0 else "most"
                sentence = rf"rmqtool: {option} must be at {extreme} {limit}( seconds?| hours)?"
                assert re.fullmatch(sentence, said[name, option, wrong])
    assert said["doctor", "--watch", -1] == "rmqtool: --watch must be at least 1 second"
    assert said["expire", "--keep-hours", -1] == "rmqtool: --keep-hours must be at least 0 hours"
    assert said["append", "--queue", 1] == "rmqtool: --queue must be at most 65535"


@pytest.mark.parametrize("name", sorted({*GROUPS["Repair and clean up"], "deliver"}))
def test_a_dry_run_is_the_command_without_apply(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Who looks for --dry-run learns that the command changes nothing without --apply."""
    said = "  without --apply the command shows what it would do, and changes nothing"
    assert cli.main([name.replace("_", "-"), "store", "--dry-run"]) == 2
    assert capfd.readouterr().err.splitlines() == ["rmqtool: No such option: --dry-run", said]


@pytest.mark.parametrize(
    ("message", "path", "offset", "line"),
    [
        ("no such file or folder", "s", None, "no such file or folder: s"),
        ("the file has become shorter", "s/a", 5, "the file has become shorter: s/a, offset 5"),
        ("is already a store", "s", None, "s is already a store"),
        ("is not empty: a new store needs a new folder", "s", None,
         "s is not empty: a new store needs a new folder"),
        ("cannot be read", "s/a", 5, "s/a, offset 5, cannot be read"),
        ("cannot read: Permission denied", "s/a", None, "cannot read s/a: Permission denied"),
        ("cannot read the commit log", "s/a", 5, "cannot read the commit log: s/a, offset 5"),
        ("cannot list the folder: Permission denied", "s", None,
         "cannot list the folder s: Permission denied"),
        ("s has changed", "s", None, "s has changed"),
        ("no record ends here", None, 5, "no record ends here: offset 5"),
        ("refused", None, None, "refused"),
    ],
)  # fmt: skip
def test_error_has_its_place_in_one_line(message: str, path: str, offset: int | None, line: str) -> None:
    """A line of a log that is found by its text says which file it is about."""
    assert InputError(message, path=path, physical_offset=offset).in_one_line == line


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["trial", "damaged"], 3),
        (["trial", "missing"], 3),
        (["trial", "refused"], 4),
        (["trial", "bug"], 70),
        ([], 0),
        (["nope"], 2),
        (["trial", "x", "--nope"], 2),
        (["trial", "x", "--since", "soon"], 2),
        (["trial", "x", "--queue", "3-1"], 2),
        (["trial", "x", "--queue", "0-99999"], 2),
        (["trial", "x", "--io-limit", "5Z"], 2),
        (["trial", "x", "--io-limit", "9" * 400], 2),
        (["trial", "x", "--io-limit", "0"], 2),
        (["trial", "x", "--io-limit", "-5"], 2),
        (["trial", "x", "--limit", "-1"], 2),
        (["trial", "x", "--fields", "m"], 2),
        (["--help"], 0),
        (["trial", "--help"], 0),
        (["--version"], 0),
    ],
)
def test_every_ending_has_its_exit_code(program: list[str], arguments: list[str], code: int) -> None:
    """The table of design and manual."""
    result = run_forked(program, *arguments)
    assert result.code == code
    assert (result.stderr == b"") == (code == 0)
    assert "Traceback" not in result.text


@pytest.mark.usefixtures("json_lines")
def test_rows_before_an_error_are_printed(program: list[str]) -> None:
    """What could be read was reported."""
    assert run(program, "trial", "damaged").stdout.count("\n") == 3


def test_bug_says_so_in_three_lines(program: list[str]) -> None:
    """What happened, which versions, what to do; no control character."""
    lines = run(program, "trial", "bug").stderr.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(r"rmqtool: this is a bug: KeyError: 'x\x1b' (trial.py:")
    assert __version__ in lines[1]
    assert "--debug" in lines[2]


@pytest.mark.parametrize(
    "error", [MemoryError(), ImportError("lib.so: failed to map segment from shared object")]
)
def test_where_there_is_no_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """A service or container may limit it: an error that names the limit, not a bug."""

    def refuse(*arguments: object) -> int:
        raise error

    monkeypatch.setattr(cli, "_run", refuse)
    assert cli.main(["info"]) == EXIT_INPUT
    assert "ulimit -v" in capsys.readouterr().err


def test_where_no_thread_can_begin(
    cases: Library, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service or container may limit them: an error that names the limit, not a bug."""

    def refuse(*arguments: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "_start_new_thread", refuse)
    assert cli.main(["recover", str(cases.path("ok_540_small_ipv6"))]) == EXIT_INPUT
    assert "no thread can be started" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--debug", "trial", "damaged"], ["trial", "damaged", "--debug"]])
def test_debug_shows_the_traceback(program: list[str], arguments: list[str]) -> None:
    """Wherever it stands; the exit code stays."""
    result = run(program, *arguments)
    assert "Traceback (most recent call last)" in result.stderr
    assert result.returncode == 3


def test_store_of_the_environment_is_named(program: list[str]) -> None:
    """On stderr, and only when it is used."""
    result = run(program, "trial", RMQTOOL_STORE="/data/store")
    assert result.stderr == "rmqtool: using the store of RMQTOOL_STORE: /data/store\n"
    assert run(program, "trial", "x", RMQTOOL_STORE="/data/store").stderr == ""


@pytest.mark.usefixtures("json_lines")
def test_options_are_read(program: list[str]) -> None:
    """Sizes, and jobs 0 as one per core."""
    result = run(program, "trial", "x", "--io-limit", "1.5M", "--jobs", "3", "--limit", "1")
    assert result.stdout == '{"n":0,"jobs":3,"io_limit":1572864}\n'
    assert '"jobs":0' not in run(program, "trial", "x").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_the_store_says_what_holds(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands that change stores refuse URLs, archives, single files and the store of the environment."""
    group: Any = typer.main.get_command(cli.build_app([name]))
    parameters = {each.name: each for each in group.commands[name.replace("_", "-")].params}
    store = parameters.get("store")
    if store is None:
        return
    changes = name in ("append", "receive") or "apply" in parameters
    assert changes == ("RMQTOOL_STORE is ignored" in store.help)
    assert ("URL" not in store.help) == (changes or name == "warm")
    assert store.show_envvar != changes
    if changes:
        first = ["10.0.0.1:10911"] if name == "receive" else []
        assert cli.main([name.replace("_", "-"), *first, "s3://bucket/store"]) == 2
        assert "needs a folder on this machine" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["trial", "x", "--limit", "200000"], ["--help"], ["trial", "--help"]])
def test_reader_that_goes_away_is_no_error(program: list[str], arguments: list[str]) -> None:
    """`| head`: exit code 0, nothing on stderr."""
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [*program, *arguments],
        env=surroundings(),
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.usefixtures("json_lines")
@pytest.mark.parametrize("store", ["slow", "deaf"])
def test_a_command_ends_with_its_reader_while_no_row_comes(program: list[str], store: str) -> None:
    """`| head` ends a scan that may not find another row for hours."""
    with started([*program, "trial", store, "--limit", "400"], bufsize=0) as process:
        assert process.stdout is not None and process.stderr is not None
        assert json.loads(process.stdout.readline())["n"] == 0
        process.stdout.close()
        assert (process.wait(PATIENCE_S), process.stderr.read()) == (0, b"")


def test_full_disk_under_stdout_is_an_error(program: list[str]) -> None:
    """Lost output is never exit code 0."""
    if not Path("/dev/full").exists():
        return
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [*program, "trial", "x"],
            env=surroundings(),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert result.returncode == 3
    told = result.stderr.decode().splitlines()  # without a name it would read as a store's disk
    assert told == [f"rmqtool: cannot write standard output: {os.strerror(errno.ENOSPC)}"]


@pytest.mark.usefixtures("json_lines")
@pytest.mark.parametrize("store", ["slow", "slow-module"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt_prints_results_so_far(program: list[str], number: signal.Signals, store: str) -> None:
    """Rows that were found, one line on stderr, 130."""
    command = [*program, "trial", store, "--limit", "5000"]
    with started(command, bufsize=0) as process:  # communicate() forgets what readline() has read ahead
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(number)
        rest, errors = process.communicate(timeout=PATIENCE_S)
    rows = [json.loads(line)["n"] for line in (first + rest).splitlines()]
    assert rows == list(range(len(rows)))
    assert errors == b"rmqtool: interrupted; results so far were printed\n"
    assert process.returncode == 130


def test_signals_interrupt_once_and_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one at once is the same wish; ignored ones stay so; the old handlers come back."""
    monkeypatch.setattr(interrupts, "_ONE_INTERRUPT_SECONDS", 3600)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with signals_interrupt():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    finally:
        signal.signal(signal.SIGHUP, hangup)


class AsksFor:
    """A lock that has SIGINT come at the moment when it is taken."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.acquire, self.release = self.lock.acquire, self.lock.release

    def __enter__(self) -> bool:
        taken = self.lock.__enter__()
        signal.raise_signal(signal.SIGINT)
        return taken

    def __exit__(self, *error: object) -> None:
        self.lock.release()


def test_an_interrupt_leaves_no_lock_behind() -> None:
    """Between the lock that is taken and the `with` that gives it back no exception is raised, but soon."""
    lock = AsksFor()
    condition = threading.Condition(cast("threading.Lock", lock))
    with signals_interrupt(), pytest.raises(KeyboardInterrupt), condition:
        assert lock.lock.locked()
        time.sleep(3600)
    assert not lock.lock.locked()


class Resource:
    """Something that is closed, or not; a signal comes while it is made."""

    def __init__(self, signals: int) -> None:
        for _ in range(signals):
            signal.raise_signal(signal.SIGINT)
        self.is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.is_closed = True


def test_an_interrupt_waits_until_what_is_made_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Resource] = []

    def make(signals: int) -> Resource:
        made.append(Resource(signals))
        return made[-1]

    monkeypatch.setattr(interrupts, "_ONE_INTERRUPT_SECONDS", 0)
    with signals_interrupt():
        with entering(lambda: make(0)):
            pass
        with pytest.raises(KeyboardInterrupt), entering(lambda: make(1)):
            pytest.fail("the interrupt waits no longer than until it is made")
        assert [each.is_closed for each in made] == [True, True]
        with pytest.raises(KeyboardInterrupt), entering(lambda: make(2)):
            pass
        assert len(made) == 2, "the second one does not wait"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_main_runs_in_any_thread(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the main thread can have handlers; the others do without."""
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(cli.main(["--version"])))
    thread.start()
    thread.join()
    assert (codes, capsys.readouterr().out) == ([0], f"rmqtool {__version__}\n")


# A program that ends while a thread works that nobody waits for.
LEFT_BEHIND = """
import atexit, os, sys, threading, time
from rmqtool import cli
def audit(event, arguments, write=os.write):
    if event == "cpython.PyInterpreterState_Clear":
        write(1, b"end of the interpreter\\n")
sys.addaudithook(audit)
atexit.register(print, "exit functions", flush=True)
if sys.argv.pop() == "left":
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
sys.exit(cli.main())
"""


@pytest.mark.parametrize(("left", "end"), [("left", b""), ("none", b"end of the interpreter\n")])
def test_a_thread_that_is_left_behind_does_not_see_the_end_of_the_interpreter(left: str, end: bytes) -> None:
    """In compiled code that is a crash. What is registered for the exit is called."""
    result = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND, "--version", left], env=surroundings(),
        capture_output=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert result.stdout == f"rmqtool {__version__}\nexit functions\n".encode() + end
    assert (result.returncode, result.stderr) == (0, b"")


# The program, with an import of the command line that tells when it is under way and takes long.
SLOW_START = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            print("loading", flush=True)
            time.sleep(3600)
sys.meta_path.insert(0, Slow())
from rmqtool.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", ["rmqtool.cli", "typer", "rmqtool.commands.info"])
def test_interrupt_while_starting_is_quiet(module: str, number: signal.Signals) -> None:
    """Before there is a command that could be interrupted: 130, no traceback."""
    command = [sys.executable, "-c", f"MODULE = {module!r}{SLOW_START}", "info", "--help"]
    with started(command) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"loading\n"
        process.send_signal(number)
        rest, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, rest) == (130, b"")
    assert b"Traceback" not in errors


# `verify` that tells when a thread of its pool begins to wait for the rate, which is low.
SLOW_READING = """
import sys, threading, time
from rmqtool import cli
from rmqtool.storage.source import RateLimiter
take = RateLimiter.take
def telling(self, count):
    in_pool = threading.current_thread() is not threading.main_thread()
    if in_pool and self._free_at > time.monotonic() + 60:
        sys.stderr.write("waiting\\n")  # in one piece
    take(self, count)
RateLimiter.take = telling
sys.exit(cli.main(["verify", *sys.argv[1:], "--pass", "log", "--io-limit", "1K", "--quiet"]))
"""


@pytest.mark.parametrize("jobs", ["1", "4"])
def test_interrupt_ends_the_waiting_for_the_rate(cases: Library, jobs: str) -> None:
    """With a quarter of an hour to wait, the program ends at once."""
    command = [sys.executable, "-c", SLOW_READING, cases.path("ok_540_clean"), "--jobs", jobs]
    with started(command, bufsize=0) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        # What comes just before the main thread waits is seen when it is done with waiting.
        until(lambda: is_asleep(process))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert first == b"waiting\n"
    assert set(errors.splitlines()) - {b"waiting"} == {b"rmqtool: interrupted; results so far were printed"}
    assert process.returncode == 130


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("ending", "stderr"),
    paired(
        [("damaged", 3), ("refused", 4), ("bug", 70), ("findings", 1)],
        ["closed", "gone", *(["full"] if Path("/dev/full").exists() else [])],
    ),
)
def test_stderr_that_takes_nothing_changes_nothing(
    program: list[str], stderr: str, ending: tuple[str, int]
) -> None:
    """A full disk, `2>&-` and a reader that went away: the same rows and exit code."""
    store, code = ending
    reading, writing = os.pipe()
    os.close(reading)
    redirection = {"full": "2>/dev/full", "closed": "2>&-", "gone": ""}[stderr]
    result = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", *program, "trial", store, "--debug"],
        env=surroundings(RMQTOOL_FORMAT="jsonl"),
        stdout=subprocess.PIPE,
        stderr=writing,
        check=False,
    )
    os.close(writing)
    assert (result.returncode, result.stdout.count(b"\n")) == (code, 3)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        (" 64k ", 65536),
        ("1.5GiB", 3 << 29),
        ("100MB", 100_000_000),
        ("0.7KB", 700),
        ("9223372036854775807", SIZE_MAX),
        ("9007199254740993", 9007199254740993),  # no float has this value
        ("0.001T", (1 << 40) // 1000),
    ],
)
def test_size_is_exact(text: str, size: int) -> None:
    """Integers all the way; the part of a byte is left out."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "0", "0.0001", "0K", "-1", "1e3", "9" * 400, "1." + "9" * 400, "9223372036854775808",
             "8388608T", "1\u212a", "1\u0131b", "\u0661", "inf", "nan", "1..5", ".5", "1 2"]
)  # fmt: skip
def test_size_that_is_none_is_a_usage_error(text: str) -> None:
    """Of no bytes, of too many, or of other letters: one short line."""
    with pytest.raises(typer.BadParameter) as caught:
        parse_size(text)
    assert len(str(caught.value)) < 150


@given(st.text(alphabet="0123456789.kKmMgGtTiIbB \u212a\u0131-", max_size=30) | st.text(max_size=8))
def test_any_size_is_bytes_or_a_usage_error(text: str) -> None:
    """Never another exception, never out of range."""
    try:
        assert 1 <= parse_size(text) <= SIZE_MAX
    except typer.BadParameter:
        return


def test_python_m_is_the_same_program() -> None:
    """`python -m rmqtool` works from a checkout."""
    result = run([sys.executable, "-m", "rmqtool"], "--version")
    assert result.stdout == f"rmqtool {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_options(program: list[str], shell: str) -> None:
    """What the completion script asks is answered without touching a store."""
    words = {
        "COMP_WORDS": "rmqtool trial --que",
        "COMP_CWORD": "2",
        "_TYPER_COMPLETE_ARGS": "rmqtool trial --que",
    }
    action = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    result = run(program, _RMQTOOL_COMPLETE=f"complete_{shell}", RMQTOOL_STORE="/x", **words, **action)
    assert "--queue" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize("arguments", [[], ["--debug"]])
def test_without_a_command_one_screen_leads_to_one(
    arguments: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Situations with their commands, every command in the group of its purpose, the topics of the manual."""
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(arguments) == EXIT_OK
    output, errors = capfd.readouterr()
    assert errors == ""
    lines = output.splitlines()
    assert len(lines) <= 23 and max(map(len, lines)) <= 80  # a line is left for the prompt
    assert "    The broker does not start    rmqtool recover STORE" in lines
    for title, names in GROUPS.items():
        row = next(line for line in lines if line.startswith(f"  {title}  "))
        assert row.removeprefix(f"  {title}").split() == [name.replace("_", "-") for name in names]
    assert " ".join(pages.TOPICS) in " ".join(output.split())


def test_help_of_the_program_shows_every_command(capfd: pytest.CaptureFixture[str]) -> None:
    """Situations with their commands, then every command once, in the group of its purpose."""
    assert cli.main(["--help"]) == EXIT_OK
    output, errors = capfd.readouterr()
    assert errors == ""
    assert "The broker does not start    rmqtool recover STORE" in output
    parts = re.split(r"^(\S.*)\n", output[output.index("\nLook\n") + 1 :], flags=re.MULTILINE)[1:]
    lists = [re.findall(r"^  ([a-z-]+)  ", text, re.MULTILINE) for text in parts[1::2]]
    shown = dict(zip(parts[::2], lists, strict=True))
    groups = {title: [name.replace("_", "-") for name in names] for title, names in GROUPS.items()}
    assert {title: shown.get(title) for title in groups} == groups
    assert all(f"help {topic} " in output for topic in pages.TOPICS)


@pytest.mark.parametrize("name", [name.replace("_", "-") for name in COMMANDS])
def test_help_of_a_command_leads_from_examples_to_details(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain text that fits 80 columns, whole sentences, every option once and in a section of its purpose."""
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main([name, "--help"]) == EXIT_OK
    output = capfd.readouterr().out
    assert "\x1b" not in output and "<=x" not in output
    commands = {line for _, line in guide.EXAMPLES[name]}
    metavars = [line for line in output.splitlines() if re.match("  -", line) and "|" in line]
    long_lines = [line for line in output.splitlines() if len(line) > 80]
    assert all(line.strip() in commands or line in metavars for line in long_lines)
    titles = re.findall(r"^(\S.*)$", output, re.MULTILINE)
    assert titles[1:3] == ["Usage", "Examples"]
    group: Any = typer.main.get_command(cli.build_app([name.replace("-", "_")]))
    options = output.partition("\nDetails\n")[0]
    for parameter in group.commands[name].params:
        if parameter.param_type_name == "option":
            long = max(parameter.opts, key=len)
            assert len(re.findall(rf"^  (?:-\w, )?{long}(?=[ ,\n])", options, re.MULTILINE)) == 1, long


@pytest.mark.parametrize("width", [60, 80, 100])
def test_tables_and_terms_of_a_page_fit_the_width(
    width: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipe too: a text stands beside the cells of its row, or below them; only literal lines stay."""
    monkeypatch.setenv("COLUMNS", str(width))
    assert cli.main(["help", "store"]) == EXIT_OK
    lines = capfd.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    start = next(number for number, line in enumerate(lines) if line.split()[3:4] == ["total_size"])
    cells, text = "       0     4  i32    total_size", "bytes of the whole record, this field included"
    assert lines[start].startswith(f"{cells}   ") == (width > 60) and lines[start].startswith(cells)
    assert (lines[start + 1] == f"          {text}") == (width == 60)
    assert cli.main(["help", "concepts"]) == EXIT_OK
    lines = capfd.readouterr().out.splitlines()
    term = "A message is deleted when it is consumed, or 72 hours after it was stored"
    assert (f"  {term}" in lines) == (width >= len(term) + 2) and term in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("name", sorted(guide.EXAMPLES.keys() - {"rmqtool"}))
def test_examples_of_the_help_are_commands(name: str) -> None:
    """Each example runs its own command, with options and values that the command accepts."""
    group: Any = typer.main.get_command(cli.build_app([name.replace("-", "_")]))
    for _, example in guide.EXAMPLES[name]:
        assert len(example) <= 78 or name == "reset-offset", "a line of the help, with its indent"
        ran = [shlex.split(part) for part in example.partition(" > ")[0].split(" | ")]
        assert any(words[:2] == ["rmqtool", name] for words in ran), example
        for words in ran:
            if words[1] == name:
                group.commands[name].make_context(name, words[2:], parent=typer.Context(group))


def test_every_purpose_of_an_option_is_that_of_some_option() -> None:
    """The table of the help names no option that no command has."""
    group: Any = typer.main.get_command(cli.build_app())
    used = {
        (name, guide.purpose(name, max(each.opts, key=len)), max(each.opts, key=len))
        for name, command in group.commands.items()
        for each in command.params
    }
    assert guide.named_options() <= {option for _, _, option in used}
    assert {purpose for _, purpose, _ in used} == set(guide.PURPOSES)


@pytest.mark.parametrize(
    "name", ["recover", "recovery", "rmqtool-recovery", "Store", "spark", "rmqtool", None]
)
def test_manual_is_plain_text_in_a_pipe(name: str | None, capfd: pytest.CaptureFixture[str]) -> None:
    """The whole page, with its name; the overview without one."""
    assert cli.main(["help", *([name] if name else [])]) == EXIT_OK
    output = capfd.readouterr().out
    assert "\x1b" not in output and "\\f" not in output
    page = (name or "").lower().removeprefix("rmqtool-").replace("rmqtool", "")
    head = f"Name\n  rmqtool{f'-{page}' if page else ''} - " if name else "Read, check"
    assert output.startswith(head)


def test_unknown_page_leads_to_near_ones(capfd: pytest.CaptureFixture[str]) -> None:
    """Near names, else all topics."""
    near = "did you mean recovery or recover or report?"
    codes = "rmqtool problems CL08"
    for name, hint in (("recovry", near), ("xyz", "topics are: recovery, "), ("cl08", codes)):
        assert cli.main(["help", name]) == EXIT_USAGE
        assert hint in capfd.readouterr().err


def test_an_option_takes_its_name_of_another_command(
    cases: Library, capfd: pytest.CaptureFixture[str]
) -> None:
    """As two words or one; the help shows the name of the command alone."""
    found = []
    for option in (["--max", "1"], ["--limit", "1"], ["--limit=1"]):
        assert cli.main(["lookup", str(cases.path("ok_540_clean")), "--key", "rty1", *option]) == EXIT_OK
        found.append(capfd.readouterr().out)
    assert found[0] == found[1] == found[2] and found[0]
    assert cli.main(["lookup", "--help"]) == EXIT_OK
    assert "--limit " not in capfd.readouterr().out


def test_what_means_something_else_elsewhere_is_refused(
    cases: Library, capfd: pytest.CaptureFixture[str]
) -> None:
    """Lookup --offset is one record; dump begins at --from-offset."""
    assert cli.main(["dump", str(cases.path("ok_540_clean")), "--offset", "359"]) == EXIT_USAGE
    assert "No such option: --offset (Possible options: --from-offset" in capfd.readouterr().err


def test_a_missing_value_leads_to_the_help_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["spark-scan", "--sql"]) == EXIT_USAGE
    assert capfd.readouterr().err.splitlines()[-1] == "  see 'rmqtool spark-scan --help'"


def test_manual_opens_in_the_pager_of_a_terminal() -> None:
    """PAGER gets the page, with colours, at the width of the terminal."""
    output, status = on_terminal("sed s/^/paged:/", "help", "concepts")
    assert status == 0
    assert "paged:\x1b[1mName\x1b[0m" in output
    plain = [re.sub("\x1b\\[[0-9;]*m", "", line).removeprefix("paged:") for line in output.splitlines()]
    assert max(len(line) for line in plain[3:20]) <= 60


def test_tables_go_through_the_pager_of_a_terminal(store_copy: Callable[[str], Path]) -> None:
    """With the notes after them; other formats, and what changes a store, do not."""
    store = str(store_copy("ok_540_small_propcrc"))
    output, status = on_terminal("sed s/^/paged:/", "dump", store, "--limit", "2", "--no-progress")
    table, _, notes = output.partition("rmqtool: times are of ")
    assert status == 0 and notes and "paged:" not in notes
    assert all(line.startswith("paged:") for line in table.splitlines()) and len(table.splitlines()) > 4
    output, status = on_terminal("sed s/^/paged:/", "recover", store, "--no-progress")
    assert status == 0 and output.startswith("store ")  # it fits the screen
    output, status = on_terminal("sed s/^/paged:/", "expire", store, "--all", "--no-progress")
    assert output.startswith("paged:")
    output, status = on_terminal("sed s/^/paged:/", "dump", store, "--limit", "2", "--json")
    assert status == 0 and "paged:" not in output and output.count('"physical_offset"') == 2
    output, status = on_terminal("sed s/^/paged:/", "append", store, "--create-topic", "--topic", "t",
                                 "--body", "x")  # fmt: skip
    assert status == 0 and "paged:" not in output and "flushed" in output


@pytest.mark.parametrize("pager", ["true", "cat", "", "no-such-program", "'"])
def test_pager_that_shows_nothing(pager: str, cases: Library) -> None:
    """One that was left at once ends the command; without one the table is on the terminal."""
    store = str(cases.path("ok_540_small_propcrc"))
    some = () if pager == "true" else ("--limit", "3")  # what was left at once is left while rows come
    output, status = on_terminal(pager, "dump", store, *some)
    assert status == 0
    assert ("topic" in output) == (pager != "true")


def test_the_verdict_of_recover_is_repeated_after_a_pager(cases: Library) -> None:
    """It is on the last of several pages; and what to save first was on one of them."""
    reads_all = "wc -c"  # of one that ends before it has read the plan, the command ends too
    output, _ = on_terminal(reads_all, "recover", str(cases.path("bad_cl03_body_crc")))
    text = " ".join(output.split())
    assert "rmqtool: verdict: Do not start the broker yet. A start of 5.4" in text and "lost already" in text
    assert text.index("rmqtool: save first: rmqtool dump") < text.index("rmqtool: nothing was changed;")
    output, _ = on_terminal("cat", "recover", str(cases.path("bad_cl03_body_crc")))  # it pages nothing
    assert "verdict      Do not start" in output and "rmqtool: verdict" not in output


def on_terminal(pager: str, *arguments: str) -> tuple[str, int]:
    """What a command shows on a terminal of 60 columns, and its wait status."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        settings = surroundings(PAGER=pager, TERM="xterm")
        settings.pop("COLUMNS", None)
        settings.pop("NO_COLOR", None)
        os.execvpe(sys.executable, [sys.executable, "-m", "rmqtool", *arguments], settings)
    output = b"".join(iter(lambda: _read(terminal), b"")).decode()
    os.close(terminal)
    return output, os.waitpid(pid, 0)[1]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the program has gone
        return b""


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["dump", "store", "--tail", "3"], "rmqtool tail STORE --last N shows the newest messages"),
        (["export", "store", "--output", "a", "--format", "parquet"], "--output-format names the format"),
        (["stats", "store", "--output", "x.csv"], "--format csv > FILE"),
    ],
)
def test_a_wrong_option_leads_to_the_right_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], hint: str
) -> None:
    (tmp_path / "commitlog").mkdir()
    given = [str(tmp_path) if each == "store" else each for each in arguments]
    assert cli.main(given) == EXIT_USAGE
    assert hint in capsys.readouterr().err
