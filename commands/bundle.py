"""`rmqtool bundle`: a support archive of a store, without message bodies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqtool.commands import options
from rmqtool.commands.groups import Before, Only, with_groups
from rmqtool.errors import EXIT_OK, RmqtoolError
from rmqtool.terminal import counted, escape, format_size, shortened

if TYPE_CHECKING:
    from pathlib import Path

    from rmqtool.output import Output
    from rmqtool.read.store import Store
    from rmqtool.report.bundle.archive import Bundle
    from rmqtool.report.bundle.parts import Part
    from rmqtool.report.bundle.redaction import Redaction

OutputFile = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write the archive to this new file: .tar.gz, .tgz or .tar.zst.",
    ),
]

Added = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="FILE",
        help="Add this text file, such as a log of the broker (repeatable).",
    ),
]


@with_groups
def bundle(
    *,
    store: options.StoreOptions,
    output: OutputFile,
    added: Added = None,
    redact: options.Redact = False,
    scan: Annotated[options.ScanOptions, Only("jobs"), Before("output")],
    shown: Annotated[options.ObjectOutput, Only("format json quiet progress")],
) -> int:
    """Write a support archive of a store, without message bodies.

    The archive contains the list of all files, the configuration, the overview of info, the results of
    doctor, the ends of the queues, some records without their bodies (the first of each log file, damaged
    ones with those before and after them, and the last), the versions of rmqtool and its libraries, and facts
    about this host. All files are plain text or JSON: unpack the archive and read README.txt before you send
    it. The command reads what doctor reads, and packs at most 64 MiB; the files state what was left out.
    Secrets in broker.conf are left out.

    --with adds a text file as added/1.txt, the next one as added/2.txt: of more than 4 MiB the first MiB and
    the last three. It goes in as it is, bodies that a line shows too; with --redact only the names described
    below are replaced, and the name of the file is left out. Read it before you send the archive.

    --redact replaces names with pseudonyms: redacted-topic#1, redacted-group#2, redacted-key#3. A name has
    the same pseudonym everywhere in the archive, so the archive still shows what belongs together. Built-in
    topics, groups and properties keep their names, but names of brokers, clusters and groups in the name of a
    topic are replaced too: rmq_sys_REVIVE_LOG_redacted-cluster#1. The values of properties are left out.
    NAME.names.json next to NAME.tar.gz, readable only by you, has the names for answers that speak of
    redacted-topic#1: do not send it. Last, the archive is searched for these names: those of topics, groups,
    brokers, hosts and folders, and keys, tags and message ids of the records in records.jsonl. Bodies, and
    keys of other records, are not searched for.

    Exits with 2 for a usage error; 3 when the store or a file of --with cannot be read at all, or the
    archive cannot be written; 4 when the file of --output, or that of the names, exists or would lie in the
    store. Damage of the store is not an error: the archive describes it.
    """
    from itertools import chain

    from rmqtool.report.bundle.archive import check_suffix, names_file, packed
    from rmqtool.report.bundle.redaction import Redaction
    from rmqtool.report.export.new_file import check_new
    from rmqtool.storage.output_guard import keep_out

    check_suffix(output)
    path = options.local_file(output, "--output")
    check_new(path)
    names = path.with_name(names_file(path.name)) if redact else None
    if names is not None:
        check_new(names)
    more = list(_added(added or (), redact=redact))
    writer = shown.writer()
    redaction = Redaction(forms=(escape, shortened)) if redact else None
    store = store.absolute() if redact else store
    with store.open(quiet=shown.quiet) as opened:
        keep_out(opened.layout, path, "the archive", location=opened.location.path)
        made = packed(chain(_parts(opened, redaction, scan.jobs, writer), more), path.name, redaction)
    if names is not None and redaction is not None:
        _write_names(names, redaction)
    size = _write_archive(path, made.data, names)
    _show(writer, path, size, made, redaction, names)
    return EXIT_OK


def _show(
    writer: Output, path: Path, size: int, made: Bundle, redaction: Redaction | None, names: Path | None
) -> None:
    """Write what the archive holds."""
    from rmqtool.report.bundle.parts import ADDED

    rows = [{"name": name, "bytes": count, "about": about} for name, count, about in made.files]
    has_added = any(name.startswith(ADDED) for name, _, _ in made.files)
    writer.write_object(
        {
            "output": str(path),
            "bytes": size,
            "redacted": redaction is not None,
            "names": None if names is None else str(names),
            "names_left": dict(made.left),
            "files": rows,
        },
        [
            f"archive      {path}, {size} bytes",
            *_redacted_lines(redaction, names, made.left, has_added=has_added),
            *_file_lines(rows),
            "read README.txt in it before you send it",
        ],
    )


def _added(files: Sequence[str], *, redact: bool) -> Iterator[Part]:
    """Yield the files of --with."""
    from rmqtool.report.bundle import parts

    for number, file in enumerate(files, 1):
        yield parts.added(options.local_file(file, "--with"), number, redact=redact)


def _write_archive(path: Path, data: bytes, names: Path | None) -> int:
    """Write the archive, return its bytes; the file of the names does not stay without it."""
    from rmqtool.report.export.new_file import write_new

    try:
        return write_new(path, [data])
    except BaseException:
        if names is not None:
            names.unlink(missing_ok=True)
        raise


def _write_names(path: Path, redaction: Redaction) -> None:
    """Write the names by pseudonym to a new file that only its owner can read."""
    import json

    from rmqtool.storage import durable as disk

    disk.write_new(path, (json.dumps(redaction.names(), indent=1) + "\n").encode(), own=True, private=True)
    disk.sync_folder(path.parent)


def _redacted_lines(
    redaction: Redaction | None, names: Path | None, left: Mapping[str, str], *, has_added: bool
) -> list[str]:
    if redaction is None:
        return ["redacted     no: it has names of topics, groups and hosts, and keys"]
    return [
        "redacted     yes",
        f"names        {names}: keep it, and do not send it",
        *_checked(redaction, left, _SEARCHED + _ADDED * has_added),
    ]


def _checked(redaction: Redaction, left: Mapping[str, str], searched: str) -> list[str]:
    """Return what a search for the names in the finished archive has found, and which names these are."""
    from textwrap import wrap

    count = len(redaction.names())
    missing = f"none of {counted(count, 'name')} is"
    if left:
        missing = f"{count - len(left)} of {counted(count, 'name')} are not"
    return [
        *wrap(f"checked      {missing} in the archive: {searched}", _WIDTH, subsequent_indent=" " * 13),
        *(f"             {path} has the word {shortened(escape(name))}: see whether it is the name"
          for name, path in left.items()),
    ]  # fmt: skip


def _grouped(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of files, those of one folder with the same description as one."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["name"].rpartition("/")[0], row["about"]), []).append(row)
    for (folder, about), files in groups.items():
        if folder and len(files) > 1:
            name = f"{folder}/ {len(files)} files"
            yield {"name": name, "bytes": sum(row["bytes"] for row in files), "about": about}
        else:
            yield from files


def _file_lines(files: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what the archive holds, in lines of at most 80 columns."""
    from textwrap import wrap

    rows = list(_grouped(files))
    width = max(len(each["name"]) for each in rows)
    for each in rows:
        head = f"{each['name']:<{width}}  {format_size(each['bytes']):>9}"
        for piece in wrap(each["about"], max(_WIDTH - len(head) - 2, _ABOUT_LEAST)):
            yield f"{head}  {piece}"
            head = " " * len(head)


_WIDTH, _ABOUT_LEAST = 80, 20
_SEARCHED = (
    "those of topics, groups, brokers, hosts and folders, and keys, tags and message ids of the records in"
    " records.jsonl. Bodies, and keys of other records, were not searched for."
)
_ADDED = " Files of added/ may have such, and names that the store no longer has: read them."


def _parts(store: Store, redaction: Redaction | None, jobs: int, writer: Output) -> Iterator[Part]:
    """Make the parts; one that fails is replaced by its error."""
    from rmqtool.commands import doctor_text
    from rmqtool.report.bundle import parts
    from rmqtool.report.bundle.redaction import names_of
    from rmqtool.report.doctor.examine import DEFAULT_READ_LIMIT, examine
    from rmqtool.report.doctor.host import look_at_host

    if redaction is not None:
        names_of(store, redaction)
    yield parts.versions()
    yield parts.host()
    yield parts.layout(store)
    yield from parts.configs(store, redaction)
    total = min(sum(file.size for file in store.layout.commit_log), DEFAULT_READ_LIMIT // 2)
    damaged: list[int] = []
    try:
        with writer.progress("bundle", total) as bar:
            found = examine(store, jobs=jobs, progress=bar.advance)
        look_at_host(store, found)
        if redaction is not None:
            # Of topics that neither a configuration nor a queue has.
            predictions = filter(None, (start.prediction for start in found.starts))
            redaction.add(
                "topic", sorted(found.topics.union(*(each.topics_abandoned for each in predictions)))
            )
        worse = [each for each in found.diagnoses if each.severity != "note"]  # such as files not yet used
        damaged = sorted({offset for each in worse for offset in each.physical_offsets})
        yield parts.Part("info.json", "the overview of rmqtool info", found.info)
        yield parts.Part(
            "doctor.json", "the results of rmqtool doctor",
            {
                "verdict": " ".join(doctor_text.verdict(found)),
                "results": [each.row() for each in found.diagnoses],
                "starts": [start.row() for start in found.starts],
                "disk": found.disk,
                "host": found.host,
                "not_looked_at": [[each.what, each.reason] for each in found.omissions],
            },
            names_as_keys_in="detail",
        )  # fmt: skip
    except RmqtoolError as error:
        yield parts.Part("doctor.txt", "why doctor failed", error.in_one_line)
    yield parts.queues(store)
    yield parts.records(store, redaction, damaged)
