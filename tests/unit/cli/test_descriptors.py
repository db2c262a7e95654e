"""Files that a command, or a writer, has open are closed when it is done, for programs that go on."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from rmqtool import NewMessage
from rmqtool.cli import main
from rmqtool.write.store_writer import StoreWriter
from tests.support.exports import small_store

DESCRIPTORS = Path("/proc/self/fd")
COMMANDS = (
    "info {0}", "dump {0}", "verify {0}", "recover {0}", "rebuild {0}", "expire {0}", "diff {0} {0}",
    "lookup {0} --key k1", "lookup {0} --key k1 --scan always", "tail {0} --from earliest", "stats {0} --all",
    "export {0} -o {0}.jsonl", "copy {0} -o {0}.copy", "append {0} --topic T --body x",
    "append {0} --input {0}.jsonl", "append {0} --input {0}.jsonl --dry-run", "deliver {0}",
)  # fmt: skip


def descriptors() -> Counter[str]:
    """What this process has open: how many descriptors lead to each file, pipe or socket."""
    found: Counter[str] = Counter()
    for each in DESCRIPTORS.iterdir():
        with suppress(FileNotFoundError):  # the one by which the folder was listed
            found[str(each.readlink())] += 1
    return found


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="there is no /proc")
def test_none_is_left(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """What other tests have left may be closed meanwhile: only what is new counts."""
    store = small_store(tmp_path / "s", 3)
    main(["info", str(store), "--quiet"])  # loads modules
    before, left = descriptors(), {}
    for command in COMMANDS:
        code = main([*command.format(store).split(), "--quiet"])
        capfdbinary.readouterr()
        left[command] = (code < 3, descriptors() - before)
    assert left == dict.fromkeys(COMMANDS, (True, Counter()))


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="there is no /proc")
def test_a_writer_that_is_closed_has_none(tmp_path: Path) -> None:
    path = small_store(tmp_path / "s", 3)
    before = descriptors()
    writer = StoreWriter.open(path, reserve=False)
    writer.put(NewMessage("T", b"x"))
    writer.close()
    assert not descriptors() - before
