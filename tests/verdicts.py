"""What a real store library did to a damaged store, held against what `predict` says of it.

A verdict is a row of `fixtures/damage` (see `tests.stores.variants`), or one of the lab with the same keys.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rmqtool.formats.index import Header
from rmqtool.store.predict import IndexPrediction, Prediction

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


def differences(prediction: Prediction, verdict: Verdict, root: Path) -> list[str]:
    """What the prediction says otherwise than the real store did; empty when they agree.

    Args:
        prediction: of the store as it was before the start.
        verdict: what the start did.
        root: the store as it was before the start.
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
        spans = {key: (queue.min_after, queue.max_after) for key, queue in prediction.queues.items()}
        found += _queues("after start", verdict["queues"], spans)
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
