"""What the help of a command shows besides its options: their purpose, examples, related pages."""

from __future__ import annotations

from collections.abc import Mapping

READ, SHOW, OUTPUT, CHANGE, BEHAVIOUR, MESSAGE, NEW, NETWORK = (
    "What to read",
    "What to show",
    "Where it goes",
    "What to change",
    "Behaviour",
    "The message",
    "The new store",
    "The network",
)
PURPOSES = (MESSAGE, READ, NEW, NETWORK, CHANGE, SHOW, OUTPUT, BEHAVIOUR)
"""The sections of options in their order."""

_PURPOSE_OF = {
    READ: "--what --part --commitlog --read-only-commitlog --commitlog-a --commitlog-b --broker-conf --topic"
    " --exclude-topic --queue --tag --filter --grep --key --keys-from --uniq-key --msg-id --offset"
    " --queue-offset --time --bound --since --until --time-field --from-offset --to-offset --from --group"
    " --retry --last --limit --max --scan --pass --limit-bytes --sample --reverse --follow --max-duration"
    " --at-most --read-limit --host-root --no-host --index --common --all --at --code --input --input-format"
    " --skip-rows --only --store",
    SHOW: "--gaps --explain --raw --stats-only --format --json --format-string --fields --body --body-limit"
    " --tz --trace --by --largest --duplicates --delayed --transactions --sort --plot --severity --queues"
    " --residency --differences --broker --broker-heap --columns --count --group-by --sql --verify"
    " --stats --rebuild-report --show --nagios --prometheus",
    OUTPUT: "--output --output-format --compression --partition-by --file-size --row-group --cursor-file"
    " --spreadsheet --redact",
    CHANGE: "--mode --fill --apply --plan --write-plan --backup-dir --undo --keep-hours --until-free --before"
    " --archive --create-topic --rename-topic",
}
# Options whose purpose depends on the command.
_PURPOSE_IN: Mapping[str, Mapping[str, str]] = {
    "append": {
        MESSAGE: "--topic --queue --tag --key --uniq-key --property --body --body-file --flag --delay-level"
        " --store-time --born-time --store-host --born-host --transaction --group --commit --rollback",
        NEW: "--create --profile --commitlog-file-size --queue-file-size --index-slots --index-entries"
        " --create-topic --queues --reserve --property-crc",
    },
    "copy": {NEW: "--rename-topic --profile --commitlog-file-size --reserve"},
    "deliver": {CHANGE: "--at"},
    "doctor": {SHOW: "--all"},
    "expire": {CHANGE: "--at --broker", SHOW: "--all"},
    "reset-offset": {CHANGE: "--group --from --since --topic --exclude-topic --queue"},
    "export": {SHOW: "--columns --body --raw"},
    "lookup": {BEHAVIOUR: "--scan --broker"},
    "spark-scan": {OUTPUT: "--output --output-format --partition-by"},
    "receive": {
        READ: "--from --once --until --config-every --ha-only --controller --truncate",
        CHANGE: "--dispatch --commitlog-file-size --reserve --max-age --max-bytes --archive",
        NETWORK: "--metrics",
    },
    "send-log": {READ: "--once --listen --slave --controller"},
    "warm": {READ: "--queues"},
    "serve": {
        READ: "--live --max-messages",
        NETWORK: "--port --bind --advertise --vip-channel --broker-name --cluster-name --metrics --tls-cert"
        " --tls-key",
        BEHAVIOUR: "--offsets --start --quiet --progress",
    },
    "stats": {SHOW: "--all", READ: "--at --limit"},
}

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "rmqtool": (
        ("See what is wrong with a store, and what to run next", "rmqtool doctor /data/rocketmq/store"),
        ("Find a message by its key, and which groups are past it",
         "rmqtool lookup STORE ORDER-17 --trace"),
        ("Read the newest messages of a topic, as JSON lines",
         "rmqtool dump STORE --topic orders --reverse --limit 10 --json"),
        ("Take the messages out, for another program", "rmqtool export STORE --output orders.csv"),
    ),
    "info": (
        ("Show a broker's store, even while the broker runs", "rmqtool info /data/rocketmq/store"),
        ("Show the range of every queue", "rmqtool info STORE --queues"),
        ("Get the same as JSON, for a script", "rmqtool info STORE --json"),
    ),
    "browse": (
        ("Browse a broker's store, even while the broker runs", "rmqtool browse /data/rocketmq/store"),
        ("Browse a backup, with times in another zone",
         "rmqtool browse backup.tar.zst --tz Asia/Shanghai"),
        ("Browse a store that lies on S3", "rmqtool browse s3://backup/broker-a/store"),
    ),
    "dump": (
        ("Show the messages of a topic in the last hour",
         "rmqtool dump STORE --topic orders --since '1h ago'"),
        ("Explain the bytes of the record at an offset", "rmqtool dump STORE --explain 1048576"),
        ("Show the newest ten messages with some fields only",
         "rmqtool dump STORE --reverse --limit 10 --fields store_time,topic,keys,body"),
        ("Show messages whose body contains a text", "rmqtool dump STORE --grep 'order-17'"),
        ("Write the key and the body of each message", r"rmqtool dump STORE --topic orders -f '%k %s\n'"),
    ),
    "lookup": (
        ("Find a message by its key, and what became of it", "rmqtool lookup STORE ORDER-17 --trace"),
        ("Find a message by the id that the producer got",
         "rmqtool lookup STORE C0A8010200002A9F0000000000000000"),
        ("Find the offset of a queue at a time",
         "rmqtool lookup STORE --topic orders --queue 0 --time '2026-01-31 14:30'"),
    ),
    "tail": (
        ("Show the last ten messages of a topic", "rmqtool tail STORE --topic orders --last 10"),
        ("Follow a topic while the broker runs", "rmqtool tail STORE --topic orders --follow"),
        ("Show what a consumer group would get next", "rmqtool tail STORE --topic orders --group billing"),
    ),
    "stats": (
        ("Count messages by topic", "rmqtool stats STORE"),
        ("Show which groups lag", "rmqtool stats STORE --by group"),
        ("Find what filled the disk yesterday",
         "rmqtool stats STORE --by topic --since yesterday --until today"),
    ),
    "report": (
        ("Write a page with everything about a store", "rmqtool report STORE --output report.html"),
        ("Read a running broker's store gently", "rmqtool report STORE --output report.html --io-limit 100M"),
        ("Write a page for others, without the names of topics, groups and hosts",
         "rmqtool report STORE --output report.html --redact"),
    ),
    "sql": (
        ("Count messages by topic and tag",
         "rmqtool sql STORE 'SELECT topic, tags, count(*) FROM messages GROUP BY ALL'"),
        ("Show the largest body of each topic",
         "rmqtool sql STORE 'SELECT topic, max(bodyLength) FROM messages GROUP BY 1'"),
        ("Open a prompt", "rmqtool sql STORE"),
    ),
    "verify": (
        ("Check everything", "rmqtool verify STORE"),
        ("Check a running broker's store gently", "rmqtool verify STORE --io-limit 100M --limit-bytes 10G"),
        ("Show only warnings and errors, as JSON lines", "rmqtool verify STORE --severity warning --json"),
    ),
    "doctor": (
        ("Find out what is wrong, and what to run next", "rmqtool doctor STORE"),
        ("Look at a large store on a slow disk", "rmqtool doctor STORE --read-limit 32M"),
        ("Write metrics for Prometheus every minute",
         "rmqtool doctor STORE --prometheus --output rmqtool.prom --watch 60"),
    ),
    "diff": (
        ("Compare a master with its slave", "rmqtool diff /data/master/store /data/slave/store"),
        ("Check that an older backup agrees with its source", "rmqtool diff STORE BACKUP --common"),
        ("Get the differences as JSON, for a script", "rmqtool diff STORE BACKUP --json"),
    ),
    "bundle": (
        ("Write an archive to attach to a bug report", "rmqtool bundle STORE --output bundle.tar.gz"),
        ("Replace all names with pseudonyms", "rmqtool bundle STORE --output bundle.tar.zst --redact"),
        ("Add the broker's log of its start",
         "rmqtool bundle STORE --with store.log --output bundle.tar.gz"),
        ("Include the broker's configuration",
         "rmqtool bundle STORE --broker-conf broker.conf --output bundle.tar.gz"),
    ),
    "problems": (
        ("List every kind of damage", "rmqtool problems"),
        ("Explain two codes", "rmqtool problems CL21 CQ13"),
        ("Get all codes as JSON lines, for a script", "rmqtool problems --json"),
    ),
    "recover": (
        ("Predict what a broker's start would do, and show the plan of a repair", "rmqtool recover STORE"),
        ("Repair the store", "rmqtool recover STORE --apply"),
        ("Undo the repair", "rmqtool recover STORE --undo STORE.rmqtool-backup-20260131-143000"),
    ),
    "rebuild": (
        ("Show what disagrees with the log", "rmqtool rebuild STORE"),
        ("Rebuild that part of the store", "rmqtool rebuild STORE --apply"),
        ("Rebuild the queues of one topic", "rmqtool rebuild STORE --only queues --topic orders --apply"),
    ),
    "reset-offset": (
        ("Show what a group would receive again from two hours ago on",
         "rmqtool reset-offset STORE --group billing --since '2h ago'"),
        ("Let all groups skip what they have not consumed of a topic",
         "rmqtool reset-offset STORE --group '*' --topic orders --from latest --apply"),
        ("Give a group its first offset in a topic, after consumerOffset.json was lost",
         "rmqtool reset-offset STORE --group shipping --topic orders --since '2026-01-31 14:30' --apply"),
    ),
    "expire": (
        ("Show what the broker's rules would delete", "rmqtool expire STORE --broker-conf broker.conf"),
        ("Free space on the disk, and keep a copy of the files elsewhere",
         "rmqtool expire STORE --until-free 200G --archive /backup/log --apply"),
        ("Delete files older than three days", "rmqtool expire STORE --keep-hours 72 --apply"),
    ),
    "append": (
        ("Append one message", "rmqtool append STORE --topic orders --tag paid --key order-17 --body hello"),
        ("Append the rows of a file to a new store", "rmqtool append NEW --create --input messages.parquet"),
        ("Copy messages from another store",
         "rmqtool dump OTHER --topic orders --json | rmqtool append STORE --input -"),
    ),
    "deliver": (
        ("Show delayed messages that are due", "rmqtool deliver STORE"),
        ("Deliver the messages that are due", "rmqtool deliver STORE --apply"),
        ("Show what was due at an earlier time", "rmqtool deliver STORE --at '2026-01-31 14:30'"),
    ),
    "export": (
        ("Write a topic to Parquet", "rmqtool export STORE --output messages.parquet --topic orders"),
        ("Write all topics to S3, partitioned by topic and date",
         "rmqtool export STORE --output s3://lake/messages/ --partition-by topic,date"),
        ("Write only what is new since the last run",
         "rmqtool export STORE --output day/ --output-format jsonl --cursor-file c.json"),
    ),
    "copy": (
        ("Copy the last week of a topic", "rmqtool copy STORE --output NEW --topic orders --since '7d ago'"),
        ("Rename a topic", "rmqtool copy STORE --output NEW --rename-topic orders=orders_old"),
        ("Write a store for an older broker", "rmqtool copy STORE --output NEW --profile 4.9"),
    ),
    "spark-scan": (
        ("Count the messages of several brokers", "rmqtool spark-scan STORE OTHER --count"),
        ("Run a query in SQL", "rmqtool spark-scan STORE --sql 'SELECT max(storeTimestamp) FROM messages'"),
        ("Check many stores on a cluster",
         "rmqtool spark-scan STORE OTHER --verify --master spark://host:7077"),
    ),
    "warm": (
        ("Read the newest gibibyte after a restart of the host", "rmqtool warm STORE"),
        ("Also read the queues and the index of these messages",
         "rmqtool warm STORE --last 10G --queues --index"),
        ("Read slowly, to leave most of the device to other programs",
         "rmqtool warm STORE --last 50G --io-limit 100M"),
    ),
    "receive": (
        ("Keep a live backup of a broker, on which another one can start at once",
         "rmqtool receive 10.0.0.1:10911 /backup/store --dispatch"),
        ("Copy what the broker has now, and stop", "rmqtool receive 10.0.0.1:10911 /backup/store --once"),
        ("Receive what was stored before a time, and stop",
         "rmqtool receive 10.0.0.1:10911 NEW --until '2026-01-31 14:30'"),
    ),
    "send-log": (
        ("Seed a new 4.9 slave that has haMasterAddress=10.0.0.2:10912",
         "rmqtool send-log STORE --listen 10.0.0.2:10912 --once"),
        ("Send a running 5.x slave the log of a broker that is down",
         "rmqtool send-log STORE --listen 10.0.0.2:10912 --slave 10.0.0.3:10911"),
        ("Copy a log to a host where receive --ha-only runs",
         "rmqtool send-log STORE --listen 10.0.0.2:10912"),
    ),
    "serve": (
        ("Let consumers and mqadmin read a store while the broker is down", "rmqtool serve STORE"),
        ("Let other machines read it, and keep what they commit",
         "rmqtool serve STORE --bind 0.0.0.0 --offsets offsets.json"),
        ("Serve a backup in object storage under the name of its broker",
         "rmqtool serve s3://backup/broker-a --broker-conf broker.conf --port 9876"),
    ),
    "help": (
        ("Show the manual of a command", "rmqtool help recover"),
        ("Read what to do when a broker does not start", "rmqtool help recovery"),
        ("Read how messages are stored", "rmqtool help concepts"),
    ),
    "completion": (
        ("Install it for all users of bash",
         "rmqtool completion bash | sudo tee /etc/bash_completion.d/rmqtool"),
        ("Install it for your own fish",
         "rmqtool completion fish > ~/.config/fish/completions/rmqtool.fish"),
        ("Install it for your own zsh, if ~/.zfunc is in FPATH",
         "rmqtool completion zsh > ~/.zfunc/_rmqtool"),
    ),
}  # fmt: skip
"""Examples of each command: what for, and the line to type."""

RELATED: Mapping[str, str] = {
    "info": "doctor(1) verify(1) stats(1) store(5) recovery(7)",
    "browse": "info(1) lookup(1) tail(1) doctor(1) verify(1)",
    "dump": "lookup(1) tail(1) export(1) store(5)",
    "lookup": "dump(1) tail(1) stats(1)",
    "tail": "lookup(1) stats(1) dump(1)",
    "stats": "info(1) lookup(1) expire(1) reset-offset(1)",
    "report": "doctor(1) verify(1) stats(1) recover(1)",
    "sql": "stats(1) dump(1) spark-scan(1) spark(7)",
    "verify": "problems(1) recover(1) rebuild(1) diff(1) recovery(7)",
    "doctor": "info(1) verify(1) recover(1) expire(1) problems(1) recovery(7)",
    "diff": "verify(1) append(1) copy(1) recovery(7)",
    "bundle": "doctor(1) info(1) verify(1)",
    "problems": "verify(1) recover(1) recovery(7)",
    "recover": "verify(1) rebuild(1) recovery(7)",
    "rebuild": "verify(1) recover(1) recovery(7)",
    "reset-offset": "stats(1) tail(1) recover(1) recovery(7)",
    "expire": "stats(1) info(1) recovery(7)",
    "append": "copy(1) deliver(1) dump(1) python(7)",
    "deliver": "append(1) stats(1) concepts(7)",
    "export": "dump(1) copy(1) spark-scan(1) python(7)",
    "copy": "export(1) append(1)",
    "spark-scan": "export(1) stats(1) spark(7)",
    "warm": "info(1) tail(1) concepts(7)",
    "receive": "send-log(1) rebuild(1) verify(1) diff(1) recovery(7)",
    "send-log": "receive(1) copy(1) recovery(7)",
    "serve": "tail(1) verify(1) copy(1) recovery(7)",
    "help": "problems(1) recovery(7) problems(7) concepts(7) store(5) python(7) spark(7)",
    "completion": "help(1)",
}
"""The pages that the page of each command names."""


def purpose(command: str, option: str) -> str:
    """Returns the section for an option of a command; `option` is its long name."""
    for table in (_PURPOSE_IN.get(command, {}), _PURPOSE_OF):
        for title, names in table.items():
            if option in names.split():
                return title
    return BEHAVIOUR


def named_options() -> set[str]:
    """Returns every option that the tables of purposes name."""
    tables = (_PURPOSE_OF, *_PURPOSE_IN.values())
    return {name for table in tables for names in table.values() for name in names.split()}
