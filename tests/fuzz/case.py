"""A case of the fuzzer: what was drawn, as JSON, so that it can be done again without its seed."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

from tests.support.confined import Ended

CORPUS = Path(__file__).with_name("corpus")
Part = Literal["decoders", "stores", "files", "databases"]
PARTS: tuple[Part, ...] = ("decoders", "stores", "files", "databases")
WRONG = (
    "Traceback (most recent call last)",
    "Exception ignored",
    "this is a bug",
    "the system gives no more memory",
)
"""What no command says, whatever it is given."""


MOST_BYTES = 1 << 30
"""Of memory, for inputs of some kilobytes: ten times what commands take."""


class Failure(Exception):
    """What a case showed that must not be."""


@dataclass(frozen=True)
class Case:
    """One case.

    Args:
        part: which part of the fuzzer it is of.
        name: the decoder, the store, or the kind of file.
        data: the input, of decoders and files.
        edits: what is done to the store, in the words of `tests.support.stores.apply_edit`.
        commands: which are run over the store; none: all.
        why: what it shows, for the corpus.
    """

    part: Part
    name: str
    data: bytes = b""
    edits: tuple[dict[str, Any], ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    why: str = ""

    def save(self, path: Path) -> None:
        """Write it as JSON; its data are compressed, for what grows is mostly zeros."""
        row = asdict(self)
        row["data"] = b64encode(zlib.compress(self.data, 9)).decode() if self.data else ""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({name: value for name, value in row.items() if value}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """What `save` wrote."""
        row = json.loads(path.read_text())
        row["data"] = zlib.decompress(b64decode(row["data"])) if row.get("data") else b""
        row["edits"] = tuple(row.get("edits", ()))
        row["commands"] = tuple(map(tuple, row.get("commands", ())))
        return cls(**row)


def judge(command: Sequence[str], ended: Ended, codes: Sequence[int]) -> None:
    """Raise Failure where a command did not end as every command has to."""
    line = " ".join(command)
    if ended.code not in codes:
        raise Failure(f"rmqtool {line}: {ended.told}")
    for words in WRONG:
        if words in ended.text:
            raise Failure(f"rmqtool {line}: {ended.told}")
    if ended.code in (2, 3, 4, 5) and not ended.text.strip() and not ended.stdout.strip():
        raise Failure(f"rmqtool {line}: exit {ended.code} without a word")
    if ended.peak_bytes > MOST_BYTES:
        raise Failure(f"rmqtool {line}: {ended.peak_bytes} bytes of memory")
