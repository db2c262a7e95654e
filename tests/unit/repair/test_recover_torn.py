"""recover and the last message of a log: its body is whole, its properties end in zeros."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rmqtool import NewMessage, Store
from rmqtool.cli import main
from rmqtool.write.store_writer import StoreWriter

SIZES: dict[str, Any] = {"commit_log_file_size": 1 << 20, "consume_queue_file_size": 20_000}
COUNT = 5
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five messages; the broker was killed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    with StoreWriter.create("store", auto_create_queues=1, profile="5.3", **SIZES) as writer:
        for number in range(COUNT):
            body = f"body {number}".encode()
            writer.put(
                NewMessage("T", body, tags="A", keys=[f"k{number}"], queue_id=0, uniq_key=f"U{number}")
            )
    (tmp_path / "store/abort").touch()
    return tmp_path / "store"


def end_in_zeros(root: Path, *, last: int, size: int = 6) -> None:
    """Make the last bytes of the last messages zero."""
    with Store.open(root) as opened:
        ends = [each.physical_offset + each.message.total_size for each in opened.messages()][-last:]
    with (root / "commitlog" / f"{0:020}").open("r+b") as file:
        for end in ends:
            file.seek(end - size)
            file.write(bytes(size))


def shown(capsys: Capture, *words: str) -> str:
    main(["recover", "store", "--format", "text", "--broker", "5.3", *words])
    return capsys.readouterr().out


def cells(out: str, title: str) -> list[str]:
    (line,) = [line for line in out.splitlines() if line.startswith(title)]
    return line.removeprefix(title).split()


@pytest.mark.parametrize("last", [1, 2])
def test_it_is_given_up_and_not_lost_already(store: Path, capsys: Capture, last: int) -> None:
    """The table and the verdict say that a start keeps it, and recover does not."""
    end_in_zeros(store, last=last)
    out = shown(capsys)
    assert cells(out, "lose sound messages") == ["0", str(last)]
    assert "lost already" not in out and "no message is lost" in out
    said = " ".join(out.split())
    one, whole = ("message", "body is whole") if last == 1 else ("2 messages", "bodies are whole")
    it = "it" if last == 1 else "them"
    assert f"given up the last {one}: {'its' if last == 1 else 'their'} {whole}" in said
    assert f"A start of 5.3 keeps {it}." in said
    assert (
        f"A start of 5.3 loses nothing. recover keeps every sound message but gives up the last {one}, whose"
        f" {whole}, and a start of 5.3 keeps {it}: save {it} first." in said
    )


def test_the_lines_store_it_again(store: Path, capsys: Capture) -> None:
    """The first before the repair, the second after it: with its queue offset, and what is left of it."""
    end_in_zeros(store, last=1, size=6)
    lines = shown(capsys).splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith("save first")]
    save, _, name = lines[place][13:].partition(" > ")
    assert main(save.split()[1:]) == 0
    Path(name).write_text(capsys.readouterr().out)
    assert main(["recover", "store", "--apply"]) == 0
    with Store.open(store) as opened:
        assert len(list(opened.messages())) == COUNT - 1
    assert main(lines[place + 2].split()[1:]) == 0
    with Store.open(store) as opened:
        *_, found = opened.messages()
        stored = found.message
        assert (stored.topic, stored.queue_id, stored.queue_offset) == ("T", 0, COUNT - 1)
        assert stored.body == b"body 4" and not stored.ends_in_zeros
    capsys.readouterr()
    assert main(["lookup", "store", "k4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["body"] == "body 4"
    assert main(["verify", "store"]) == 0


def test_a_start_that_ends_the_log_before_does_not_keep_it(store: Path, capsys: Capture) -> None:
    """The start loses it too, with what is after the damage; what is lost already is another message."""
    end_in_zeros(store, last=1)
    with Store.open(store) as opened:
        second = list(opened.messages())[1]
    with (store / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(second.physical_offset)
        file.write(bytes(second.message.total_size))
    out = " ".join(shown(capsys).split())
    assert "1 message is lost already, 1 message with a whole body given up" in out
    assert "A start of 5.3 keeps" not in out
    assert (
        "recover keeps every sound message but gives up the last message, whose body is whole: save it" in out
    )
    assert "; 1 message of T is lost already." in out


def test_a_body_that_is_not_whole_is_lost(store: Path, capsys: Capture) -> None:
    """Its CRC does not match."""
    end_in_zeros(store, last=1)
    with Store.open(store) as opened:
        *_, last = opened.messages()
    place = last.physical_offset + last.message.total_size
    with (store / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(place + 88)
        file.write(b"B")
    main(["recover", "store", "--json"])
    (row,) = json.loads(capsys.readouterr().out)["lost"]
    assert row["status"] == ["CL03", "CL13"]
    out = shown(capsys)
    assert "1 message is lost already" in out and "given up" not in out
