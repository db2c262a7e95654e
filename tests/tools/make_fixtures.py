"""Make the real stores of `fixtures/` from the ground truth: stores that real brokers wrote.

    python -m tests.tools.make_fixtures GROUND_TRUTH [VERSION ...]

GROUND_TRUTH holds one folder per broker version with `main.tar.zst`, `small.tar.zst` (the stores)
and `answers.tar.zst` (what the Java library said about them). Each state becomes one case:

    case.toml         what it is, and the hash of the unpacked tree
    store.tar.gz      GNU sparse tar; with a base: only what differs from the base's files
    facts.jsonl.xz    one line per record, blank and log end; {"base": [a, b]} stands for the
                      lines a to b (b not included) of the base's facts
    queues.json       minimum and maximum offset of every queue

SHA-256 hashes in the facts are cut to 32 hex digits. The states of one version share most bytes,
so they are kept as a chain (expired, clean, killed, ...). The damaged variants go as they are to
`damage/VERSION.json.gz`. The same input gives the same bytes. Existing `codes` and
`verify.json` stay.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import re
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import zstandard

from tests.support.stores import FIXTURES, VERSIONS, Library, case, mtime_ns, unpack
from tests.support.trees import tree_digest, tree_rows

BLOCK = 512
BASE_OF = {
    "expired": None,
    "clean": "expired",
    "killed": "clean",
    "killed-after-recovery": "killed",
    "killed-burst": "clean",
    "killed-burst-after-recovery": "killed-burst",
    "small-ipv6": None,
    "small-propcrc": None,
}
SAYS = {
    "expired": "the broker itself deleted the two oldest log files, then stopped cleanly",
    "clean": "45 seconds of mixed load, then a clean stop",
    "killed": "kill -9 under load; queues level with the log",
    "killed-after-recovery": "the killed store after the broker's own recovery and a clean stop",
    "killed-burst": "kill -9 in a burst of batches; queues and index far behind the log",
    "killed-burst-after-recovery": "the burst store after the broker's own recovery and a clean stop",
    "small-ipv6": "both hosts of every record are IPv6",
    "small-propcrc": "every record carries a property CRC",
}
HASH_DIGITS = 32


def case_name(version: str, state: str) -> str:
    """`ok_` for states that a broker left cleanly, `torn_` for those that stem from a kill -9."""
    prefix = "torn" if state.startswith("killed") else "ok"
    return f"{prefix}_{version.replace('.', '')}_{state.replace('-', '_')}"


def open_zst(path: Path) -> io.BytesIO:
    """The decompressed bytes of a .zst file, in memory."""
    reader = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    with path.open("rb") as file:
        return io.BytesIO(reader.stream_reader(file).read())


# -- the archive -----------------------------------------------------------------------------------


def changed_ranges(data: bytes, base: bytes) -> list[tuple[int, int]]:
    """(offset, length) of the blocks of `data` that differ from `base`; neighbours are joined.

    Where `base` is shorter it counts as zero.
    """
    padded = base[: len(data)].ljust(len(data), b"\0")
    ranges: list[tuple[int, int]] = []
    for offset in range(0, len(data), BLOCK):
        block = data[offset : offset + BLOCK]
        if block != padded[offset : offset + BLOCK]:
            if ranges and sum(ranges[-1]) == offset:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + len(block))
            else:
                ranges.append((offset, len(block)))
    return ranges


def sparse_member(info: tarfile.TarInfo, data: bytes, base: bytes) -> tuple[tarfile.TarInfo, bytes]:
    """The tar member (GNU sparse format 1.0) that holds what `data` has beyond `base`."""
    ranges = changed_ranges(data, base)
    table = [*ranges, (len(data), 0)]
    text = "".join(f"{number}\n" for number in (len(table), *(n for pair in table for n in pair)))
    head = text.encode().ljust(-(-len(text) // 512) * 512, b"\0")
    content = head + b"".join(data[offset : offset + length] for offset, length in ranges)
    info.pax_headers = {
        **info.pax_headers,
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": info.name,
        "GNU.sparse.realsize": str(len(data)),
    }
    info.name, info.size = f"GNUSparseFile.0/{Path(info.name).name}", len(content)
    return info, content


def pack(root: Path, base: Path | None) -> bytes:
    """The tar of everything below `root`, sorted by name, without owners."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        for path in (root, *sorted(root.rglob("*"))):
            below, status = path.relative_to(root), path.stat()
            info = tarfile.TarInfo(below.as_posix())
            info.mode = status.st_mode & 0o777
            seconds, rest = divmod(status.st_mtime_ns, 10**9)
            info.pax_headers = {"mtime": f"{seconds}.{rest:09d}"}
            if path.is_dir():
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
                continue
            origin = base / below if base else None
            same = origin.read_bytes() if origin and origin.is_file() else b""
            info, content = sparse_member(info, path.read_bytes(), same)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def gzipped(data: bytes) -> bytes:
    """Compress, without time and name."""
    return gzip.compress(data, compresslevel=9, mtime=0)


# -- the facts -------------------------------------------------------------------------------------


def fact_lines(text: str) -> list[str]:
    """The lines of Java's facts in one spelling, hashes cut."""
    lines = []
    for line in text.splitlines():
        row = json.loads(line)
        for message in (row, *row.get("inner", ())):
            for key in message:
                if key.endswith("Sha256"):
                    message[key] = message[key][:HASH_DIGITS]
        lines.append(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
    return lines


def against_base(lines: list[str], base: list[str]) -> list[str]:
    """The lines, with runs of lines that the base has too as one reference each."""
    at = {line: number for number, line in enumerate(base)}
    packed: list[str] = []
    number = 0
    while number < len(lines):
        start = at.get(lines[number])
        if start is None:
            packed.append(lines[number])
            number += 1
            continue
        stop = start
        while number < len(lines) and stop < len(base) and lines[number] == base[stop]:
            number, stop = number + 1, stop + 1
        packed.append(f'{{"base":[{start},{stop}]}}')
    return packed


# -- a case ----------------------------------------------------------------------------------------


def case_toml(version: str, state: str, tree: str, settings: dict[str, Any], kept: list[str]) -> str:
    """The text of `case.toml`; `kept` are lines of the old one that stay."""
    base = BASE_OF[state]
    values = {
        "says": f"{version}: {SAYS[state]}",
        "origin": f"real broker {version}, made by tests/tools/make_fixtures.py",
        "profile": version.rpartition(".")[0],
        "version": version,
        "state": state,
        "base": base and case_name(version, base),
        "tree": tree,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if value]
    table = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    return "\n".join([*lines, *kept, "", "[settings]", *table, ""])


def kept_lines(folder: Path) -> list[str]:
    """The `codes` of an existing case."""
    path = folder / "case.toml"
    return re.findall(r"^codes = .*$", path.read_text("utf-8"), re.MULTILINE) if path.exists() else []


def make_case(version: str, state: str, store: Path, base: Path | None, answers: Path) -> None:
    """Write the folder of one state."""
    folder = FIXTURES / case_name(version, state)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "store.tar.gz").write_bytes(gzipped(pack(store, base)))
    lines = fact_lines((answers / f"{state}.facts.jsonl").read_text("utf-8"))
    if BASE_OF[state]:
        other = (answers / f"{BASE_OF[state]}.facts.jsonl").read_text("utf-8")
        packed = against_base(lines, fact_lines(other))
    else:
        packed = lines
    text = "".join(f"{line}\n" for line in packed)
    (folder / "facts.jsonl.xz").write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    queues = json.loads((answers / f"{state}.queues.json").read_text("utf-8"))
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in queues)
    (folder / "queues.json").write_text(f"[\n{rows}\n]\n", "utf-8")
    settings = json.loads((answers / f"{state}.settings.json").read_text("utf-8"))["settings"]
    text = case_toml(version, state, tree_digest(store), settings, kept_lines(folder))
    (folder / "case.toml").write_text(text, "utf-8")


def top_folders(tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """The members that are states: folders without a parent."""
    return [member for member in tar if member.isdir() and "/" not in member.name.removeprefix("./")]


def unpack_states(source: Path, target: Path) -> None:
    """Unpack every state of one version's two store archives below `target`."""
    for name in ("main.tar.zst", "small.tar.zst"):
        archive = open_zst(source / name)
        with tarfile.open(fileobj=archive, mode="r:") as tar:
            states = top_folders(tar)
        for state in states:
            archive.seek(0)
            unpack(archive, target / state.name, prefix=state.name)
            assert (target / state.name).stat().st_mtime_ns == mtime_ns(state)


def make_version(ground_truth: Path, version: str, scratch: Path) -> None:
    """Write all cases of one broker version and its damaged variants."""
    source, stores, answers = ground_truth / version, scratch / "stores", scratch / "answers"
    unpack_states(source, stores)
    with tarfile.open(fileobj=open_zst(source / "answers.tar.zst"), mode="r:") as tar:
        tar.extractall(answers, filter="data")
    for state, base in BASE_OF.items():
        if (stores / state).exists():
            make_case(version, state, stores / state, stores / base if base else None, answers)
    (FIXTURES / "damage").mkdir(exist_ok=True)
    variants = json.loads((answers / "broker_verdicts.json").read_text("utf-8"))
    packed = gzipped(json.dumps(variants, ensure_ascii=False, separators=(",", ":")).encode())
    (FIXTURES / "damage" / f"{version}.json.gz").write_bytes(packed)
    check(version, stores, scratch / "again")


def check(version: str, stores: Path, scratch: Path) -> None:
    """Unpack the new cases and compare them with the stores they were made from."""
    case.cache_clear()
    scratch.mkdir()
    library = Library(scratch)
    for store in stores.iterdir():
        again = library.path(case_name(version, store.name))
        assert tree_rows(again) == tree_rows(store), store


def main(ground_truth: Path, versions: tuple[str, ...]) -> None:
    """Remake the cases of `versions`."""
    for version in versions:
        with tempfile.TemporaryDirectory() as scratch:
            make_version(ground_truth, version, Path(scratch))
        print(version, "done")  # noqa: T201


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), tuple(sys.argv[2:]) or VERSIONS)
