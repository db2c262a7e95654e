"""What a real store library did to a damaged store, held against what `predict` says of it.

A verdict is a row of `fixtures/damage` (see `stores.variants`), or one of the lab with the same keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from rmqtool.broker.prediction import IndexPrediction, Prediction
from rmqtool.formats.index import Header

Verdict = dict[str, Any]

SIZES = {
    "commit_log_file_size": 1 << 20,
    "consume_queue_file_size": 20_000,
    "batch_queue_file_size": 46_000,
    "index_slots": 1000,
    "index_entries": 4000,
}
"""File sizes of the stores in `fixtures/`, for a store that has lost the files that show them."""
PARTS = ("commitlog", "consumequeue", "batchconsumequeue", "index")
_HEADER_NAMES = ("beginTimestamp", "endTimestamp", "beginPhyOffset", "endPhyOffset", "hashSlotCount",
                 "indexCount")  # fmt: skip
_INDEX_NAME = 17
_TRANSACTION, _PREPARED, _ROLLED_BACK = 12, 4, 12


def differences(
    prediction: Prediction, verdict: Verdict, root: Path, facts: Sequence[dict[str, Any]] = ()
) -> list[str]:
    """What the prediction says otherwise than the real store did; empty when they agree.

    Args:
        prediction: of the store as it was before the start.
        verdict: what the start did.
        root: the store as it was before the start.
        facts: what the Java library says about the records of the undamaged store; with them the messages
            that no queue leads to are compared too.
    """
    if verdict["load"] is not True:
        return [*_failed(prediction, verdict), *_files(prediction, verdict, root)]
    if not prediction.loads:
        return [f"loads, predicted: {prediction.load_error} ({prediction.load_path})"]
    found = []
    if prediction.hangs != bool(verdict.get("hung")):
        found.append(f"hung: {verdict.get('hung')}, predicted: {prediction.hangs}")
    found += _offsets(prediction, verdict)
    found += _queues("after load", verdict.get("afterLoadQueues"), dict(prediction.loaded_spans))
    if verdict.get("start"):
        known = {(row["topic"], row["queueId"]) for row in verdict["queues"]}
        spans = {
            key: (queue.min_after, queue.max_after)
            for key, queue in prediction.queues.items()
            if not queue.lost or key in known
        }
        found += _queues("after start", verdict["queues"], spans)
        found += _unreachable(prediction, verdict, root, facts) if facts else []
    found += _index(prediction, verdict, root)
    return [*found, *_files(prediction, verdict, root)]


def _failed(prediction: Prediction, verdict: Verdict) -> list[str]:
    if prediction.loads:
        return [f"load fails: {verdict.get('loadException')}, predicted: it does not"]
    if prediction.crashes != ("OutOfMemoryError" in (verdict.get("loadException") or "")):
        return [f"load ends with {verdict.get('loadException')}, predicted crash: {prediction.crashes}"]
    return []


def _offsets(prediction: Prediction, verdict: Verdict) -> list[str]:
    pairs = [
        ("afterLoadMaxPhyOffset", prediction.end_offset),
        ("afterLoadMinPhyOffset", prediction.min_offset),
    ]
    if verdict.get("start"):
        pairs += [("maxPhyOffset", prediction.end_offset), ("minPhyOffset", prediction.min_offset)]
    return [f"{name}: {verdict[name]}, predicted: {value}" for name, value in pairs if verdict[name] != value]


def _queues(
    when: str, rows: list[dict[str, Any]] | None, predicted: dict[tuple[str, int], tuple[int, int]]
) -> list[str]:
    if rows is None:
        return []
    real = {(row["topic"], row["queueId"]): (row["minOffset"], row["maxOffset"]) for row in rows}
    return [
        f"{when}: queue {key}: {real.get(key)}, predicted: {predicted.get(key)}"
        for key in sorted(real.keys() | predicted.keys())
        if real.get(key) != predicted.get(key)
    ]


def _unreachable(
    prediction: Prediction, verdict: Verdict, root: Path, facts: Sequence[dict[str, Any]]
) -> list[str]:
    """Messages that are whole in the kept log, and outside of what the real store's queue then serves."""
    spans = {
        (row["topic"], row["queueId"]): (row["minOffset"], row["maxOffset"]) for row in verdict["queues"]
    }
    real: Counter[tuple[str, int]] = Counter()
    lost = set()
    for row in facts:
        if not _is_kept(row, verdict, root):
            continue
        key = row["topic"], row["queueId"]
        low, high = spans.get(key, (0, 0))
        first, count = row["queueOffset"], 1
        if "INNER_NUM" in row["properties"] and prediction.broker != "4.9":
            first, count = int(row["properties"]["INNER_BASE"]), int(row["properties"]["INNER_NUM"])
        real[key] += sum(not low <= offset < high for offset in range(first, first + count))
        if high <= 0:
            lost.add(key)
    said = {key: queue.unreachable for key, queue in prediction.queues.items() if queue.unreachable}
    found = [
        f"unreachable in {key}: {real[key]}, predicted: {said.get(key, 0)}"
        for key in sorted(real.keys() | said.keys())
        if real[key] != said.get(key, 0)
    ]
    if prediction.messages_unreachable != sum(said.values()):
        found.append(f"unreachable: {prediction.messages_unreachable}, by queue {said}")
    predicted = {key for key, queue in prediction.queues.items() if queue.lost}
    if lost != predicted:
        found.append(f"queues lost: {sorted(lost)}, predicted: {sorted(predicted)}")
    return found


def _is_kept(row: dict[str, Any], verdict: Verdict, root: Path) -> bool:
    """Whether a record that gets a unit lies whole, byte for byte, in the log that the start has kept."""
    at, size = row.get("physicalOffset"), row.get("storeSize", 0)
    if at is None or row["sysFlag"] & _TRANSACTION in (_PREPARED, _ROLLED_BACK):
        return False
    if at < verdict["minPhyOffset"] or at + size > verdict["maxPhyOffset"]:
        return False
    base = at - at % SIZES["commit_log_file_size"]
    path = root / "commitlog" / f"{base:020}"
    if not path.exists():
        return False
    with path.open("rb") as file:
        file.seek(at - base)
        digest = sha256(file.read(size)).hexdigest()
    return digest.startswith(row["recordSha256"])


def _index(prediction: Prediction, verdict: Verdict, root: Path) -> list[str]:
    """Headers in order. Files that are made have no name before the start."""
    before = {path.name for path in (root / "index").iterdir()} if (root / "index").is_dir() else set()
    real = [
        IndexPrediction(
            row["file"] if row["file"] in before else None, *Header(*(row[n] for n in _HEADER_NAMES))
        )
        for row in verdict["indexAfter"]
        if len(row["file"]) == _INDEX_NAME and row["file"].isdigit()
    ]
    pairs = zip(real, prediction.index, strict=False)
    real = [
        replace(file, hash_slot_count=None) if said.hash_slot_count is None else file for file, said in pairs
    ] + real[len(prediction.index) :]  # slots that were not counted
    if real == list(prediction.index):
        return []
    return [f"index: {real}, predicted: {list(prediction.index)}"]


def _files(prediction: Prediction, verdict: Verdict, root: Path) -> list[str]:
    """Files of log, queues and index that vanish, are made, or change their bytes."""
    found = []
    vanished = {path for path in verdict["filesVanished"] if path.startswith(PARTS)}
    new = {row["path"] for row in verdict["filesNew"] if row["path"].startswith(PARTS)}
    changed = {row["path"] for row in verdict["filesChanged"] if row["path"].startswith(PARTS)}
    made = sum(file.name is None for file in prediction.index)
    index_made = {path for path in new if path.startswith("index/")}
    if len(index_made) != made:
        found.append(f"index files made: {sorted(index_made)}, predicted: {made}")
    for what, real, predicted in (
        ("vanished", vanished, set(prediction.files_deleted)),
        ("new", new - index_made, set(prediction.files_made)),
        ("changed", changed, set(prediction.files_changed)),
    ):
        if real != predicted:
            found.append(
                f"{what} only there: {sorted(real - predicted)}, only predicted: {sorted(predicted - real)}"
            )
    return found
