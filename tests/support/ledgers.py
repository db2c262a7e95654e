"""DLedger stores for tests: records written as entries, with their index and state, in files of any size."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from rmqtool.formats import ledger, message
from rmqtool.formats.message import Message
from rmqtool.read.selection import Selection
from rmqtool.read.store import Store
from rmqtool.storage.ledger import INDEX_FILE_SIZE
from tests.support.build_store import file_name, write_sparse
from tests.support.rebuild_checks import SETTINGS, rebuilt
from tests.support.trees import copy_tree


def write_ledger(
    folder: Path, records: Iterable[Message], *, file_size: int, start: int = 0, term: int = 0, first: int = 0
) -> list[Message]:
    """Write the folder of a DLedger log as a broker does; the records with their offsets filled in."""
    files: dict[int, list[tuple[int, bytes]]] = {}
    units, stored, position = [], [], start
    for number, record in enumerate(records, first):
        size = ledger.HEADER_SIZE + record.total_size
        base = position - position % file_size
        if position + size + ledger.FILE_END.size > base + file_size:
            end = ledger.FILE_END.pack(ledger.FILE_END_MAGIC, base + file_size - position)
            files[base].append((position - base, end))
            base = position = base + file_size
        stored.append(replace(record, physical_offset=position + ledger.HEADER_SIZE))
        header = ledger.HEADER.pack(ledger.MAGIC, size, number, term, position, 0, 0, 0, record.total_size)
        files.setdefault(base, []).append((position - base, header + message.encode(stored[-1])))
        units.append(ledger.INDEX_UNIT.pack(ledger.MAGIC, position, size, number, term))
        position += size
    for base, pieces in files.items():
        write_sparse(folder / "data" / file_name(base), file_size, *pieces)
    size, data, place = ledger.INDEX_UNIT_SIZE, b"".join(units), first * ledger.INDEX_UNIT_SIZE
    assert place // INDEX_FILE_SIZE == (place + len(data)) // INDEX_FILE_SIZE, "one index file"
    base = place - place % INDEX_FILE_SIZE
    write_sparse(folder / "index" / file_name(base), INDEX_FILE_SIZE, (place - base, data))
    newest = first + len(units) - 1
    (folder / "checkpoint").write_text(f"committedIndex={newest}\nendIndex={newest}\n")
    (folder / "currterm").write_text(f"voteLeader=n0\ncurrTerm={term}\n")
    return stored


def converted(
    source: Path, target: Path, *, classic_files: int = 0, file_size: int = 0,
    settings: Mapping[str, str] | None = None,
) -> Path:  # fmt: skip
    """The messages of a store in a DLedger log, with queues and index; `classic_files` stay as they are.

    The new store has the config of the old one, and broker.conf beside it, with `settings`. `file_size` 0:
    that of the old log.
    """
    with Store.open(source) as store:
        layout = store.layout
        kept = layout.commit_log[:classic_files]
        start = kept[-1].end if kept else 0
        records = [each.message for each in store.messages(Selection(from_offset=start))]
        file_size = file_size or layout.commit_log_file_size
        target.mkdir()
        for file in kept:
            (target / "commitlog").mkdir(exist_ok=True)
            copied = shutil.copyfile(file.path, target / "commitlog" / file.path.name)
            assert Path(copied).stat().st_size == file.size
    copy_tree(source / "config", target / "config")
    shutil.copyfile(source / "checkpoint", target / "checkpoint")
    write_ledger(target / "dledger-n0", records, file_size=file_size, start=start)
    (target / "consumequeue").mkdir()
    conf = target.with_name(f"{target.name}.conf")
    values = {setting: getattr(layout, attribute) for setting, attribute in SETTINGS.items()}
    values |= {**(settings or {}), "mappedFileSizeCommitLog": file_size}
    conf.write_text("".join(f"{setting}={value}\n" for setting, value in values.items()))
    rebuilt(target, conf)
    return target
