"""`rmqtool bundle`: what an archive holds, and that no body and, if wanted, no name is in it."""

from __future__ import annotations

import gzip
import html
import io
import json
import os
import re
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from rmqtool.cli import main
from rmqtool.formats import config_json, properties
from rmqtool.message.system_topics import BUILT_IN_GROUPS, DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from rmqtool.read.store import Store
from rmqtool.report.bundle.redaction import Redaction
from tests.support.dumps import Result
from tests.support.stores import Library
from tests.support.sweep import in_sweeps
from tests.support.trees import unchanged

STORES = ("ok_540_clean", "ok_540_small_ipv6", "bad_cf02_config_unreadable", "ok_533_expired")
Bundle = Callable[..., tuple[Result, dict[str, bytes]]]


def unpacked(path: Path) -> dict[str, bytes]:
    """The files of an archive by name; they are all in one folder of it."""
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.decompress(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {}
        for each in archive.getmembers():
            file = archive.extractfile(each)
            assert file is not None and each.isfile() and each.name.startswith("rmqtool-bundle/")
            found[each.name.removeprefix("rmqtool-bundle/")] = file.read()
    return found


@pytest.fixture
def bundle(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Bundle:
    """Runs the command; the store must be as it was afterwards."""

    def run(store: Path, *arguments: object, name: str = "b.tar.gz") -> tuple[Result, dict[str, bytes]]:
        capfdbinary.readouterr()
        output = tmp_path / name
        with unchanged(store):
            code = main(["bundle", str(store), "--output", str(output), *map(str, arguments)])
        captured = capfdbinary.readouterr()
        return Result(code, captured.out, captured.err.decode()), unpacked(output) if code == 0 else {}

    return run


def names_in(path: Path) -> Iterator[str]:
    """Topics, groups, keys, tags and addresses that a store holds."""
    with Store.open(path) as store:
        for stored in store.messages(damage="skip"):
            message = stored.message
            found = properties.decode(message.properties_bytes)
            yield message.topic
            yield from properties.keys_of(found)
            yield from (found[name] for name in (properties.UNIQ_KEY, properties.TAGS) if name in found)
            yield message.born_host.rpartition(":")[0] if isinstance(message.born_host, str) else ""
        yield from (topic for topic, _ in store.queues)
    for file in (path / "config").glob("*.json*"):
        loaded = config_json.load_with_bak(file.name, file.read_bytes(), None).document
        if file.name.startswith("topics"):
            yield from config_json.topics(loaded) if loaded else ()
        elif file.name.startswith("subscriptionGroup"):
            yield from config_json.subscription_groups(loaded) if loaded else ()
        elif file.name.startswith("consumerOffset"):
            yield from (
                (name for pair in config_json.consumer_offsets(loaded) for name in pair) if loaded else ()
            )


def found_in(data: bytes, names: set[str]) -> set[str]:
    """The names that stand alone in a text, not in a longer word; stores have keys like key-1 too."""
    text = data.decode()
    words = set(re.findall(r"[\w%|-]+", text))
    return {each for each in names if (each in words if re.fullmatch(r"[\w%|-]+", each) else each in text)}


@pytest.mark.parametrize("name", STORES)
def test_no_name_and_no_body_leaks(bundle: Bundle, cases: Library, name: str) -> None:
    """Searched for in all files and their names, those of the whole store."""
    path = cases.path(name)
    found, files = bundle(path, "--redact", "--json")
    assert found.code == 0 and json.loads(found.out)["redacted"] is True
    assert max(map(len, files["README.txt"].decode().splitlines())) <= 80  # noqa: PLR2004
    totals = {json.loads(files[each])["disk"]["total_bytes"] for each in ("info.json", "doctor.json")}
    assert len(totals) == 1  # one name has one meaning
    del files["README.txt"]  # words of rmqtool, and the names of the other files
    data = b"\n".join((*(each.encode() for each in files), *files.values()))
    names = {each.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX) for each in names_in(path)}
    names -= BUILT_IN_GROUPS
    names = {each for each in names if len(each) > 2 and not is_system_topic(each)}  # noqa: PLR2004
    assert len(names) > 100  # noqa: PLR2004
    assert found_in(data, names) == set()
    assert str(path).encode() not in data and b"127.0.0.1" not in data
    with Store.open(path) as store:
        for stored in store.messages(damage="skip"):
            body = bytes(stored.message.body or b"")
            assert len(body) < 8 or body[:12] not in data  # noqa: PLR2004


def test_topics_that_only_the_log_has_do_not_leak(bundle: Bundle, store_copy: Callable[[str], Path]) -> None:
    """As after the loss of config/ and of the queues, whose findings name the topics."""
    path = store_copy("ok_533_expired")
    names = {each for each in names_in(path) if "pub" in each}
    for each in ("config", "consumequeue", "batchconsumequeue"):
        shutil.rmtree(path / each, ignore_errors=True)
    _, files = bundle(path, "--redact")
    assert b"consumequeue/%RETRY%redacted-group#" in files["doctor.json"]
    assert found_in(files["doctor.json"] + files["info.json"], names) == set()


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", [*STORES[1:], "gap_cq13_queue_missing", *in_sweeps([STORES[0], "bad_cl03_body_crc"])]
)
def test_no_name_leaks_into_a_page(
    cases: Library, name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of `report --redact`, long names that the page shortens too; without it the topics are there."""
    path = cases.path(name)
    redacted, plain = tmp_path / "redacted.html", tmp_path / "plain.html"
    for output, options in ((redacted, ["--redact"]), (plain, [])):
        assert main(["report", str(path), "--output", str(output), *options]) in (0, 1)
        assert f"redacted     {'yes' if options else 'no: it has names of topics'}" in capfd.readouterr().out
    with Store.open(path) as store:
        topics = {topic for topic, _ in store.queues}
    names = {each.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX) for each in names_in(path)} | topics
    names -= BUILT_IN_GROUPS
    long = {each for each in names if len(each) > 5 and not is_system_topic(each)}  # noqa: PLR2004
    pieces = long | {each[:24] for each in long} | {each[-20:] for each in long if len(each) > 40}  # noqa: PLR2004
    data = html.unescape(redacted.read_text()).encode()
    assert {each for each in pieces if each.encode() in data} == set()
    assert str(path).encode() not in data and b"127.0.0.1" not in data and b">redacted-topic#" in data
    shown = html.unescape(plain.read_text())
    assert any(each in shown for each in topics if not is_system_topic(each)) and str(path) in shown


def test_what_is_said_fits_a_terminal(
    cases: Library, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Sizes stand in one column, and no line of the list of files is wider than 80 columns."""
    assert main(["bundle", str(cases.path("ok_540_clean")), "--output", str(tmp_path / "b.tar.gz")]) in (0, 1)
    lines = capfd.readouterr().out.splitlines()
    files = lines[[line.startswith("README.txt ") for line in lines].index(True) : -1]
    assert len(files) < 15 and any(re.match(r"config/ \d+ files ", line) for line in files)  # noqa: PLR2004
    assert max(map(len, files)) <= 80
    assert len({line.index("B  ") for line in files if re.search(r"\d [KM]?i?B  ", line)}) == 1


def test_what_an_archive_holds(bundle: Bundle, cases: Library) -> None:
    """Without --redact, names stay, bodies do not; a README lists the files."""
    path = cases.path("ok_540_clean")
    found, files = bundle(path, name="b.tar.zst")
    assert found.code == 0 and b"README.txt" in found.out
    readme = files["README.txt"].decode()
    assert all(each in readme for each in files if each != "README.txt")
    layout = [json.loads(line) for line in files["layout.jsonl"].splitlines()]
    sizes = {row["path"]: row["size"] for row in layout if row["kind"] == "file"}
    on_disk = {str(each.relative_to(path)): each.stat().st_size for each in path.rglob("*") if each.is_file()}
    assert sizes == on_disk
    assert json.loads(files["info.json"])["written_by"] and json.loads(files["versions.json"])["rmqtool"]
    assert "pubTopicOne" in json.loads(files["config/topics.json"])["topicConfigTable"]
    records = [json.loads(line) for line in files["records.jsonl"].splitlines()]
    assert [row["physical_offset"] for row in records if row["part"] == "first of file"][0] == 0
    assert len([row for row in records if row["part"] == "last of log"]) == 20  # noqa: PLR2004
    assert not any("body" in row or "system" in row for row in records)
    assert json.loads(files["doctor.json"])["verdict"]
    data = b"\n".join(files.values())
    with Store.open(path) as store:
        bodies = [bytes(each.message.body) for each in store.messages()]
    assert not any(body[:60] in data for body in bodies if len(body) >= 60)  # noqa: PLR2004


def test_what_is_not_json_is_listed_as_left_out(bundle: Bundle, store_copy: Callable[[str], Path]) -> None:
    """All files of config/ are in the archive, or named there; names that no broker gives are counted."""
    root = store_copy("ok_533_small_propcrc")
    (root / "config/notes of Alice").touch()
    for words in (), ("--redact",):
        files = bundle(root, *words, name=f"{len(words)}.tar.gz")[1]
        names = {name.removeprefix("config/") for name in files}
        text = files["config/others.txt"].decode()
        for path in (root / "config").iterdir():
            if path.suffix in (".json", ".bak") and ".json" in path.name:
                assert names & {path.name, f"{path.name}.txt"}
            elif "Alice" in path.name and words:
                assert "left out: 1 file that no broker makes\n" in text and "Alice" not in text
            else:
                assert f"left out, because it is not a JSON file: {path.name}\n" in f"{text}\n"


def test_the_same_name_has_the_same_pseudonym(bundle: Bundle, cases: Library) -> None:
    """In all parts, and in the topics that are made of a group."""
    _, files = bundle(cases.path("ok_540_clean"), "--redact")
    topics = json.loads(files["config/topics.json"])["topicConfigTable"]
    assert all(key == each["topicName"] for key, each in topics.items())
    listed = files["README.txt"].decode()
    about = dict(re.findall(r"^(config/\S+)  \d+ bytes\n +(.*)$", listed, re.MULTILINE))
    assert about["config/topics.json"].startswith("its values, names as pseudonyms")
    queues = {json.loads(line)["topic"] for line in files["queues.jsonl"].splitlines()}
    assert queues & set(topics) and any(each.startswith("%RETRY%redacted-group#") for each in queues)
    groups = set(json.loads(files["config/subscriptionGroup.json"])["subscriptionGroupTable"])
    retried = {each.removeprefix("%RETRY%") for each in topics if each.startswith("%RETRY%")}
    assert retried & groups and {"TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "SELF_TEST_C_GROUP"} < groups
    folders = {json.loads(line)["path"] for line in files["layout.jsonl"].splitlines()}
    assert {f"consumequeue/{each}" for each in queues} & folders


def test_the_names_stay_with_the_sender(bundle: Bundle, cases: Library, tmp_path: Path) -> None:
    """In a file that only its owner reads, next to the archive; it translates every pseudonym back."""
    path = cases.path("ok_540_clean")
    old = os.umask(0o022)
    try:
        found, files = bundle(path, "--redact", "--json", name="v.tar.zst")
    finally:
        os.umask(old)
    names = tmp_path / "v.names.json"
    assert json.loads(found.out)["names"] == str(names) and names.stat().st_mode & 0o777 == 0o600  # noqa: PLR2004
    readme = files["README.txt"].decode()
    assert "in a file next to the archive, which\nstays with" in readme and "v.names" not in readme
    known = json.loads(names.read_bytes())
    with Store.open(path) as store:
        topics = {topic for topic, _ in store.queues}
    queues = {json.loads(line)["topic"] for line in files["queues.jsonl"].splitlines()}
    assert {known.get(each, each) for each in queues} == topics
    assert len(set(known.values())) == len(known)
    before = names.read_bytes()
    assert bundle(path, "--redact", name="v.tgz")[0].code == 4 and names.read_bytes() == before  # noqa: PLR2004
    assert not (tmp_path / "v.tgz").exists()
    assert bundle(path, name="plain.tgz")[0].code == 0 and not (tmp_path / "plain.names.json").exists()


def test_the_finished_archive_is_searched_for_the_names(
    bundle: Bundle, store_copy: Callable[[str], Path]
) -> None:
    """None is found; a group that is named as a member of doctor.json is, and with it where to look."""
    path = store_copy("ok_540_clean")
    found, _ = bundle(path, "--redact", name="a.tgz")
    text = found.out.decode().partition("\nREADME.txt")[0]
    checked = " ".join(text[text.index("checked") :].split())
    assert re.fullmatch(
        r"checked none of \d+ names is in the archive: those of topics, .*keys, tags and message ids of the"
        r" records in records.jsonl. Bodies, and keys of other records, were not searched for\.",
        checked,
    )
    assert max(map(len, text[text.index("checked") :].splitlines())) <= 80  # noqa: PLR2004
    offsets = path / "config" / "consumerOffset.json"
    more = '"pubTopicOne@verdict":{0:5},"pubTopicOne@pseudonyms":{0:5},'  # pseudonyms: a word of README.txt
    offsets.write_text(offsets.read_text().replace('"offsetTable":{', f'"offsetTable":{{{more}', 1))
    found, files = bundle(path, "--redact", "--json", name="b.tgz")
    assert json.loads(found.out)["names_left"] == {"verdict": "doctor.json"}
    assert b"@verdict" not in files["config/consumerOffset.json"]
    found, _ = bundle(path, "--redact", name="c.tgz")
    assert "             doctor.json has the word verdict: see whether it is the name\n" in found.out.decode()


def test_a_log_goes_in_with_the_names_replaced(
    bundle: Bundle, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """Text of bodies stays, and README.txt and the command say so; a large file loses its middle."""
    path = store_copy("ok_540_clean")
    log, long = tmp_path / "acme-store.log", tmp_path / "long.log"
    lines = [f"INFO load {path}/consumequeue/pubTopicOne/0 OK", "WARN pubTopicOne@pub_group_one from"
             " /10.9.8.7:1234, 0:0:0:0:0:0:0:1:10911, at 2026-11-21 17:15:47: body ZqBody"]  # fmt: skip
    log.write_text("\n".join(lines) + "\n")
    long.write_bytes(b"first\n" + b"pubTopicOne %8d\n" * 300_000 % tuple(range(300_000)) + b"last")
    found, files = bundle(path, "--with", log, "--with", long, "--redact", name="a.tgz")
    known = {name: key for key, name in json.loads((tmp_path / "a.names.json").read_bytes()).items()}
    topic, group = known["pubTopicOne"], known["pub_group_one"]
    assert files["added/1.txt"].decode() == (
        f"INFO load {known[str(path)]}/consumequeue/{topic}/0 OK\nWARN {topic}@{group} from"
        f" /{known['10.9.8.7']}:1234, {known['0:0:0:0:0:0:0:1']}:10911, at 2026-11-21 17:15:47: body ZqBody\n"
    )
    large = files["added/2.txt"].decode().splitlines()
    (gap,) = [number for number, line in enumerate(large) if line.startswith("(left out: ")]
    left_out = int(large[gap].split()[2])
    assert large[0] == "first" and large[-1] == "last" and left_out < 3 << 20
    assert all(re.fullmatch(rf"{topic} [ \d]{{8}}", line) for line in (*large[1:gap], *large[gap + 1 : -1]))
    readme = files["README.txt"].decode()
    assert "added/1.txt" in readme and "and text of message bodies" in readme and "acme" not in readme
    assert max(map(len, readme.splitlines())) <= 80  # noqa: PLR2004
    assert b"Files of added/ may have such" in found.out and b"none of" in found.out
    _, files = bundle(path, "--with", log, name="b.tgz")
    assert files["added/1.txt"] == log.read_bytes() and b"acme-store.log" in files["README.txt"]
    assert "were added" not in bundle(path, name="c.tgz")[1]["README.txt"].decode()


@pytest.mark.parametrize("kind", ["folder", "missing", "pipe", "gzip"])
def test_what_is_no_text_file_is_not_added(bundle: Bundle, cases: Library, tmp_path: Path, kind: str) -> None:
    """One error, and no archive."""
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "gzip":
        path.write_bytes(gzip.compress(b"x" * 1000))
    found, _ = bundle(cases.path("ok_540_clean"), "--with", path)
    reason = {
        "folder": f"cannot read {path}: it is not a plain file",
        "pipe": f"cannot read {path}: it is not a plain file",
        "missing": f"cannot read {path}: No such file or directory",
        "gzip": f"this is not a text file: {path}\n  unpack a compressed log first",
    }[kind]
    assert (found.code, found.err) == (3, f"rmqtool: {reason}\n") and not (tmp_path / "b.tar.gz").exists()


def test_secrets_and_what_is_refused(bundle: Bundle, cases: Library, tmp_path: Path) -> None:
    """Secrets of broker.conf stay out; an existing file, one in the store, and another suffix are refused."""
    path = cases.path("ok_540_clean")
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=secret-broker\nnamesrvAddr=ns.example:9876;10.1.2.3:9876\n"
                    "aclSecretKey=hunter2\naccessKey=abcdef\nflushDiskType=ASYNC_FLUSH\n")  # fmt: skip
    _, files = bundle(path, "--broker-conf", conf)
    known = json.loads(files["broker.conf.json"])
    assert known["flushDiskType"] == "ASYNC_FLUSH" and known["brokerName"] == "secret-broker"
    assert b"hunter2" not in b"".join(files.values()) and b"abcdef" not in b"".join(files.values())
    _, files = bundle(path, "--broker-conf", conf, "--redact", name="c.tar.gz")
    data = b"".join(files.values())
    assert not any(each in data for each in (b"secret-broker", b"ns.example", b"10.1.2.3", b"hunter2"))
    assert bundle(path)[0].code == 4
    assert bundle(path, name="b.zip")[0].code == 2
    code = main(["bundle", str(path), "--output", str(path / "x.tar.gz")])
    assert code == 4 and not (path / "x.tar.gz").exists()


def test_what_may_be_a_secret_or_a_name_is_left_out(bundle: Bundle, cases: Library, tmp_path: Path) -> None:
    """Of broker.conf: passwords in values too, and with --redact every text that is not known."""
    conf = tmp_path / "broker.conf"
    secrets = {
        "initAuthenticationUser": '{"username":"acme1","password":"hush1"}',
        "metricsGrpcExporterHeader": "Authorization:hush2", "initRocketmqAclPass": "hush3",
    }  # fmt: skip
    names = {
        "controllerAddr": "ctl.acme2.example:9878", "metricsLabel": "instance_id:acme3",
        "authConfigPath": "/acme4",
    }  # fmt: skip
    plain = {"fileReservedTime": "72", "traceOn": "true", "messageDelayLevel": "1s 5s 2h", "deleteWhen": "04"}
    names["storePathCommitLog"] = str(cases.path("ok_540_clean") / "commitlog")
    conf.write_text("".join(f"{name}={value}\n" for name, value in {**secrets, **names, **plain}.items()))
    _, files = bundle(cases.path("ok_540_clean"), "--broker-conf", conf)
    known = json.loads(files["broker.conf.json"])
    assert known == dict.fromkeys(secrets, "(left out)") | names | plain
    _, files = bundle(cases.path("ok_540_clean"), "--broker-conf", conf, "--redact", name="c.tar.gz")
    known = json.loads(files["broker.conf.json"])
    assert plain.items() <= known.items() and known["storePathCommitLog"].startswith("redacted-path#")
    assert not any(b"acme" in data or b"hush" in data for data in files.values())


def test_names_of_other_files_are_replaced(
    bundle: Bundle, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """Files and folders that no broker makes; those of a broker keep their names."""
    root = store_copy("ok_540_clean")
    (root / "acme-orders.txt").write_text("x")
    (root / "commitlog/acme-notes").mkdir()
    (root / "commitlog/acme-notes/acme.txt").write_text("x")
    of_rocksdb = {"config/topics", "config/consumerOffsets", "config/subscriptionGroups"}
    for name in of_rocksdb:
        (root / name).mkdir()
    (root / "compaction").mkdir(exist_ok=True)
    (root / "compaction/position-checkpoint").write_text("{}")
    _, files = bundle(root, "--redact")
    assert not any(b"acme" in data for data in files.values())
    shown = {json.loads(line)["path"] for line in files["layout.jsonl"].splitlines()}
    kept = {"commitlog/00000000000000000000", "config/topics.json", "checkpoint", "index"}
    kept |= {*of_rocksdb, "compaction/position-checkpoint"}
    assert kept <= shown and not any(path.startswith("config/redacted-file#") for path in shown)
    others = files["config/others.txt"].decode()
    assert "no broker makes" not in others and "because it is not a JSON file: topics\n" in others


HOSTILE = {
    "consumerFilter.json": {"filterDataByTopic": {"ZqTopic": {"topic": "ZqTopic2", "groupFilterData": {}}}},
    "subscriptionGroup.json": {
        "subscriptionGroupTable": {
            "g": {"groupName": "ZqGroup", "subscriptionDataSet": [{"subString": "ZqTag"}]},
        },
        "forbiddenTable": {"ZqForbidden": {"ZqTopic3": 1}},
    },
    "consumerOffset.json": {"offsetTable": {"a@b": {"0": 1}}, "groupTopicMap": {"ZqGroup2": ["ZqTopic4"]}},
    "delayOffset.json": {"offsetTable": {"1": 2, "ZqKey": "ZqValue"}},
    "Zq.json": {},
}  # fmt: skip


@pytest.mark.parametrize(
    "broken", ['{"topicConfigTable":{"a":"ZqTopic" 1}}', '{"topicConfigTable":{"ZqTopic\\x":{}}}']
)
def test_names_in_odd_places_are_left_out(
    broken: str, bundle: Bundle, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """Where no reader looks for names, in what cannot be parsed, and in settings."""
    root = store_copy("ok_540_clean")
    for name, document in HOSTILE.items():
        (root / "config" / name).write_text(json.dumps(document))
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_text(broken)
    conf = tmp_path / "ZqConf.conf"
    conf.write_text(
        "storeType=Zqtype\nbrokerRole=ZqRole\ndeleteWhen=04;Zq\nmessageDelayLevel=1s Zq\n"
        "storePathIndex=../Zq/./i\nbrokerIP2=http://Zq.host/\nZq.key.name=1\n"
    )
    _, files = bundle(root, "--broker-conf", conf, "--redact")
    leaks = {name: re.findall(rb".{,40}Zq.{,20}", data) for name, data in files.items() if b"Zq" in data}
    assert not leaks and not any("Zq" in name for name in files)
    assert json.loads(files["config/consumerOffset.json"])["offsetTable"]


def test_names_are_replaced_where_they_stand_alone() -> None:
    """Longer names first; parts of other words stay."""
    redaction = Redaction()
    redaction.add("topic", ["Orders", "Orders-new", "TBW102", "%RETRY%g", "a.b"])
    redaction.add("group", ["g"])
    text = "Orders Orders-new Orders2 %RETRY%g@g [::1]:9 1.2.3.4:5 x/Orders/0 TBW102 gg 1.2.3.4 a.b ab"
    assert redaction.text(text) == (
        "redacted-topic#1 redacted-topic#2 Orders2 %RETRY%redacted-group#1@redacted-group#1"
        " redacted-host#2:9 redacted-host#1:5 x/redacted-topic#1/0 TBW102 gg redacted-host#1"
        " redacted-topic#3 ab"
    )
    assert redaction.left_in(text) == {"Orders", "Orders-new", "%RETRY%g", "g", "a.b", "[::1]", "1.2.3.4"}
    assert redaction.left_in(redaction.text(text)) == set()
    value: Any = {"Orders": [{"x": "Orders"}, 5, None]}
    assert redaction.value(value, keys_in="") == {"redacted-topic#1": [{"x": "redacted-topic#1"}, 5, None]}
    assert redaction.value(value, keys_in=None) == {"Orders": [{"x": "redacted-topic#1"}, 5, None]}
    named: Any = [{"g": 1, "detail": {"x": {"g": 1}}}]
    assert redaction.value(named, keys_in="detail") == [{"g": 1, "detail": {"x": {"redacted-group#1": 1}}}]


def test_the_time_does_not_grow_with_the_number_of_names() -> None:
    """20,000 topics in as many lines: one pattern of all names took 5 s, this takes 0.2 s."""
    redaction = Redaction()
    redaction.add("topic", [f"{number}_orders" for number in range(20_000)])
    began = time.process_time()
    for number in range(20_000):
        assert (
            redaction.text(f"consumequeue/{number}_orders/0") == f"consumequeue/redacted-topic#{number + 1}/0"
        )
    assert time.process_time() - began < 2  # noqa: PLR2004


def test_all_foreign_names_are_replaced(bundle: Bundle, store_copy: Callable[[str], Path]) -> None:
    """However many there are, and wherever they are listed."""
    path = store_copy("ok_540_small_propcrc")
    for name, count in (("a", 1), ("z", 20_001)):
        (path / name).mkdir()
        for number in range(count):
            (path / name / f"Mine-{name}-{number}").touch()
    _, files = bundle(path, "--redact")
    assert b"Mine-" not in b"".join(files.values())


def test_a_file_whose_names_cannot_be_found_is_left_out(
    bundle: Bundle, store_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wrong number in a table, or a file that rmqtool does not know; the archive keeps its own names."""
    store = store_copy("ok_540_small_propcrc")
    config = store / "config"
    offsets = '{"offsetTable":{"secretTopic@secretGroup":{"0":5},"x@y":{"0":1' + "0" * 30 + "}}}"
    (config / "consumerOffset.json").write_text(offsets)
    (config / "other.json").write_text('{"secretName":1}')
    monkeypatch.chdir(store.parent)
    renamed = store.rename("host")
    result, files = bundle(Path(renamed.name), "--redact")
    assert result.code == 0 and {"host.json", "README.txt", "config/consumerOffset.json.txt"} <= set(files)
    assert not any(
        each in b"".join(files.values()) for each in (b"secretTopic", b"secretGroup", b"secretName")
    )
    _, files = bundle(Path(renamed.name), name="plain.tar.gz")
    assert (
        b"secretGroup" in files["config/consumerOffset.json"] and b"secretName" in files["config/other.json"]
    )


def test_the_name_of_the_folder_is_a_word_elsewhere(
    bundle: Bundle, store_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A relative path such as `store` is replaced as a path, not in `kind` and in sentences."""
    store = store_copy("ok_540_clean")
    monkeypatch.chdir(store.parent)
    store.rename("store")
    _, files = bundle(Path("store"), "--redact")
    info = json.loads(files["info.json"])
    assert info["kind"] == "store" and info["path"].startswith("redacted-path#")
    assert str(store.parent).encode() not in b"".join(files.values())
    page = tmp_path / "page.html"
    assert main(["report", "store", "--output", str(page), "--redact"]) in (0, 1)
    assert "the store" in page.read_text() and str(store.parent) not in page.read_text()


def test_names_inside_the_names_of_topics(
    bundle: Bundle, store_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    """A broker names topics after itself, its cluster, groups and light queues: all parts are replaced."""
    root = store_copy("bad_cl03_body_crc")
    for file in (root / "config").glob("*.json*"):
        text = file.read_text().replace("broker-a", "srvbank17").replace("DefaultCluster", "BankProd")
        file.write_text(text)
    for name in ("rmq_sys_SYNC_BROKER_MEMBER_srvbank17", "rmq_sys_REVIVE_LOG_BankProd", "%LMQ%AcmeLight",
                 "rmq_sys_TRACE_DATA_AcmeRegion", "%RETRY%AcmeGroup_AcmeTopic", "%DLQ%AcmeGroup",
                 "ACME_REPLY_TOPIC"):  # fmt: skip
        (root / "consumequeue" / name / "0").mkdir(parents=True)
    offsets = {f"rmq_sys_REVIVE_LOG_{each}@AcmeReader": {"0": 0} for each in ("BankProd", "BankTest")}
    (root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    _, files = bundle(root, "--redact")
    page = tmp_path / "page.html"
    assert main(["report", str(root), "--output", str(page), "--redact"]) in (0, 1)
    texts = {**files, "page": html.unescape(page.read_text()).encode()}
    for name, data in {**texts, "names": "".join(files).encode()}.items():
        assert not re.findall(rb"(?i).{,40}(?:srvbank|Bank|Acme|DefaultCluster).{,20}", data), name
    topics = json.loads(files["config/topics.json"])["topicConfigTable"]
    assert {"redacted-cluster#1", "redacted-cluster#1_REPLY_TOPIC", "rmq_sys_REVIVE_LOG_redacted-cluster#1",
            "redacted-broker#1", "rmq_sys_SYNC_BROKER_MEMBER_redacted-broker#1",
            "TBW102"} <= set(topics)  # fmt: skip
    folders = {json.loads(line)["path"] for line in files["layout.jsonl"].splitlines()}
    shown = {re.sub(r"\d+$", "N", path.split("/")[1]) for path in folders if path.startswith("consumequeue/")}
    assert {"%LMQ%redacted-topic#N", "%RETRY%redacted-group#N", "rmq_sys_redacted-topic#N"} <= shown
    assert b"rmq_sys_REVIVE_LOG_redacted-cluster#2@redacted-group#" in files["config/consumerOffset.json"]


def test_the_damaged_record_is_there_with_its_neighbours(bundle: Bundle, cases: Library) -> None:
    """What a vendor asks for first; the names of a broker's own properties stay, those of users do not."""
    path = cases.path("bad_cl03_body_crc")
    _, files = bundle(path, "--redact")
    rows = [json.loads(line) for line in files["records.jsonl"].splitlines()]
    found = {row["part"]: row for row in rows if row["part"].endswith(" damage")}
    with Store.open(path) as store:
        damaged = next(event for event in store.events() if getattr(event, "status", 0))
    assert found["at damage"]["physical_offset"] == damaged.physical_offset
    assert found["at damage"]["status"] == ["CL03"]
    before, after = found["before damage"], found["after damage"]
    assert before["physical_offset"] + before["size"] == damaged.physical_offset
    assert found["at damage"]["physical_offset"] + found["at damage"]["size"] == after["physical_offset"]
    results = json.loads(files["doctor.json"])["results"]
    assert next(each for each in results if each["name"] == "CL03")["physical_offsets"] == [
        damaged.physical_offset
    ]
    names = {name for row in rows for name in row.get("properties", {})}
    assert "UNIQ_KEY" in names and all(
        re.fullmatch(r"property \d+|[A-Z_0-9]+|__transactionId__", name) for name in names
    )


def test_a_file_that_is_not_used_yet_is_no_damage(bundle: Bundle, store_copy: Callable[[str], Path]) -> None:
    """A broker allocates the next log file in advance; every row says which part of the log it is."""
    path = store_copy("ok_540_clean")
    with Store.open(path) as store:
        last = store.layout.commit_log[-1]
    unused = last.file_from_offset + last.size
    with (path / "commitlog" / f"{unused:020}").open("wb") as file:
        file.truncate(last.size)
    _, files = bundle(path)
    assert "CL24" in {each["name"] for each in json.loads(files["doctor.json"])["results"]}
    rows = [json.loads(line) for line in files["records.jsonl"].splitlines()]
    assert {row["part"] for row in rows} == {"first of file", "last of log"}
    (row,) = [row for row in rows if row["physical_offset"] == unused]
    assert row["left_out"] == "the log ends before this file"


def test_a_name_that_the_page_escapes_or_shortens_in_a_sentence(
    store_copy: Callable[[str], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A group whose name has a control character, and a long one, lag: the verdict names neither."""
    store = store_copy("ok_540_clean")
    with Store.open(store) as opened:
        topic = next(topic for topic, _ in opened.queues if topic.startswith("pub"))
    groups = "secret\x1bGroup", "G" + "Long" * 20
    offsets = {f"{topic}@{group}": {"0": 0} for group in groups}
    (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    output = tmp_path / "page.html"
    assert main(["report", str(store), "--output", str(output), "--redact"]) in (0, 1)
    capfd.readouterr()
    page = html.unescape(output.read_text())
    assert "lag by" in page and "redacted-group#" in page
    assert not [each for each in ("secret", "LongLong") if each in page]
