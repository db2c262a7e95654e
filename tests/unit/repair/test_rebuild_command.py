"""What `rmqtool rebuild` says and does, and the config files that it mends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqtool.check.verify import verify
from rmqtool.cli import main
from rmqtool.errors import UnwritableError
from rmqtool.formats import config_json
from rmqtool.problems import Finding
from rmqtool.read.store import Store
from rmqtool.repair.rebuild.run import Request
from rmqtool.storage import durable as disk
from rmqtool.storage import lock
from tests.support.build_store import file_name, write_log
from tests.support.hard_limits import no_reader
from tests.support.ordinary_user import as_nobody, open_to_all
from tests.support.rebuild_checks import conf_of, inodes, problems, queue_files
from tests.support.records import record
from tests.support.trees import tree_rows, unchanged
from tests.support.whole_store import write_state

pytestmark = pytest.mark.usefixtures("json_lines")

NAME = "ok_540_clean"
QUEUE = "consumequeue/pubTopicOne/0"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict[str, Any]], str]:
    """(exit code, rows, what standard error says)."""
    code = main(["rebuild", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


@pytest.fixture
def store(store_copy: Callable[[str], Path]) -> Path:
    """A sound store."""
    return store_copy(NAME)


def breaks(root: Path) -> None:
    """One unit of a queue is gone."""
    with (root / QUEUE / file_name(0)).open("r+b") as file:
        file.seek(200)
        file.write(bytes(20))


@pytest.mark.parametrize("name", ["Gone", ".", "..", "a/b"])
def test_only_a_topic_that_can_have_queues_is_offered(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record of a topic that is not in topics.json: --topic rebuilds its queues, if it can have some."""
    root = tmp_path / "store"
    records = [record("Good"), record(name), record("Good", queue_offset=1)]
    write_state(root, write_log(root / "commitlog", records, file_size=1 << 20))
    topics = {"dataVersion": {}, "topicConfigTable": {"Good": {"topicName": "Good"}}}
    (root / "config/topics.json").write_text(json.dumps(topics))
    _, _, err = run(capsys, root)
    assert ("--topic" in err) == (name == "Gone")


def test_damage_of_the_log_is_not_agreement(
    store_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Units and entries of the lost message stay, so rebuild has nothing to do, but all is not well."""
    store = store_copy("bad_cl05_unknown_magic")
    for arguments in ((), ("--apply",)):
        code, rows, err = run(capsys, store, *arguments)
        assert (code, rows) == (1, [])
        assert "the commit log has a damaged place" in err and f"rmqtool recover {store} repairs" in err


@pytest.mark.parametrize("more", [(), ("--only", "index"), ("--topic", "pubTopicOne")])
def test_a_log_that_cannot_be_read_is_not_agreed_with(
    more: tuple[str, ...], store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_to_all(store)
    path = sorted((store / "commitlog").iterdir())[1]
    path.chmod(0)

    def action() -> None:
        code, rows, err = run(capsys, store, *more)
        assert (code, rows) == (3, [])
        assert f"cannot be read in full, so a part was not compared: commitlog/{path.name}" in err
        assert "what could be read of the log" in err

    as_nobody(action)
    path.chmod(0o644)


def test_a_sound_store_needs_nothing(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with unchanged(store):
        assert run(capsys, store)[:2] == (0, [])
    before = tree_rows(store)
    code, rows, err = run(capsys, store, "--apply")
    assert (code, rows) == (0, []) and "nothing was changed" in err
    assert [row for row in tree_rows(store) if row[0] not in (".", "lock")] == [
        row for row in before if row[0] not in (".", "lock")
    ]


def test_shown_done_and_undone(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = queue_files(store)
    breaks(store)
    broken = queue_files(store)
    with unchanged(store):
        code, rows, err = run(capsys, store)
    assert code == 1 and f"rmqtool rebuild {store} --apply" in err
    assert "rmqtool: 1 queue to rebuild, 2 files to replace\n" in err
    assert {row["path"].rpartition("/")[0] for row in rows} == {QUEUE}
    assert {(row["state"], row["change"], row["problem"]) for row in rows} == {("planned", "replace", "CQ08")}
    code, done, err = run(capsys, store, "--apply", "--backup-dir", tmp_path / "backup")
    assert code == 0 and "rmqtool: 2 changes, " in err and str(tmp_path / "backup") in err
    assert [{**row, "state": "planned"} for row in done] == rows
    assert queue_files(store) == before and not problems(store)
    assert run(capsys, store)[0] == 0
    assert main(["recover", str(store), "--undo", str(tmp_path / "backup")]) == 0
    assert queue_files(store) == broken


def test_one_of_a_kind(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (store / "consumequeue/pubMultiTag/0" / file_name(0)).open("r+b") as file:
        file.write(bytes(20))
    assert "rmqtool: 1 queue to rebuild, 1 file to replace\n" in run(capsys, store)[2]
    assert "rmqtool: 1 change, " in run(capsys, store, "--apply")[2]


def test_a_plan_is_for_one_state_of_a_store(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    breaks(store)
    plan = tmp_path / "plan.json"
    chosen = ("--topic", "pubTopic*", "--queue", "0")
    assert run(capsys, store, *chosen, "--write-plan", plan)[0] == 1
    (store / QUEUE / file_name(0)).touch()
    code, _, err = run(capsys, store, "--apply", "--plan", plan)
    assert code == 4 and QUEUE in err
    assert run(capsys, store, "--plan", plan)[0] == 4
    plan.unlink()
    shown = run(capsys, store, *chosen, "--write-plan", plan)
    assert run(capsys, store, "--plan", plan) == shown and shown[0] == 1
    code, rows, _ = run(capsys, store, "--apply", "--plan", plan)
    assert code == 0 and rows
    assert run(capsys, store)[0] == 0


@pytest.mark.parametrize("change", [{"parts": ["lunch"]}, {"topics": "all"}, {"queues": [1.5]}])
def test_a_plan_that_asks_for_nonsense(
    change: dict[str, Any], store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    breaks(store)
    plan = tmp_path / "plan.json"
    run(capsys, store, "--write-plan", plan)
    document = json.loads(plan.read_text("utf-8"))
    document["options"] |= change
    plan.write_text(json.dumps(document))
    code, rows, err = run(capsys, store, "--apply", "--plan", plan)
    assert code == 3 and not rows and "Traceback" not in err


def test_what_stands_against_it(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    breaks(store)
    held = lock.acquire(store / "lock")
    try:
        assert run(capsys, store, "--apply")[0] == 5
    finally:
        held.release()
    (store / "abort").write_bytes(b"")
    assert run(capsys, store)[0] == 1
    with unchanged(store):
        code, _, err = run(capsys, store, "--apply")
    assert code == 4 and "rmqtool recover" in err
    assert run(capsys, store, "--apply", "--force")[0] == 0
    assert (store / "abort").exists() and not problems(store)
    shutil.rmtree(store / "commitlog")
    (store / "commitlog").mkdir()
    assert run(capsys, store)[0] == 4


@pytest.mark.parametrize(
    "arguments",
    [("--only", "lunch"), ("--plan", "x", "--write-plan", "y"),
     ("--plan", "x", "--apply", "--topic", "T"),
     ("--apply", "--write-plan", "x"), ("--queue", "a"), ("--topic", "T", "--only", "index"),
     ("--queue", "0", "--only", "config", "--only", "index")],
)  # fmt: skip
def test_options_that_make_no_sense(
    arguments: tuple[str, ...], store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with unchanged(store):
        assert run(capsys, store, *arguments)[0] == 2


@pytest.mark.parametrize("apply", [(), ("--apply",)])
def test_what_the_store_does_not_have(
    store: Path, capsys: pytest.CaptureFixture[str], apply: tuple[str, ...]
) -> None:
    """Told with the nearest names, as everywhere; a topic that only the log knows is one of the store."""
    code, _, err = run(capsys, store, "--topic", "pubTopicOn", *apply)
    assert code == 1 and "the store has no topic pubTopicOn; nearest: pubTopicOne" in err
    code, _, err = run(capsys, store, "--topic", "pubTopicOne", "--queue", "77", *apply)
    assert code == 1 and "the selected topics have no queue 77" in err
    assert run(capsys, store, "--topic", "pubTopicOne", "--queue", "0", *apply)[0] == 0
    assert run(capsys, store, "--topic", "pub*", *apply)[0] == 0


def test_queue_offsets_of_records_are_not_said_to_be_mended(
    store_copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The queue holds what it should, so nothing is to be done: what verify names is the other command."""
    root = store_copy("bad_cl15_queue_offset_jump")
    assert run(capsys, root)[:2] == (0, [])
    with Store.open(root) as opened:
        (found,) = (each for each in verify(opened) if each.problem.code == "CL15")
    assert found.problem.repair is not None and found.problem.repair.startswith("rmqtool recover STORE:")


def test_a_part_is_no_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, store / "commitlog" / file_name(0))[0] == 2


def test_only_one_part(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = conf_of(store, NAME)
    breaks(store)
    (store / "consumequeue/stray").write_text("x")
    (store / "index/stray").write_text("x")
    sorted((store / "index").glob("2*"))[-1].unlink()
    before = inodes(store)
    code, rows, _ = run(capsys, store, "--apply", "--only", "index", "--broker-conf", conf)
    assert code == 0
    assert {row["path"].partition("/")[0] for row in rows} == {"index"}
    now = inodes(store)
    assert {name for name in before if now.get(name) != before[name]} == {"index/stray"}
    code, rows, _ = run(capsys, store, "--only", "queues")
    assert {row["path"] for row in rows if row["change"] == "delete"} == {"consumequeue/stray"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--only", "config"], "config has nothing to rebuild; queues and index were not examined"),
        (["--only", "index"], "index agrees with the log; queues and config were not examined"),
        (["--topic", "pubRetry"], "the selected queues agree with the log; other queues, index and config"),
    ],
)
def test_only_what_was_examined_agrees_with_the_log(
    store: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    breaks(store)
    for apply in ((), ("--apply",)):
        code, rows, err = run(capsys, store, *arguments, *apply)
        assert (code, rows) == (0, []) and text in err


def fail_at(monkeypatch: pytest.MonkeyPatch, number: int) -> list[Path]:
    """The `number`-th rename, from 1, and all later ones fail; what was renamed."""
    done: list[Path] = []
    real = disk.rename

    def rename(old: Path, new: Path) -> None:
        if len(done) + 1 >= number:
            raise UnwritableError("cannot rename: the device is gone", path=old)
        real(old, new)
        done.append(new)

    monkeypatch.setattr(disk, "rename", rename)
    return done


@pytest.mark.parametrize("stop", [5, 6, 7, 8])
def test_a_run_that_failed_is_finished_by_the_next(
    stop: int, store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sound, conf = queue_files(store), conf_of(store, NAME)
    breaks(store)
    sorted((store / "index").glob("2*"))[-1].unlink()
    with monkeypatch.context() as patched:
        fail_at(patched, stop)
        assert run(capsys, store, "--apply", "--broker-conf", conf)[0] == 3
    assert (store / "commitlog/rmqtool-repair").exists()
    assert run(capsys, store, "--broker-conf", conf)[0] == 1
    assert run(capsys, store, "--apply", "--broker-conf", conf)[0] == 0
    assert not (store / "commitlog/rmqtool-repair").exists()
    assert queue_files(store) == sound and not problems(store)


def test_the_unfinished_repair_of_another_command_is_left_to_it(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(store)
    with monkeypatch.context() as patched:
        fail_at(patched, 6)
        assert run(capsys, store, "--apply", "--backup-dir", tmp_path / "backup")[0] == 3
    manifests = [path for path in (tmp_path / "backup").glob("*.json") if '"rebuild"' in path.read_text()]
    for path in manifests:
        path.write_text(path.read_text().replace('"rebuild"', '"recover"'))
    assert manifests
    assert run(capsys, store)[0] == 1
    with unchanged(store):
        code, _, err = run(capsys, store, "--apply", "--force")
    assert code == 4 and "rmqtool recover" in err


def breaks_log(store: Path) -> None:
    """A record of a queue is lost in damage of the log, and one of the queue's units is wrong as well."""
    with Store.open(store) as opened:
        record = opened.get_by_queue_offset("pubTopicOne", 0, 30)
    assert record is not None
    with (store / record.file).open("r+b") as file:
        file.seek(record.physical_offset % (1 << 20))
        file.write(bytes(record.message.total_size))
    breaks(store)


def test_what_is_left_is_told(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    breaks_log(store)
    code, rows, _ = run(capsys, store)
    assert code == 1
    assert [(row["state"], row["path"]) for row in rows if row["path"] == QUEUE] == [("left", QUEUE)]
    assert run(capsys, store, "--apply")[0] == 4


def test_what_is_left_counts_though_nobody_reads_it(store: Path) -> None:
    breaks_log(store)
    with no_reader():
        assert main(["rebuild", str(store), "--apply"]) == 4


def topics_of(root: Path) -> dict[str, config_json.TopicConfig]:
    return config_json.topics(config_json.parse((root / "config/topics.json").read_bytes()))


def test_lost_topics_come_from_the_log(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = topics_of(store)
    for path in (store / "config").glob("topics.json*"):
        path.unlink()
    shutil.rmtree(store / "batchconsumequeue")
    shutil.rmtree(store / "consumequeue")
    code, rows, err = run(capsys, store, "--broker-conf", conf_of(store, NAME))
    assert code == 1 and any(row["problem"] == "CF06" for row in rows)
    (lacks,) = [line for line in err.splitlines() if "CF06" in line]
    assert "lacks topics without messages" in lacks and "permissions" in lacks
    assert run(capsys, store, "--apply")[0] == 0
    after = topics_of(store)
    assert after and after.keys() <= before.keys()
    assert {name for name, topic in after.items() if topic.is_batch} == {"pubBatchCQ"}
    for name, topic in after.items():
        assert 1 <= topic.read_queue_nums <= before[name].read_queue_nums and topic.perm == 6
        assert topic.topic_filter_type == before[name].topic_filter_type
    assert after["pubMultiTag"].topic_filter_type == "MULTI_TAG"
    assert after["pubBatchCQ"].write_queue_nums == before["pubBatchCQ"].write_queue_nums
    assert not problems(store)
    assert run(capsys, store)[0] == 0


def lose_topics(root: Path, lost: Callable[[str], bool]) -> dict[str, config_json.TopicConfig]:
    """Topics go from topics.json and its .bak, as with the files of another broker; those that stay."""
    config = root / "config/topics.json"
    document = config_json.parse(config.read_bytes())
    table = document["topicConfigTable"]
    document["topicConfigTable"] = {name: topic for name, topic in table.items() if not lost(name)}
    for path in (config, config.with_name("topics.json.bak")):
        path.write_bytes(config_json.dump(document, "5.4"))
    return topics_of(root)


def of_config(root: Path) -> list[Finding]:
    """What verify says about config files."""
    with Store.open(root) as opened:
        return [each for each in verify(opened) if each.problem.code.startswith("CF")]


@pytest.mark.parametrize("by", [("rebuild", "--only", "config", "queues"), ("recover",)])
def test_topics_that_topics_json_lacks_are_added(
    by: tuple[str, ...], store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batch topics and a topic without one of its queues too; not a topic without queues: it was deleted."""
    before = topics_of(store)
    kept = lose_topics(store, lambda name: name.startswith(("pub", "%RETRY%")))
    shutil.rmtree(store / "consumequeue/pubTopicEight/3")
    shutil.rmtree(store / "consumequeue/pubTx")
    (found,) = (each for each in of_config(store) if each.problem.code == "CF03")
    lacking = set(found.detail["names"])
    assert {"pubBatchCQ", "pubTopicEight"} <= lacking and not {"pubTx", *kept} & lacking
    text = f"{len(lacking)} topics with {found.detail['records']} messages"
    assert found.message.startswith(f"{text} are not in topics.json: pubTopicOne, ")
    command, *options = by
    parts = [word for part in options[1:] for word in (options[0], part)]
    assert main([command, str(store), *parts, "--apply"]) == 0
    said = f"{len(lacking)} topics are added that have {found.detail['records']} messages"
    assert said in capsys.readouterr().out
    after = topics_of(store)
    assert {name: topic for name, topic in after.items() if name in kept} == kept
    assert after.keys() - kept.keys() == lacking
    assert {name for name in lacking if after[name].is_batch} == {"pubBatchCQ"}
    assert all(1 <= after[name].read_queue_nums <= before[name].read_queue_nums for name in lacking)
    assert after["pubTopicEight"].write_queue_nums == 8 and queue_files(store)
    assert [each.problem.code for each in of_config(store)] == ["CF12"] and not problems(store)


@pytest.mark.parametrize("in_bak", [False, True])
def test_topics_of_a_cut_file_keep_their_settings(
    in_bak: bool, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that are whole, also without messages; of the others what log and queues show."""
    config, before = store / "config", topics_of(store)
    text = (config / "topics.json").read_bytes()
    (config / "topics.json.bak").unlink(missing_ok=True)
    (config / "topics.json").write_bytes(b"")
    cut = config / ("topics.json.bak" if in_bak else "topics.json")
    cut.write_bytes(text[: len(text) // 2])
    if in_bak:
        (config / "topics.json").write_bytes(text[: len(text) // 3] + bytes(100))
    kept = config_json.whole_topics(cut.read_bytes())
    assert 10 < len(kept) < len(before) and kept.items() <= before.items()
    assert kept["pubOrder"].order and kept["pubMultiTag"].topic_filter_type == "MULTI_TAG"
    _, rows, err = run(capsys, store)
    (row,) = [row for row in rows if row["path"] == "config/topics.json"]
    assert row["problem"] == ("CF02" if in_bak else "CF06") and row["detail"]["kept"] == len(kept)
    assert f"{len(kept)} topics are as the part of the old file shows that can be read; the new" in err
    run(capsys, store, "--apply")
    assert run(capsys, store)[0] == 0
    after = topics_of(store)
    assert kept.items() <= after.items() and after.keys() - kept.keys()


def test_a_cut_text_ends_at_its_last_whole_topic() -> None:
    """Wherever it is cut; other objects of the text, and entries with wrong values, are no topics."""
    table = {"a": {"perm": 4}, "b": {"perm": "x"}, "c": {"order": True, "attributes": {"k": "v"}}, "d": {}}
    text = json.dumps({"dataVersion": {"counter": 1}, "topicConfigTable": table}).encode()
    ends = {name: text.index(b"}", text.index(b'"%s": {' % name)) + 1 for name in (b"a", b"d")}
    ends[b"c"] = text.index(b"}}") + 2
    for length in range(len(text) + 1):
        whole = [name.decode() for name in (b"a", b"c", b"d") if ends[name] <= length]
        for more in (b"", bytes(9), b"]"):
            assert list(config_json.whole_topics(text[:length] + more)) == whole
    assert config_json.whole_topics(text)["a"].perm == 4
    for text in (b"", b"[1", b'{"topicConfigTable":[', b'{"topicConfigTable":{"a":5,', b"\xff{"):
        assert config_json.whole_topics(text) == {}


def test_units_past_the_end_of_the_log_are_said(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are the last sign of lost messages: afterwards nothing shows that there were any."""
    sorted((store / "commitlog").iterdir())[-1].unlink()
    with Store.open(store) as opened:
        newest = opened.end_offset()
        units = (unit for queue in opened.queues.values() for _, unit in queue.units())
        beyond = sum(unit.physical_offset >= newest for unit in units)
    _, _, err = run(capsys, store)
    assert f"{beyond} units of these queues point past the end of the log, {newest}: " in err
    assert f"rmqtool recover {store} names them" in err
    _, _, err = run(capsys, store, "--apply")
    assert f"{beyond} units of these queues pointed past the end of the log, {newest}: " in err
    assert "once this is undone, rmqtool recover names them" in err and "then start the broker" not in err
    assert "past the end of the log" not in run(capsys, store)[2]


@pytest.mark.parametrize("is_known", [True, False])
def test_plain_queues_of_a_batch_topic_go(
    is_known: bool, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """5.x does not start with them. The queue 1 has single messages only, but is of the same topic."""
    wrong = store / "consumequeue/pubBatchCQ"
    shutil.copytree(store / "consumequeue/pubTopicOne", wrong)
    (wrong / "0/stray").write_bytes(b"1")
    assert "CQ18" in {each.problem.code for each in problems(store)}
    if not is_known:
        shutil.rmtree(store / "batchconsumequeue")
        for path in (store / "config").glob("topics.json*"):
            path.unlink()
    code, rows, _ = run(capsys, store, "--broker-conf", conf_of(store, NAME), "--apply")
    assert code == 0
    assert [row["path"] for row in rows if row["problem"] in ("CQ18", "CQ11")] == ["consumequeue/pubBatchCQ"]
    assert not problems(store) and not wrong.exists()


def test_a_topic_that_topics_json_does_not_call_a_batch_topic_keeps_its_queues(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though its batch queues say otherwise: which of them is right, a person must say."""
    shutil.copytree(store / "consumequeue/pubTopicOne", store / "consumequeue/pubBatchCQ")
    config = store / "config/topics.json"
    config.write_text(config.read_text().replace('"BatchCQ"', '"SimpleCQ"'))
    found = [each.path for each in problems(store) if each.problem.code == "CQ18"]
    assert found == ["batchconsumequeue/pubBatchCQ"]
    code, rows, _ = run(capsys, store)
    left = ["batchconsumequeue/pubBatchCQ"]
    assert [row["path"] for row in rows if row["problem"] == "CQ18" or row["state"] == "left"] == left
    assert code == 1
    assert main(["recover", str(store), "--json"]) == 1
    planned = json.loads(capsys.readouterr().out)
    assert planned["remaining"] == ["CQ18"]
    assert any("set queue.type of pubBatchCQ to BatchCQ" in each for each in planned["warnings"])
    assert main(["recover", str(store), "--apply"]) == 1  # nothing is changed, and a start fails


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("queue", ["0", "7"])
def test_a_folder_without_files_makes_no_batch_topic(
    queue: str, is_known: bool, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plain queues of the topic are read and stay; 5.x does not start with the folder, so it goes."""
    (store / "batchconsumequeue/pubOrder" / queue).mkdir(parents=True)
    with Store.open(store) as opened:
        assert opened.max_offset("pubOrder", 0) > 0
        assert opened.get_by_queue_offset("pubOrder", 0, 0) is not None
    assert [each.problem.code for each in problems(store)] == ["CQ18"]
    if not is_known:
        for path in (store / "config").glob("topics.json*"):
            path.unlink()
    files = queue_files(store)
    assert main(["recover", str(store), "--apply"]) == 0
    assert not (store / "batchconsumequeue/pubOrder").exists() and queue_files(store) == files
    assert not problems(store) and not topics_of(store)["pubOrder"].is_batch


@pytest.mark.parametrize("content", [b"", b'{"topicConfigTable', None])
def test_a_config_file_comes_from_its_bak(
    content: bytes | None, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store / "config/topics.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    code, rows, _ = run(capsys, store)
    assert code == 1
    change = "create" if content is None else "replace"
    assert [(row["change"], row["path"], row["problem"]) for row in rows] == [
        (change, "config/topics.json", "CF01")
    ]
    assert run(capsys, store, "--apply")[0] == 0
    assert path.read_bytes() == (store / "config/topics.json.bak").read_bytes()


def test_options_of_a_request_survive_a_plan() -> None:
    request = Request(("queues",), ("A*", "B"), (0, 3))
    assert Request.of_options(json.loads(json.dumps(request.options()))) == request
