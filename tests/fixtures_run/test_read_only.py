"""Reading never writes: names, sizes, times and contents below a store are the same afterwards.

Every read command, when it succeeds, fails or is interrupted; and on stores that nobody may write to,
as an ordinary user (who root becomes in a child process, for CI runs as root).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rmqtool.check.verify import PASSES
from rmqtool.cli import main
from rmqtool.formats import body, message
from tests.support.build_store import write_log
from tests.support.missing_codec import hide_lz4
from tests.support.ordinary_user import as_nobody, open_to_all
from tests.support.programs import PATIENCE_S, RMQTOOL, started, until
from tests.support.records import record
from tests.support.stores import Library
from tests.support.sweep import IS_WHOLE
from tests.support.trees import tree_rows, unchanged
from tests.support.whole_store import write_units

pytestmark = pytest.mark.sweep

REAL = "ok_540_small_propcrc"
WHAT = ("commitlog", "consumequeue", "index", "checkpoint", "config", "timer", "epoch", "compaction")

VERIFY = ["verify", *(f"--pass={name}" for name in PASSES)]
# Every read command with the options that change how it reads; {store} is put in front of the rest.
COMMANDS = (
    ["info"],
    ["info", "--residency", "--queues", "--format", "json"],
    *(["dump", "--what", what] for what in WHAT),
    *(["dump", "--what", "index", "--part", part] for part in ("header", "slots", "chains")),
    ["doctor"],
    ["doctor", "--read-limit", "64K", "--format", "json"],
    ["dump", "--explain", "0"],
    ["dump", "--what", "checkpoint", "--explain", "0"],
    ["dump", "--raw"],
    ["dump", "--reverse"],
    ["dump", "--stats-only"],
    ["dump", "--gaps", "--body", "hex"],
    ["tail"],
    ["tail", "--last", "3", "--tag", "TagA", "--filter", "TAGS IS NOT NULL"],
    ["tail", "--follow", "--from", "earliest", "--max-duration", "700ms"],
    ["warm", "--queues", "--index", "--fields", "part,bytes,left_out_bytes"],
    VERIFY,
    ["verify", "--keep-cache", "--jobs", "1", "--limit-bytes", "64K"],
)  # fmt: skip
PROBLEMS_OF_USE = (
    ["info", "--format", "xml"],
    ["dump", "--what", "nothing"],
    ["dump", "--since", "soon"],
    ["dump", "--explain", "99999999999"],
    ["dump", "--raw", "--stats-only"],
    ["dump", "--topic", "NoSuchTopic"],
    ["dump", "--output", "there"],
    ["tail", "--filter", "a !"],
    ["tail", "--group", "nobody"],
    ["verify", "--pass", "colour"],
    ["verify", "--sample", "3/2"],
    ["verify", "--fields", "nope"],
)
DAMAGED = (
    "bad_cl04_wrong_length", "bad_cl21_wrong_size_file", "bad_cf02_config_unreadable",
    "bad_cp05_repair_unfinished", "bad_ix02_chain_loop", "bad_cq09_wrong_size_file", "gap_cl26_log_missing",
    "old_un01_tiered",
)  # fmt: skip
ON_DAMAGED = (
    ["info", "--residency"], ["doctor"], ["dump"], ["dump", "--what", "consumequeue"],
    ["dump", "--what", "config"], ["dump", "--stats-only"],
    VERIFY,
)  # fmt: skip


def run(store: Path, arguments: list[str]) -> int:
    """One command in this process, with its output thrown away by pytest; the store must not change."""
    command, *options = arguments
    with unchanged(store):
        return main([command, str(store), *options])


@pytest.fixture(scope="module")
def real(cases: Library) -> Path:
    return cases.path(REAL)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_success(real: Path, arguments: list[str], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(real, arguments) in (0, 1)  # 1: no epoch file and the like


@pytest.mark.parametrize("arguments", PROBLEMS_OF_USE, ids=" ".join)
def test_wrong_use(real: Path, arguments: list[str], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(real, arguments) in (1, 2, 3)


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_stores(cases: Library, name: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for arguments in ON_DAMAGED:
        assert run(cases.path(name), list(arguments)) in (0, 1, 2, 3), arguments


def test_output_is_never_put_into_the_store(real: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for target in (real / "new", real / "commitlog" / "new", real / "commitlog" / ".." / "new"):
        assert run(real, ["dump", "--raw", "--output", str(target)]) == 4


@pytest.mark.parametrize("path", ["commitlog/{}", "consumequeue/pubpropcrcA/0/{}", "index/{}"])
def test_single_files(real: Path, path: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    folder = (real / path).parent
    file = sorted(entry for entry in folder.iterdir() if entry.is_file())[0]
    with unchanged(real):
        for command in ("info", "dump", "verify"):
            assert main([command, str(file)]) == 0


def test_missing_codec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A body that cannot be decompressed here: shown as stored, exit code 3, and nothing is changed."""
    stored = write_log(tmp_path / "store" / "commitlog", [
        record(body=body.compress(b"x" * 300, "lz4"), found={"UNIQ_KEY": "U"},
               sys_flag=message.COMPRESSED | body.compression_bits("lz4")),
    ])  # fmt: skip
    write_units(tmp_path / "store", stored)
    hide_lz4(monkeypatch)
    assert run(tmp_path / "store", ["dump"]) == 3
    assert run(tmp_path / "store", ["verify", "--pass", "bodies"]) == 3
    assert run(tmp_path / "store", ["info"]) == 1  # the files of the log and the queue are short
    assert b"pip install" in capfdbinary.readouterr().err


# -- interrupted -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["dump"], ["dump", "--reverse"], ["dump", "--what", "consumequeue"], ["dump", "--raw"],
     ["verify", "--io-limit", "256K"], ["verify", "--io-limit", "256K", "--jobs", "1"]],
    ids=" ".join,
)  # fmt: skip
def test_interrupted_in_the_middle(cases: Library, arguments: list[str]) -> None:
    """SIGINT while it works: dump waits for a reader of its output, verify for its limit."""
    store = cases.path("ok_540_clean")
    command, *options = arguments
    before = tree_rows(store)
    with started([*RMQTOOL, command, store, *options], bufsize=0) as process:
        if command == "dump":
            assert process.stdout is not None and process.stdout.read(1)
        else:
            until(lambda: opens(process.pid, store / "commitlog"), "verify opens no file of the log")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, errors
    assert b"interrupted" in errors and b"Traceback" not in errors
    assert tree_rows(store) == before


def opens(pid: int, folder: Path) -> bool:
    """Whether a process has a file of a folder open."""
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            if each.readlink().is_relative_to(folder):
                return True
    return False


# -- as an ordinary user ---------------------------------------------------------------------------


@pytest.fixture
def closed(cases: Library, tmp_path: Path) -> Iterator[Path]:
    """A store whose files and folders nobody may write to, not even their owner."""
    store = cases.copy(REAL, tmp_path / "store")
    open_to_all(store)
    for path in (store, *store.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield store
    for path in (store, *store.rglob("*")):
        path.chmod(0o755)


def test_read_only_store(closed: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Every command ends as it does for who may write, and says the same."""
    outputs: dict[str, list[tuple[int, bytes]]] = {}

    def run_all() -> None:
        if os.getuid() != 0:
            with pytest.raises(PermissionError):
                (closed / "new").touch()
        for arguments in COMMANDS:
            code = main([arguments[0], str(closed), *arguments[1:]])
            output = capfdbinary.readouterr().out
            # For an ordinary user all pages count as resident; how far --follow comes in its time is chance.
            if not {"--residency", "--max-duration"} & set(arguments):
                known = outputs.setdefault(" ".join(arguments), [(code, output)])
                assert known[0] == (code, output) or arguments[0] in ("info", "doctor"), arguments
            assert code in (0, 1), arguments

    with unchanged(closed):
        run_all()
        as_nobody(run_all)


CLOSED = {
    "commitlog/00000000000000000000": "CL12", "consumequeue/pubpropcrcA/0/00000000000000000000": "CQ15",
    "checkpoint": "CP06", "config/topics.json": "CP06", "consumequeue": "CP06", "config": "CP06",
}  # fmt: skip


@pytest.mark.parametrize("name", CLOSED)
def test_what_an_ordinary_user_may_not_read(
    cases: Library, tmp_path: Path, name: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Told by a finding and exit code 3, never by a traceback; the rest is read.

    Each place is met by a third of the commands, and each command by two places; in a sweep by all.
    """
    number = list(CLOSED).index(name) % 3
    commands = COMMANDS if IS_WHOLE else [*COMMANDS[number::3], VERIFY]
    store = cases.copy(REAL, tmp_path / "store")
    open_to_all(store)
    (store / name).chmod(0)

    def run_all() -> None:
        for arguments in commands:
            assert main([arguments[0], str(store), *arguments[1:]]) in (0, 1, 3), arguments
            captured = capfdbinary.readouterr()
            assert b"Traceback" not in captured.err and b"this is a bug" not in captured.err
            if arguments[0] == "verify" and "--pass=bodies" in arguments:
                assert CLOSED[name].encode() in captured.out, captured.out

    with unchanged(store):
        as_nobody(run_all)
    (store / name).chmod(0o755)
