"""Completion in a real shell: which values are offered, what is read for them, what is never printed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rmqtool import cli
from rmqtool.cli import main
from rmqtool.commands import COMMANDS
from rmqtool.commands.completion import READ_LIMIT
from rmqtool.message.columns import BY_NAME
from rmqtool.problems import BY_CODE
from tests import ROOT
from tests.support.programs import surroundings
from tests.support.stores import Library
from tests.support.sweep import paired

pytestmark = pytest.mark.sweep

CASE = "ok_540_clean"
ANSWER = """
source "$SCRIPT"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
shopt -u failglob
cd "$EMPTY"
_rmqtool_completion "$PROGRAM"
printf '%s\\n' "${COMPREPLY[@]}"
"""
# Reports which files of the store are opened and which folders are listed.
WATCHED = """
import os, sys
seen = []
root = os.environ["WATCHED"]
sys.addaudithook(lambda event, arguments: seen.append(f"{event} {arguments[0]}")
                 if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(root) else None)
from rmqtool.__main__ import main
code = main()
with open(os.environ["REPORT"], "w") as report:
    print(*seen, sep="\\n", file=report)
sys.exit(code)
"""  # noqa: E501


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program `rmqtool` of these sources."""
    path = tmp_path / "bin" / "rmqtool"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rmqtool "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `rmqtool completion bash` prints."""
    path = tmp_path_factory.mktemp("completion") / "script"
    command = [sys.executable, "-m", "rmqtool", "completion", "bash"]
    with path.open("wb") as file:
        subprocess.run(command, check=True, stdout=file, env=surroundings(PYTHONPATH=str(ROOT)))
    return path


@pytest.fixture
def offered(program: Path, script: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """What bash offers for the last of the words; nothing may be printed besides."""
    (tmp_path / "empty").mkdir()

    def of(*words: str, **environment: str) -> list[str]:
        done = subprocess.run(
            ["bash", "--norc", "--noprofile", "-c", ANSWER, "bash", "rmqtool", *words], check=True, text=True,
            capture_output=True, env=surroundings(SCRIPT=str(script), PYTHONPATH=str(ROOT),
                                                  PROGRAM=str(program), EMPTY=str(tmp_path / "empty"),
                                                  **environment),
        )  # fmt: skip
        assert done.stderr == ""
        return [line for line in done.stdout.split("\n") if line]

    return of


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """What the script of bash gets for the last of the words, from this process; no error is printed."""

    def of(*words: str) -> list[str]:
        capfd.readouterr()
        with monkeypatch.context() as patch:
            patch.setenv("_RMQTOOL_COMPLETE", "complete_bash")
            patch.setenv("COMP_WORDS", "\n".join(["rmqtool", *words]))
            patch.setenv("COMP_CWORD", str(len(words)))
            patch.setattr(cli, "forget_stdout", lambda: None)  # of this process
            assert main() == 0
        out, err = capfd.readouterr()
        assert err == ""
        return [line for line in out.split("\n") if line]

    return of


def test_bash_completes_a_topic_when_tab_is_pressed(program: Path, cases: Library) -> None:
    """An interactive bash: the line that is executed has the whole name."""
    pid, terminal = pty.fork()
    if pid == 0:
        path = f"{program.parent}:{os.environ['PATH']}"
        os.execvpe("bash", ["bash", "--norc", "--noprofile"], surroundings(PATH=path, PYTHONPATH=str(ROOT)))
    os.write(terminal, b"source <(rmqtool completion bash); echo rea''dy\n")
    _await(terminal, b"ready\r\n")
    words = f"rmqtool dump {cases.path(CASE)} --topic=pubMul\t--format jsonl --lim\t1 --fields top\t\n"
    os.write(terminal, words.encode())
    _await(terminal, b'{"topic":"pubMultiTag"}')
    os.write(terminal, b"exit\n")
    os.waitpid(pid, 0)
    os.close(terminal)


def _await(terminal: int, text: bytes) -> None:
    output = b""
    while text not in output:
        assert select.select([terminal], [], [], 60)[0], output
        output += os.read(terminal, 65536)


@pytest.mark.parametrize(
    ("words", "some", "all_start_with"),
    [
        (["ver"], {"verify"}, "verify"),
        (["dump", "STORE", "--reco"], set(), ""),
        (["dump", "STORE", "--topic", ""], {"pubMultiTag", "pubBatchCQ", "%RETRY%pub_group_one"}, ""),
        (["tail", "STORE", "--format", "csv", "--topic", "pubT"],
         {"pubTopicOne", "pubTopicEight", "pubTx"}, "pubT"),
        (["stats", "STORE", "--topic", "=", "pubMu"], {"pubMultiTag"}, "pubMultiTag"),
        (["copy", "STORE", "--exclude-topic", "pubMu"], {"pubMultiTag"}, "pubMultiTag"),
        (["spark-scan", "STORE", "STORE", "--topic", "pubMu"], {"pubMultiTag"}, "pubMultiTag"),
        (["tail", "STORE", "--group", "pub_"], {"pub_group_one", "pub_retry_group"}, "pub_"),
        (["append", "STORE", "--group", "pub_"], set(), ""),
        (["dump", "STORE", "--tag", ""], {"TagA", "poison"}, ""),
        (["tail", "STORE", "--topic", "pubOrder", "--tag", "Ta"], {"TagA"}, "Ta"),
        (["dump", "STORE", "--fields", ""], set(BY_NAME), ""),
        (["dump", "STORE", "--fields", "topic,queue_"],
         {"topic,queue_id", "topic,queue_offset"}, "topic,queue_"),
        (["verify", "STORE", "--fields", "pro"], {"problem"}, "problem"),
        (["stats", "STORE", "--by", "topic,"], {"topic,queue", "topic,hour"}, "topic,"),
        (["problems", ""], set(BY_CODE), ""),
        (["problems", "CL01", "cq0"], {"cq01", "cq02"}, "cq0"),
        (["dump", "STORE", "--format", "j"], {"json", "jsonl"}, "json"),
        (["verify", "STORE", "--pass", "b"], {"bodies"}, "bodies"),
        (["recover", "STORE", "--broker", ""], {"4.9", "5.3", "5.4"}, ""),
        (["help", "re"], {"recover", "recovery", "rebuild"}, "re"),
        (["completion", ""], {"bash", "zsh", "fish"}, ""),
    ],
)  # fmt: skip
def test_values(
    answered: Callable[..., list[str]], cases: Library, words: list[str], some: set[str], all_start_with: str
) -> None:
    """Values for the last word, those of the store among them."""
    found = answered(*(str(cases.path(CASE)) if word == "STORE" else word for word in words))
    assert some <= set(found)
    assert bool(some) == bool(found)
    if some:
        assert all(name.startswith(all_start_with) for name in found)
    assert len(found) == len(set(found))
    if words[-1] == "topic,queue_":
        assert "topic,topic" not in found


def test_commands(offered: Callable[..., list[str]]) -> None:
    """All commands, but not their other names."""
    assert set(offered("")) == {name.replace("_", "-") for name in COMMANDS}


def test_the_store_may_come_from_the_environment_or_need_expansion(
    offered: Callable[..., list[str]], cases: Library
) -> None:
    """RMQTOOL_STORE, a variable, and the home folder: the shell passes the words as they were typed."""
    store = cases.path(CASE)
    last = ("--topic", "pubMu")
    assert offered("dump", *last, RMQTOOL_STORE=str(store)) == ["pubMultiTag"]
    assert offered("dump", "$PLACE/" + store.name, *last, PLACE=str(store.parent)) == ["pubMultiTag"]
    assert offered("dump", "~/" + store.name, *last, HOME=str(store.parent)) == ["pubMultiTag"]


def test_names_that_a_shell_would_expand_are_not_offered(
    offered: Callable[..., list[str]], tmp_path: Path
) -> None:
    """A folder of a damaged store may have any name."""
    names = [
        "$(touch x)",
        "`touch x`",
        "*",
        "a b",
        "a\nb",
        "a'b",
        'a"b',
        "a|b",
        "a;b",
        "\x1b[31m",
        "é",
        "sound",
    ]
    for name in names:
        (tmp_path / "store" / "consumequeue" / name).mkdir(parents=True)
    assert offered("dump", str(tmp_path / "store"), "--topic", "") == ["sound"]
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize("name", ["kind_rocksdb_540", "kind_config_v2_540"])
def test_a_configuration_in_rocksdb(answered: Callable[..., list[str]], cases: Library, name: str) -> None:
    store = str(cases.path(name))
    assert "cg1" in answered("tail", store, "--group", "c")
    assert {"TopicA", "TopicB"} <= set(answered("dump", store, "--topic", "Topic"))


@pytest.mark.parametrize("store", ["missing", "s3://bucket/store", "hdfs://", "file", "empty", "", "'"])
def test_without_a_store_nothing_is_offered(
    answered: Callable[..., list[str]], tmp_path: Path, store: str
) -> None:
    """No message either: it would break the line that is being typed."""
    (tmp_path / "file").write_bytes(b"\0" * 100)
    (tmp_path / "empty").mkdir()
    given = store if "/" in store else str(tmp_path / store)
    assert answered("dump", given, "--topic", "") == []
    assert answered("tail", given, "--group", "") == []


def test_words_that_a_shell_takes_apart(offered: Callable[..., list[str]], cases: Library) -> None:
    """In a real shell: a quote that is open, and an equals sign."""
    assert offered("dump", "'", "--topic", "") == []
    assert offered("stats", str(cases.path(CASE)), "--topic", "=", "pubMu") == ["pubMultiTag"]


@pytest.mark.parametrize("damage", ["cut", "other", "pipe", "folder", "large"])
def test_a_config_file_that_cannot_be_read_hides_no_folder(
    answered: Callable[..., list[str]], tmp_path: Path, damage: str
) -> None:
    """A folder of queues names a topic too."""
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (tmp_path / "store" / "consumequeue" / "Orders").mkdir(parents=True)
    path = config / "topics.json"
    if damage == "pipe":
        os.mkfifo(path)
    elif damage == "folder":
        path.mkdir()
    elif damage == "large":
        path.write_text('{"topicConfigTable":{"Other":{}}}' + " " * READ_LIMIT)
    else:
        path.write_text('{"topicConfigTable":{"Other' if damage == "cut" else '{"topicConfigTable":[7]}')
    found = answered("dump", str(tmp_path / "store"), "--topic", "O")
    assert found == ["Orders"]


@pytest.mark.parametrize(
    ("option", "read"), [("--topic", "config/topics.json"), ("--group", "config/consumerOffset.json")]
)
def test_one_file_and_one_folder_are_read_and_nothing_is_changed(
    cases: Library,
    tmp_path: Path,
    unchanged: Callable[[Path], AbstractContextManager[None]],
    option: str,
    read: str,
) -> None:
    """However large the store is: no log, no queue."""
    store = cases.path(CASE)
    environment = surroundings(
        PYTHONPATH=str(ROOT), REPORT=str(tmp_path / "report"), WATCHED=str(store), COMP_CWORD="4",
        COMP_WORDS=f"rmqtool\ntail\n{store}\n{option}\npub", _RMQTOOL_COMPLETE="complete_bash",
    )  # fmt: skip
    with unchanged(store):
        done = subprocess.run(
            [sys.executable, "-c", WATCHED], env=environment, capture_output=True, check=True
        )
    assert len(done.stdout.splitlines()) > 3
    assert set((tmp_path / "report").read_text().splitlines()) == {
        f"open {store / read}", f"os.scandir {store / 'config'}", f"os.scandir {store / 'consumequeue'}"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("shell", "words"),
    paired(["zsh", "fish"], [["dump", "STORE", "--topic", "pubMu"], ["ver"], ["dump", "--form"]]),
)
def test_other_shells_get_their_protocol(cases: Library, words: Sequence[str], shell: str) -> None:
    """As their scripts ask: the line up to the cursor in one variable."""
    line = " ".join(["rmqtool", *words]).replace("STORE", str(cases.path(CASE)))
    environment = surroundings(
        _TYPER_COMPLETE_ARGS=line, _TYPER_COMPLETE_FISH_ACTION="get-args",
        _RMQTOOL_COMPLETE=f"complete_{shell}",
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "rmqtool"], env=environment, capture_output=True, check=True, text=True
    )
    assert done.stderr == ""
    expected = {"pubMu": "pubMultiTag", "ver": "verify", "--form": "--format"}[words[-1]]
    assert expected in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_is_one_that_the_shell_reads(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Checked by the shell itself, where it is installed."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_RMQTOOL_COMPLETE=complete_" + shell in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_other_shells_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and a hint."""
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.startswith("rmqtool: Invalid value for 'SHELL'")
