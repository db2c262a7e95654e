"""The one error path: what a user sees, and the exit code, for every way a command can end."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqtool import __version__

ROOT = Path(__file__).resolve().parent.parent

# One command that ends in every way there is; it goes through the same app, options and output.
TRIAL = '''
from __future__ import annotations
import sys, time, types
import rmqtool.cli
from rmqtool.commands import options
from rmqtool.errors import FormatError, RefusedError
from rmqtool.output import Output

def trial(
    store: options.StorePath,
    queue: options.Queue = None,
    since: options.Since = None,
    io_limit: options.IoLimit = None,
    jobs: options.Jobs = 0,
    limit: options.Limit = None,
    fields: options.Fields = None,
) -> int:
    """A trial."""
    options.selection(queue=queue, since=since)
    def rows():
        for n in range(3 if limit is None else limit):
            yield {"n": n, "jobs": jobs, "io_limit": io_limit}
        if store.name == "bug":
            raise KeyError("x\\x1b")
        if store.name == "damaged":
            raise FormatError("not a record", path="a\\nb", physical_offset=5, hint="look there")
        if store.name == "refused":
            raise RefusedError("no")
        if store.name == "missing":
            open("/nonexistent/file")
        if store.name == "slow":
            time.sleep(60)
    Output(fields=fields).write_rows(rows(), ("n", "jobs", "io_limit"))
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
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [*program, *arguments],
        env=surroundings,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_result_of_the_command_is_the_exit_code(program: list[str]) -> None:
    """0 and 1 alike print everything and say nothing on stderr."""
    for store, code in (("sound", 0), ("findings", 1)):
        result = run(program, "trial", store)
        assert (result.returncode, result.stderr, result.stdout.count("\n")) == (code, "", 3)


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["trial", "damaged"], ["rmqtool: not a record", r"  a\nb, offset 5", "  look there"]),
        (["trial", "refused"], ["rmqtool: no"]),
        (["trial", "missing"], ["rmqtool: No such file or directory", "  /nonexistent/file"]),
        ([], ["rmqtool: Missing command.", "  see 'rmqtool --help'"]),
        (["nope"], ["rmqtool: No such command 'nope'.", "  see 'rmqtool --help'"]),
        (["trial"], ["rmqtool: Missing argument 'STORE'.", "  see 'rmqtool trial --help'"]),
        (["trial", "x", "--fields", "m"], ["rmqtool: unknown field: 'm'", "  fields are: n, jobs, io_limit"]),
    ],
)
def test_error_is_three_lines_at_most(program: list[str], arguments: list[str], lines: list[str]) -> None:
    """What, where, what to do; never a traceback."""
    assert run(program, *arguments).stderr.splitlines() == lines


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["trial", "damaged"], 3),
        (["trial", "missing"], 3),
        (["trial", "refused"], 4),
        (["trial", "bug"], 70),
        ([], 2),
        (["nope"], 2),
        (["trial", "x", "--nope"], 2),
        (["trial", "x", "--since", "soon"], 2),
        (["trial", "x", "--queue", "3-1"], 2),
        (["trial", "x", "--queue", "0-99999"], 2),
        (["trial", "x", "--io-limit", "5Z"], 2),
        (["trial", "x", "--limit", "-1"], 2),
        (["trial", "x", "--fields", "m"], 2),
        (["--help"], 0),
        (["trial", "--help"], 0),
        (["--version"], 0),
    ],
)
def test_every_ending_has_its_exit_code(program: list[str], arguments: list[str], code: int) -> None:
    """The table of design and manual."""
    result = run(program, *arguments)
    assert result.returncode == code
    assert (result.stderr == "") == (code == 0)
    assert "Traceback" not in result.stderr


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


def test_options_are_read(program: list[str]) -> None:
    """Sizes, and jobs 0 as one per core."""
    result = run(program, "trial", "x", "--io-limit", "1.5M", "--jobs", "3", "--limit", "1")
    assert result.stdout == '{"n":0,"jobs":3,"io_limit":1572864}\n'
    assert '"jobs":0' not in run(program, "trial", "x").stdout


@pytest.mark.parametrize("arguments", [["trial", "x", "--limit", "200000"], ["--help"], ["trial", "--help"]])
def test_reader_that_goes_away_is_no_error(program: list[str], arguments: list[str]) -> None:
    """`| head`: exit code 0, nothing on stderr."""
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [*program, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")


def test_full_disk_under_stdout_is_an_error(program: list[str]) -> None:
    """Lost output is never exit code 0."""
    if not Path("/dev/full").exists():
        return
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [*program, "trial", "x"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert result.returncode == 3
    assert os.strerror(errno.ENOSPC) in result.stderr.decode()


def test_interrupt_prints_results_so_far(program: list[str]) -> None:
    """SIGINT: rows that were found, one line on stderr, 130."""
    process = subprocess.Popen(
        [*program, "trial", "slow", "--limit", "5000"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        bufsize=0,  # communicate() forgets what readline() has read ahead
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=30)
    rows = [json.loads(line)["n"] for line in (first + rest).splitlines()]
    assert rows == list(range(len(rows)))
    assert errors == b"rmqtool: interrupted; results so far were printed\n"
    assert process.returncode == 130


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
