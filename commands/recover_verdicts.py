"""What a start of each broker costs, what a lost configuration costs, and what a repair does, in sentences.

Each function takes rows that commands show with `--format json`, with their times as text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from rmqtool.command_line import command_line
from rmqtool.commands.verdicts import (
    LOG_MISSING,
    LOG_NOT_FOUND,
    Row,
    by_name,
    listed,
    lost_offsets_cure,
    span,
)
from rmqtool.lazy_pattern import pattern
from rmqtool.problems import BY_CODE, leaves_ledger
from rmqtool.terminal import counted, shortened

OFFSETS_LOST = "CF08"
OFFSETS_OLD = "CF13"
_OLD_COST = pattern("groups receive again .*?consumeFromWhere")
MESSAGES_HIDDEN = "CF15"


def torn_rows(found: Row) -> list[dict[str, Any]]:
    """Return the last messages whose bodies are whole, and which the plan gives up as not written in full."""
    return [
        row
        for row in found["lost"]
        if row["fate"] == "cut" and {"CL13"} <= set(row["status"] or ()) <= {"CL09", "CL13"}
    ]


def lost_already(found: Row) -> list[dict[str, Any]]:
    """Return the lost records without `torn_rows`, which are there until the plan is applied."""
    torn = torn_rows(found)
    return [row for row in found["lost"] if row not in torn]


def keeping_torn(found: Row) -> str:
    """Return the versions whose start keeps `torn_rows`, as a list in text; empty if none does."""
    stop = max((row["physical_offset"] + row["size"] for row in torn_rows(found)), default=0)
    versions = [row["broker"] for row in found["predictions"] if starts_up(row) and row["end_offset"] >= stop]
    return listed(versions, word="or") if stop and versions else ""


def offsets_lost_sentence(texts: Iterable[str]) -> str:
    """Say that committed offsets are lost, and what to copy; empty if none of the findings says so.

    `texts` are the findings, with their codes and messages.
    """
    lost = next((each for each in texts if each.startswith(OFFSETS_LOST)), None)
    if lost is None:
        return ""
    what, without = lost_offsets_cure(lost)
    return (
        "Committed offsets of groups are lost: after a start, groups skip messages or receive all of them"
        f" again. Copy {what} from a backup, the old host or a slave before a broker starts; without a copy,"
        f" {without}."
    )


def offsets_old_sentence(texts: Iterable[str]) -> str:
    """Say that committed offsets are old, and what that costs; empty if none of the findings says so.

    `texts` are the findings, with their codes and what a broker does.
    """
    old = next((each for each in texts if each.startswith(OFFSETS_OLD)), None)
    if old is None:
        return ""
    cost = _OLD_COST.search(old)
    return f"Committed offsets are old ({OFFSETS_OLD}){f': {cost[0]}' if cost else ''}."


CONFIG_FILES = {
    "CF06": "topics.json", "CF08": "consumerOffset.json", "CF09": "subscriptionGroup.json",
    "CF07": "delayOffset.json", "TM03": "timercheck",
}  # fmt: skip
"""The file of config/ that is lost, by code."""
_MADE_AGAIN = ("CF06", "CF07", "TM03")


def config_lost_sentence(codes: Iterable[str]) -> str:
    """Say that the whole folder config/ is missing, which files that are, and what to do first.

    `codes` are those of what was found.
    """
    found = set(codes)
    lost = [name for code, name in CONFIG_FILES.items() if code in found]
    made = [name for code, name in CONFIG_FILES.items() if code in found and code in _MADE_AGAIN]
    cures = [f"recover makes {listed(made)} again"] if made else []
    if OFFSETS_LOST in found:
        cures.append("reset-offset sets offsets, or groups skip or repeat messages")
    again = f" Without a copy, {'; '.join(cures)}." if cures else ""
    return (
        f"The folder config/ is missing{f' ({listed(lost)})' if lost else ''}: first of all, copy it from a"
        f" backup, the old host or a slave.{again}"
    )


READS_DAMAGE = "a consumer that reaches it misses the rest of that pull, or receives damaged bytes"
"""What damage of the log costs until it is repaired."""


def of_recover(found: Row) -> list[str]:
    """Say with which brokers a start is safe, what the others cost, and what recover keeps."""
    if found["guard"]:
        return ["A repair was interrupted; no broker loads the store until --apply completes it."]
    sentences = [LOG_NOT_FOUND] if _lacks_log(found) else []
    codes = [row["problem"] for row in found["actions"]]
    if found["config_lost"]:
        sentences.append(config_lost_sentence([*(each[:4] for each in found["warnings"]), *codes]))
    sentences += start_sentences(
        found["predictions"],
        more=any(row["count"] for row in lost_already(found)),
        offsets_lost=offsets_lost_sentence(found["warnings"]),
        is_said=found["config_lost"],
        timer=_timer_text(found),
        offsets_old=offsets_old_sentence(found["warnings"]),
        codes=[code for code in (*codes, *_of_config(found)) if code != "CF07"],  # predictions say its cost
    )
    if ledger_is_damaged(found):
        sentences.append("The DLedger log is damaged, and recover never changes it: see the warnings.")
    elif found["ledger"] is not None and not found["actions"]:
        sentences.append("There is nothing to repair. A start with a log in DLedger is not predicted.")
    sentences += _plan_sentences(found)
    sentences += _guessed_sentence(found["guessed_sizes"], is_applied=False)
    return sentences


def _of_config(found: Row) -> Iterator[str]:
    """Yield the code of a warning that messages are hidden from consumers, and of changes against that."""
    yield from {each[:4] for each in found["warnings"]} & {MESSAGES_HIDDEN}
    if any(row.get("detail", {}).get("raised") for row in found["actions"]):
        yield MESSAGES_HIDDEN


def _timer_text(found: Row) -> str:
    """Say what the loss of a timer costs, as its actions or the warning say it; empty without a loss."""
    texts = [row["reason"] for row in found["actions"] if row["problem"] in ("TM02", "TM03")]
    texts = [text for text in texts if ": a broker " in text]  # a wheel alone costs nothing
    texts += [text.partition(": ")[2] for text in found["warnings"] if "(TM04): " in text]
    return texts[0].partition(";")[0] if texts else ""


def ledger_is_damaged(found: Row) -> bool:
    """Whether the log is in DLedger, and has damage that recover would repair in another log."""
    return found["ledger"] is not None and any(leaves_ledger(BY_CODE[code]) for code in found["remaining"])


def _guessed_sentence(folders: Sequence[str], *, is_applied: bool) -> Iterator[str]:
    """Say what to do before files get a size that nothing in the store shows, or afterwards."""
    if folders and is_applied:
        yield (
            f"The size of the new files in {listed(folders)} was a guess, the default: if the broker has"
            " another one, undo this and run recover with --broker-conf FILE."
        )
    elif folders:
        yield (
            f"The size of the files in {listed(folders)} is a guess: give the broker's configuration"
            " (--broker-conf FILE). Without it, apply the plan only if the broker has the default sizes."
        )


_COSTS = {
    "CF03": "Topics that topics.json lacks are served to nobody until they are created again (CF03).",
    MESSAGES_HIDDEN: "topics.json hides messages from consumers that have not read them (CF15).",
    "deletes_unread": "A broker that runs deletes messages that are still needed (fileReservedTime).",
}
"""What a start costs although it loses no message, by the code of what was found."""


def start_sentences(
    predictions: Sequence[Row], *, more: bool = False, offsets_lost: str = "", is_said: bool = False,
    timer: str = "", offsets_old: str = "", codes: Iterable[str] = (),
) -> Iterator[str]:  # fmt: skip
    """Yield the brokers whose start is safe first, then the others by what their start costs.

    `more` is whether messages are lost already, `offsets_lost` is `offsets_lost_sentence`, `is_said` whether
    `config_lost_sentence` was said, which says so too. `timer` is what the loss of a timer costs,
    `offsets_old` is `offsets_old_sentence`. `codes` are those of what was found: CF03, CF06, CF07 and CF15
    cost something at a start.
    """
    brokers: dict[str, list[str]] = {}
    codes = set(codes)
    costs = [text for code, text in _COSTS.items() if code in codes]
    lost_files = set() if is_said else {"CF06", "CF07"} & codes
    for row in predictions:
        brokers.setdefault(cost_of_start(row, lost_files), []).append(row["broker"])
    if not brokers:
        if offsets_lost and not is_said:
            yield offsets_lost
        return
    safe = brokers.pop("", [])
    if safe:
        what = "nothing more" if more else "nothing"
        if offsets_lost or timer or offsets_old or costs:
            what = "no more messages" if more else "no message"
        yield f"A start of {listed(safe, word='or')} loses {what}."
    else:
        yield f"Do not start {'the' if len(predictions) == 1 else 'a'} broker yet."
    for cost, versions in brokers.items():
        yield f"A start of {listed(versions, word='or')} {cost}."
    yield from _config_cures(predictions)
    also = ["" if is_said else offsets_lost, offsets_old, *costs]
    if timer:
        also.append(f"{timer[0].upper()}{timer[1:]}.")
    but = "But"
    for sentence in filter(None, also):
        yield f"{but} {sentence[0].lower()}{sentence[1:]}" if safe else sentence
        but = "And"


def config_that_ends(row: Row) -> Row | None:
    """Return the part of the configuration on which a predicted start ends; None if it does not."""
    return next((each for each in row["unread_config"] if each["ends"]), None)


def starts_up(row: Row) -> bool:
    """Return whether a predicted start loads the store and ends on no part of its configuration."""
    return row["loads"] and config_that_ends(row) is None


def _config_cures(predictions: Sequence[Row]) -> Iterator[str]:
    """Yield what to do, once, about parts of the configuration that brokers cannot read."""
    found = {each["path"]: each["problem"] for row in predictions for each in row["unread_config"]}
    if found:
        more = listed([f"rmqtool problems {code}" for code in dict.fromkeys(found.values())])
        say = "say" if len(set(found.values())) > 1 else "says"
        is_synced = all(each.startswith("config/") for each in found)
        hosts = "a backup, the old host or a slave" if is_synced else "a backup or the old host"
        yield (f"Copy {listed(list(found))} from {hosts} while the broker is stopped; {more} {say} more.")


def cost_of_start(row: Row, lost_files: Collection[str] = ()) -> str:
    """Return what a predicted start would cost; an empty text if nothing.

    `lost_files` are the codes of lost config files: CF06 for topics, CF07 for offsets of delay levels.
    """
    ending = config_that_ends(row)
    if ending is not None:
        return f"fails: {ending['reason']}"
    if row["crashes"]:
        return "runs out of memory"
    if not row["loads"]:
        path = row["load_path"]
        return f"fails: {row['load_error'] if path is None else f'it does not load {path}'}"
    if row["hangs"]:
        return "hangs"
    parts = [f"does not read a part of {each['path']}" for each in row["unread_config"]]
    if "CF06" in lost_files:
        parts.append("serves no topic until it is created again, because topics.json is lost")
    if row["messages_abandoned"]:
        first, last = row.get("first_abandoned_time"), row.get("last_abandoned_time")
        times = f", stored {span(first, last)}" if first and last else ""
        parts.append(f"gives up {by_name(row['topics_abandoned'], 'sound message')}{times}")
    if row["queues_lost"]:
        parts.append(f"loses {counted(row['queues_lost'], 'queue')}")
    if count := row["messages_hidden"]:
        its, them = ("its", "it") if count == 1 else ("their", "them")
        what = f"leaves {counted(count, 'message')} without a unit in {its} queue"
        parts.append(f"{what}: the consumers of the queue never receive {them}")
    if again := row.get("delivered_again"):
        parts.append(f"delivers {counted(again, 'delayed message')} again")
    elif "CF07" in lost_files:
        parts.append("may deliver delayed messages again, because delayOffset.json is lost")
    groups = {each["group"] for each in row["consumer_offsets_beyond"]}
    if groups:
        parts.append(f"leaves {counted(len(groups), 'group')} with offsets beyond the end of a queue")
    return parts[0] if len(parts) == 1 else ", ".join([*parts[:-1], *(f"and {each}" for each in parts[-1:])])


def beyond_texts(rows: Iterable[Row], reset: str) -> Iterator[tuple[str, str]]:
    """Yield which messages groups skip whose offsets are past the ends of queues, and what repeats them.

    Not of the broker's own groups, which reset-offset refuses: see `checks_texts`.

    Args:
        rows: of the offsets: group, topic, queue_id and messages, those of the queue.
        reset: the command line of reset-offset on the store.

    Returns:
        Of the first topics of groups a text, and a command line.
    """
    from rmqtool.read.lost_config import is_group_of_brokers

    pairs: dict[tuple[str, str], list[Row]] = {}
    for each in rows:
        if not is_group_of_brokers(each["group"]):
            pairs.setdefault((each["group"], each["topic"]), []).append(each)
    most = sorted(pairs, key=lambda pair: -sum(each["messages"] or 0 for each in pairs[pair]))
    for group, topic in most[:_PAIRS_NAMED]:
        ids = sorted(each["queue_id"] for each in pairs[group, topic])
        count = sum(each["messages"] or 0 for each in pairs[group, topic])
        queues = f"queue {ids[0]}" if len(ids) == 1 else f"{len(ids)} queues"
        words = ("--group", group, "--topic", topic, "--queue", ",".join(map(str, ids)), "--from", "earliest")
        yield (
            f"{shortened(group)} is past the end of {queues} of {shortened(topic)}: set to the end, it"
            f" skips what it has not read there, up to {counted(count, 'message')}; to repeat all of them"
            " instead",
            f"{reset} {command_line(*words)}",
        )


_PAIRS_NAMED = 3


def checks_texts(rows: Iterable[Row]) -> Iterator[str]:
    """Yield where a broker goes on with checks of half messages; `rows` are the offsets that recover sets."""
    for each in rows:
        if "open" in each:
            to = f"set to {each['to']}, the first of {counted(each['open'], 'open half message')}"
            if not each["open"]:
                to = "set to the end, because no half message is open"
            yield f"{each['group']} is past the end of queue {each['queue_id']} of {each['topic']}: {to}"


def at_least(lost: Iterable[Row]) -> str:
    """Return "at least " if only gaps between queue offsets show some of the lost messages.

    Then their queues have lost their units: nothing shows messages that were after the last one that is left.
    """
    return "at least " if any(row["known_from"] == "gap" for row in lost) else ""


def _plan_sentences(found: Row) -> Iterator[str]:
    if not found["actions"]:
        if found["warnings"]:
            yield "recover can repair nothing here; read the warnings."
        yield from _incomplete_sentence(found)
        return
    given_up, lost_rows = found["given_up_messages"], lost_already(found)
    lost = sum(row["count"] for row in lost_rows)
    kept = f"gives up {counted(given_up, 'sound message')}" if given_up else "keeps every sound message"
    text = f"recover {kept}{_torn_text(found)}"
    if lost:
        topics: dict[str, int] = {}
        for each in lost_rows:
            topics[each["topic"]] = topics.get(each["topic"], 0) + each["count"]
        named = by_name(topics, "message") if all(topics) else counted(lost, "message")
        text += f"; {at_least(lost_rows)}{named} {'is' if lost == 1 else 'are'} lost already"
        if delivered := sum(each["delivered"] for each in lost_rows):
            these = ", a delayed message, was" if delivered == 1 else ", delayed messages, were"
            text += f"; {delivered} of these{these} delivered before"
    if not _lacks_log(found):  # without a log nothing is known of its messages
        yield f"{text}."
    yield from _put_back_sentence(found)
    if lost and any(each["fate"] == "filled" for each in found["lost"]):
        yield f"Until the damage is repaired, {READS_DAMAGE}."
    yield from _incomplete_sentence(found)


def _torn_text(found: Row) -> str:
    """Say how many whole messages at the log's end the plan gives up, and who keeps them; empty for none."""
    torn = torn_rows(found)
    if not torn:
        return ""
    last, it, whole = ("message", "it", "body is whole")
    if (count := sum(row["count"] for row in torn)) > 1:
        last, it, whole = (f"{count} messages", "them", "bodies are whole")
    versions = keeping_torn(found)
    keep = f", and a start of {versions} keeps {it}" if versions else ""
    word = "and" if found["given_up_messages"] else "but"
    return f" {word} gives up the last {last}, whose {whole}{keep}: save {it} first"


def files_to_put_back(found: Row) -> str:
    """The log files that are missing or too short, and of which messages are lost; empty for none."""
    paths = [row["path"] for row in found["actions"] if row["problem"] in ("CL20", "CL21")]
    paths = [path for path in dict.fromkeys(paths) if path.startswith("commitlog/")]
    if not paths or not found["lost"]:
        return ""
    more = [f"{len(paths) - _FILES_NAMED} more"] if len(paths) > _FILES_NAMED else []
    return listed([*paths[:_FILES_NAMED], *more])


def _put_back_sentence(found: Row) -> Iterator[str]:
    """Yield who may have the files of the log that are missing or too short."""
    files = files_to_put_back(found)
    if files:
        is_one = " and " not in files
        which = "it" if is_one else "them"
        same = "file has the same name" if is_one else "files have the same names"
        missing = any(row["problem"] == "CL20" for row in found["actions"])
        who = "a slave, a backup or an archive of rmqtool expire" if missing else "a slave or a backup"
        yield f"If {who} has {files}, put {which} back first and plan again: a slave's {same} and bytes."


_FILES_NAMED = 3


def _incomplete_sentence(found: Row) -> Iterator[str]:
    topics: dict[str, int] = {}
    for each in found["incomplete"]:
        topics[each["topic"]] = topics.get(each["topic"], 0) + 1
    if topics:
        keep = "keeps its body" if len(found["incomplete"]) == 1 else "keep their bodies"
        yield f"{by_name(topics, 'message')} {keep}, but may have lost keys, tags and other properties."


def _lacks_log(found: Row) -> bool:
    return LOG_MISSING in found["remaining"]


def of_repair(found: Row) -> list[str]:
    """Say what to do once the plan of recover was applied."""
    if not found["applied"]["changes"]:
        return ["Nothing had to be changed."]
    lost_offsets = offsets_lost_sentence(found["warnings"])
    remaining = [code for code in found["remaining"] if code != OFFSETS_LOST]
    if remaining:
        texts = listed([f"{code} ({BY_CODE[code].message})" for code in remaining])
        verb = "remains" if len(remaining) == 1 else "remain"
        sentences = [f"The plan was applied, but {texts} {verb}: do not start the broker yet."]
    elif lost_offsets:
        sentences = ["The plan was applied."]
    else:
        sentences = ["The plan was applied. Check the store before you start a broker."]
    if _lacks_log(found):
        sentences.insert(0, LOG_NOT_FOUND)
    if lost_offsets:
        sentences.append(lost_offsets)
    sentences += _guessed_sentence(found["guessed_sizes"], is_applied=True)
    return [
        *sentences,
        "Keep the backup until the consumers have what they need: it restores the store only as long as no"
        " broker, rmqtool append or rmqtool deliver has written to it.",
    ]
