"""What `rmqtool lookup` says to a person: why it scans, and where it has looked in vain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rmqtool.terminal import counted

if TYPE_CHECKING:
    from rmqtool.read.coverage import Gap
    from rmqtool.read.hits import SearchReport
    from rmqtool.read.lookup_request import Request

_NAMES_SHOWN = 5
_NAME_MAX = 200
_GAPS_SHOWN = 3
_KINDS = {"key": "key", "uniq_key": "unique key", "tag": "tag", "msg_id": "message id",
          "offset": "physical offset", "queue_offset": "queue offset"}  # fmt: skip


def gap_text(gap: Gap) -> str:
    """One range of the log that the index does not cover."""
    end = "the end" if gap.stop is None else str(gap.stop)
    return f"offsets {gap.start} to {end} ({gap.reason})"


def shortened(name: str) -> str:
    """The name, or the beginning and length of one that is too long to show."""
    return name if len(name) <= _NAME_MAX else f"{name[:_NAME_MAX]}... ({len(name)} characters)"


def scan_text(gaps: Sequence[Gap]) -> str:
    """Why the log is scanned, and where."""
    return f"scanning the log at {_places(gaps)}"


def _places(gaps: Sequence[Gap]) -> str:
    shown = ", ".join(gap_text(gap) for gap in gaps[:_GAPS_SHOWN])
    more = len(gaps) - _GAPS_SHOWN
    return shown + (f" and {more} more places" if more > 0 else "")


def index_texts(looked: SearchReport) -> Iterable[str]:
    """Problems with index files, one line each."""
    for name, why in looked.unreadable:
        yield f"{name} is skipped: {why}"
    chains: dict[str, list[tuple[str, int]]] = {}
    for name, why, entry in dict.fromkeys(looked.broken):
        chains.setdefault(name, []).append((why, entry))
    for name, ((why, entry), *others) in chains.items():
        more = f", and {len(others)} more" if others else ""
        yield f"{name} is damaged: a chain {why} ({entry}){more}"


def missing_text(request: Request, names: Sequence[str]) -> str:
    """Which of several names were not found."""
    shown = ", ".join(map(shortened, names[:_NAMES_SHOWN])) + (", ..." if len(names) > _NAMES_SHOWN else "")
    what = counted(len(request.asked), _KINDS[request.kind])
    return f"not found: {len(names)} of {what}: {shown}"


def nothing_text(request: Request, looked: SearchReport) -> str:
    """Say that nothing was found, and what was searched."""
    what = _KINDS[request.kind]
    asked = request.asked
    text = (
        f"no message with {what} {shortened(asked[0])}"
        if len(asked) == 1
        else f"no message with any of {len(asked)} {what}s"
    )
    if request.kind in ("offset", "queue_offset"):
        scanned = f"; searched {looked.scanned_bytes:,} bytes of the log"
        return text + scanned if looked.scanned_bytes else text
    if looked.without_log:
        return f"{text}: without a commit log it cannot be read; --explain shows what the index has"
    seen = [counted(looked.index_files, "index file"), counted(looked.topics, "topic")]
    if looked.collisions:
        seen.append(f"{looked.collisions} entries of other keys with the same hash")
    if looked.gone:
        seen.append(f"{looked.gone} entries whose record is no longer in the log")
    if looked.dead:
        seen.append(f"{len(looked.dead)} entries whose record is damaged")
    if looked.excluded:
        seen.append(f"{looked.excluded} matches that other options exclude")
    if looked.scanned_bytes:
        seen.append(f"{looked.scanned_bytes:,} bytes of the log")
    if looked.batches:
        seen.append(counted(looked.batches, "batch record"))
    text += f"; searched {', '.join(seen)}"
    return text


def unseen_text(looked: SearchReport) -> str:
    """Which ranges of the log were not searched."""
    return f"not searched: the log at {_places(looked.gaps)}: see --scan"


def dead_texts(looked: SearchReport) -> Iterable[str]:
    """To which places the index leads in vain, one line each."""
    places = sorted(set(looked.dead))
    for offset in places[:_GAPS_SHOWN]:
        yield (
            f"the index leads to offset {offset}, which has no sound record: it may have been the message;"
            " see rmqtool verify"
        )
    if len(places) > _GAPS_SHOWN:
        yield f"the index leads to {len(places) - _GAPS_SHOWN} more such offsets"
