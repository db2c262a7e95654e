"""Every damaged variant of the real stores: `verify` finds the damage at its place and by its kind.

The variants were opened by the real store of their version too; where `verify` says what the next
start will or will not dispatch, the real store's queues must agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqtool.check.verify import verify
from rmqtool.read.store import Store
from tests.support.stores import VERSIONS, Bench, Library, real_case, variant_id, variants
from tests.support.sweep import sample
from tests.support.trees import tree_rows

pytestmark = pytest.mark.sweep

Row = dict[str, Any]
Variant = dict[str, Any]

# What each kind of damage is found as. The first code must be found at the place of the damage (of
# `A|B` one of the two); codes with `?` may follow from it. `@prefix`: the place is a path below it.
EXPECTED = {
    "none": "",
    # records
    "flip-body-last-file": "CL03",
    "flip-body-second-last-file": "CL03",
    "flip-body-first-file": "CL03",
    "flip-body-first-record-of-last-file": "CL03",
    "flip-body-last-record": "CL03",
    "totalsize-zero": "CL04",
    "totalsize-negative": "CL04",
    "totalsize-minint": "CL04",
    "totalsize-huge": "CL04",
    "totalsize-500MiB": "CL04",
    "totalsize-plus1": "CL04",
    "totalsize-minus1": "CL04",
    "totalsize-zero-second-last-file": "CL04",
    "magic-changed": "CL05",
    "magic-changed-first-file": "CL05",
    "magic-changed-first-record-of-last-file": "CL05",
    "magic-changed-first-record-of-log": "CL05",
    "magic-to-blank": "CL10",
    "magic-to-blank-second-last-file": "CL10",
    "magic-v1-to-v2": "CL04",
    "topiclength-plus3": "CL04",
    "topiclength-negative": "CL04",
    "bodylength-negative": "CL04",
    "bodylength-huge": "CL04",
    "proplength-plus2": "CL04",
    "stored-physical-offset-changed": "CL06",
    "stored-queue-offset-plus5": "CL15",
    "storetimestamp-zero-first-record-of-last-file": "CL17",
    "zero-page-last-file": "CL08 CL13?",
    "zero-page-second-last-file": "CL08 CL13?",
    "zero-last-3-records": "CQ03@consumequeue CP03? IX04?",
    "zero-last-40-records": "CQ03@consumequeue CP03? IX04?",
    "torn-last-record": "CL01 CP03? CQ03? IX04?",
    "torn-in-body-and-rest-of-log-zero": "CL01 CP03? CQ03? IX04?",
    "torn-in-header-and-rest-of-log-zero": "CL01 CP03? CQ03? IX04?",
    "blank-zeroed": "CL11",
    "blank-size-changed": "CL10",
    # the set of log files
    "log-truncate-last-half": "CL21 CL01? CP03? CQ03? IX04?",
    "log-truncate-first-half": "CL21 CL04?",
    "log-truncate-last-to-zero": "CL23 CP03? CQ03? IX04?",
    "log-last-one-byte-longer": "CL21",
    "log-delete-first": "",
    "log-delete-first-two": "",
    "log-delete-middle": "CL20@commitlog",
    "log-delete-last": "CL20|CQ03@ CP03? CQ03? IX04? CL24?",
    "log-delete-all": "CL26",
    "log-delete-all-files": "CL26",
    "log-extra-empty-file": "CL23",
    "log-extra-zero-file": "CL24",
    "log-two-extra-empty-files": "CL23",
    "log-garbage-foo": "CL22",
    "log-garbage-foo-full-size": "CL22",
    "log-garbage-dir": "CL22|CL27",
    "log-hidden-file": "CL22",
    "log-misnamed-file": "CL25 CL24?",
    # consume queues
    "cq-zero-unit-middle-last-file": "CQ08",
    "cq-zero-unit-first-file": "CQ08",
    "cq-zero-last-unit": "CQ01|CQ02",
    "cq-zero-last-5-units": "CQ02",
    "cq-unit-to-other-record": "CQ05",
    "cq-unit-beyond-log": "CQ05",
    "cq-unit-negative-offset": "CQ08",
    "cq-tagscode-changed": "CQ06",
    "cq-delete-newest-file": "CQ02",
    "cq-delete-oldest-file": "CQ02",
    "cq-delete-queue": "CQ13",
    "cq-delete-topic": "CQ13",
    "cq-delete-all": "CQ01|CQ13 CQ01? CQ13?",
    "cq-and-batchcq-delete": "CQ01|CQ13 CQ01? CQ13?",
    "batchcq-delete": "CQ01|CQ13@",
    "cq-truncate-newest-half": "CQ09",
    "cq-truncate-newest-to-zero": "CQ09 CQ02?",
    "cq-zero-newest-file": "CQ12 CQ02?",
    "cq-extra-zero-file": "CQ12",
    "cq-garbage-foo": "CQ11",
    "cq-nonnumeric-queue-dir": "CQ11",
    "cq-file-in-place-of-topic": "CQ11",
    # index
    "index-delete-all": "IX08|IX10 IX08? IX10?",
    "index-delete-last": "IX10@index IX08?",
    "index-delete-first": "IX10",
    "index-truncate-last-half": "IX06 IX01? IX02? IX08? IX10?",
    "index-garbage-foo": "IX07",
    "index-count-zero": "IX01",
    "index-endphy-too-large": "IX01",
    "index-header-zero": "IX01",
    # checkpoint, config, lock
    "checkpoint-delete": "CP01 IX09?",
    "checkpoint-zero": "CP01 IX09?",
    "checkpoint-short": "CP02 IX09?",
    "checkpoint-future": "CP03 CQ02? IX10?",  # the next start begins behind the lost units
    "checkpoint-middle": "CP07|CP04@ IX09?",
    "checkpoint-delete+index-delete": "CP01 IX08? IX10?",
    "cq-and-index-delete": "CQ01|CQ13 CQ01? CQ13? IX08? IX10?",
    "cq-index-checkpoint-delete": "CP01 CQ01? CQ13? IX08? IX10?",
    "topics-json-and-bak-delete": "CF06",
    "topics-json-empty": "CF01",
    "config-delete": "CF06 CF07 CF08 CF09? TM03?",
    "lock-delete": "",
}


# The next start of a broker drops the newest index file of a store that was not closed, whatever is in it:
# what its header says too much or too little is then no damage, but keys that are not in the index.
EXPECTED_AFTER_CRASH = {
    "index-count-zero": "IX08 IX10?",
    "index-endphy-too-large": "",
    "index-header-zero": "IX08 IX10?",
}


def overlaps(row: Row, start: int, length: int) -> bool:
    """Whether the finding's range touches [start, start + length)."""
    first, size = row["physical_offset"], max(row["length"] or 1, 1)
    return first is None or (first < start + length and start < first + size)


def is_at_place(row: Row, variant: Variant) -> bool:
    """Whether a finding is where the edits of the variant are.

    Findings on records have the record's offset; others have the edited path, a folder above it
    or, where a folder is gone, a path in it. Units are found by their bytes in the queue file.
    """
    about, path = variant["about"], row["path"]
    record = about.get("record", about.get("blank"))
    if path.startswith("commitlog/") and record is not None:
        return bool(row["physical_offset"] == record)
    if path.startswith("commitlog/") and "start" in about:
        return overlaps(row, about["start"], 4096)
    for edit in variant["edits"]:
        other = edit["path"]
        if path == other and path.startswith("consumequeue/") and "offset" in edit:
            return overlaps(row, edit["offset"], edit.get("length", len(edit.get("hex", "")) // 2))
        if path == other or other.startswith(f"{path}/") or path.startswith(f"{other}/"):
            return True
    return False


def check(variant: Variant, rows: list[Row], baseline: set[str]) -> None:
    """The rows are what `EXPECTED` says, beside what the undamaged base shows."""
    found = {row["problem"] for row in rows}
    expected = EXPECTED_AFTER_CRASH if variant["abortFile"] else {}
    words = expected.get(variant["variant"], EXPECTED[variant["variant"]]).split()
    if not words:
        assert found <= baseline
        return
    codes, elsewhere, prefix = words[0].partition("@")
    main = codes.split("|")
    suspects = [row for row in rows if row["problem"] in main]
    at_place = [
        row
        for row in suspects
        if (row["path"].startswith(prefix) if elsewhere else is_at_place(row, variant))
    ]
    assert at_place, f"{main} not at its place: {suspects}"
    assert found - baseline <= {*main, *(word.rstrip("?") for word in words[1:])}


def check_dispatch(variant: Variant, rows: list[Row]) -> None:
    """`queue behind` is what the real store dispatched at its start, `unit missing` what it did not."""
    if not variant.get("start") or variant.get("hung"):
        return
    queues = {(row["topic"], row["queueId"]): row["maxOffset"] for row in variant["queues"]}
    log_is_sound = not any(row["problem"].startswith("CL") and row["severity"] == "error" for row in rows)
    for row in rows:
        detail = row["detail"]
        if row["problem"] == "CQ01" and log_is_sound:
            assert queues[detail["topic"], detail["queue_id"]] > detail["last_queue_offset"], row
        if row["problem"] == "CQ02":
            assert queues[detail["topic"], detail["queue_id"]] != detail["last_queue_offset"] + 1, row


def is_worth(variant: Variant) -> bool:
    """Whether the abort file can make a difference; without it every variant is worth a run."""
    is_log_damage = EXPECTED[variant["variant"]].startswith("CL")
    return not (variant["abortFile"] and variant["base"] == "clean" and is_log_damage)


@pytest.mark.parametrize("state", ["clean", "killed", "killed-burst"])
@pytest.mark.parametrize("version", VERSIONS)
def test_verify_finds_every_variant(version: str, state: str, cases: Library, tmp_path: Path) -> None:
    """Kind and place, nothing else beside it, the truth about dispatch; and no byte changes."""
    base = cases.path(real_case(version, state).name)
    bench = Bench(base, tmp_path / state)
    baseline: dict[bool, set[str]] = {}
    failures = []
    chosen = [variant for variant in variants(version) if variant["base"] == state and is_worth(variant)]
    undamaged = [variant for variant in chosen if variant["variant"] == "none"]
    for variant in [*undamaged, *sample([each for each in chosen if each not in undamaged], 48)]:
        with bench.damaged(variant["edits"]) as path, Store.open(path) as store:
            rows = [finding.row() for finding in verify(store)]
        abort = variant["abortFile"]
        known = baseline.setdefault(abort, {row["problem"] for row in rows}) | ({"IX09"} if abort else set())
        try:
            check(variant, rows, known)
            check_dispatch(variant, rows)
        except AssertionError as error:
            failures.append(f"{variant_id(variant)}: {error}")
    assert not failures, "\n".join(failures)
    assert tree_rows(bench.root) == tree_rows(base)


def test_every_variant_has_an_expectation() -> None:
    """The table and the variants name the same kinds of damage."""
    assert {variant["variant"] for version in VERSIONS for variant in variants(version)} == set(EXPECTED)
