"""A real broker with its name server on 127.0.0.1, over a store that the test gives."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.interop.processes import JavaProcess, LabError, Program, wait_until

BROKER_VERSIONS = ("4.9.7", "5.4.0")
DELAY_LEVELS = "1s 3s 5s 1h"
LOG_FILE_SIZE = 1 << 20
QUEUE_FILE_SIZE = 20_000
INDEX_SLOTS, INDEX_ENTRIES = 1000, 4000
_NAME_SERVER = "org.apache.rocketmq.namesrv.NamesrvStartup"
_BROKER = "org.apache.rocketmq.broker.BrokerStartup"
_PORT_TRIES = 5
_BOOT_WORDS = "boot success"

STORE_SETTINGS = {
    "mappedFileSizeCommitLog": str(LOG_FILE_SIZE),
    "mappedFileSizeConsumeQueue": str(QUEUE_FILE_SIZE),
    "maxHashSlotNum": str(INDEX_SLOTS),
    "maxIndexNum": str(INDEX_ENTRIES),
    "maxMessageSize": "524288",
    "messageDelayLevel": DELAY_LEVELS,
    "fileReservedTime": "87600",  # nothing of a test is ever too old
    "diskMaxUsedSpaceRatio": "95",
}
STORE_SETTINGS_5 = {
    "mappedFileSizeTimerLog": str(LOG_FILE_SIZE),
    "mapperFileSizeBatchConsumeQueue": "46000",
    "compactionMappedFileSize": str(LOG_FILE_SIZE),
    "compactionCqMappedFileSize": str(QUEUE_FILE_SIZE),
}
_BROKER_SETTINGS = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerId": "0",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "autoCreateTopicEnable": "true",
    "traceTopicEnable": "true",
    "registerNameServerPeriod": "10000",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "8000",
    "transactionOpBatchInterval": "100",  # 5.x: else it asks again before it has noted the answer
    "transactionMetricFlushInterval": "300",  # 5.x: a thread spins for so long, 10 s else
    # A busy machine is not a busy broker: else it refuses what has waited for 200 ms.
    "waitTimeMillsInSendQueue": "60000",
    "waitTimeMillsInPullQueue": "60000",
    "waitTimeMillsInTransactionQueue": "60000",
    "osPageCacheBusyTimeOutMills": "60000",
}
_NEW_TOPICS = "TBW102"
"""TopicValidator.AUTO_CREATE_TOPIC_KEY_TOPIC: the route to it is the one of topics that are not there yet."""
_PROPERTIES = (
    # A disk that is nearly full must not matter.
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98",
    # Else every start makes two keys and certificates, and loads all of TLS: half of its processor time.
    "-Dtls.server.mode=disabled",
)
_LOGBACK = '<configuration><root level="WARN"/></configuration>\n'


def store_settings(version: str) -> dict[str, str]:
    """The store's settings that every lab broker of a version has: small files."""
    return STORE_SETTINGS if version.startswith("4.") else STORE_SETTINGS | STORE_SETTINGS_5


def is_free(port: int) -> bool:
    """Whether nobody listens on a port, on any address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def free_port(*neighbours: int) -> int:
    """A port that is free now, and so are those at these distances from it.

    Below the range that systems hand out for outgoing connections, which would take it meanwhile.
    """
    for _ in range(1000):
        port = random.SystemRandom().randrange(10_100, 32_000)
        if all(is_free(port + distance) for distance in (0, *neighbours)):
            return port
    raise LabError("no free ports")


def write_settings(path: Path, settings: Mapping[str, str]) -> None:
    """A properties file."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), "utf-8")


class Broker:
    """One broker over one store. `start` may be called again after `stop` or `kill`: on the same ports."""

    def __init__(
        self,
        version: str,
        folder: Path,
        store: Path,
        settings: Mapping[str, str] | None = None,
        *,
        has_controller: bool = False,
        name_server: str = "",
        properties: Sequence[str] = (),
    ) -> None:
        """Make it; a `name_server` that runs already is not started. `properties` are options of its JVMs."""
        self._properties = (*_PROPERTIES, *properties)
        self.has_controller = has_controller
        self.version = version
        self.folder = folder
        self.store = store
        self.settings = dict(settings or {})
        self.name_server = name_server
        self.port = 0
        self._stack = ExitStack()
        self.process: JavaProcess | None = None

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _boot(self, main: str, config: Path, heap_mb: int) -> JavaProcess | None:
        """The program once it says that it is up; None when a port was taken meanwhile."""
        home = config.parent
        (home / "conf").mkdir(exist_ok=True)
        for part in ("broker", "namesrv"):
            (home / "conf" / f"logback_{part}.xml").write_text(_LOGBACK, "utf-8")
        line = ["Launch", main, "-c", str(config)]
        process = JavaProcess(self.version, line, home=home, heap_mb=heap_mb, properties=self._properties)
        try:
            wait_until(lambda: process.ended or _BOOT_WORDS in process.log_text(), f"{main} is up")
        except LabError as error:
            raise process.error(str(error)) from error
        finally:
            if not process.ended and _BOOT_WORDS not in process.log_text():
                process.kill()
        if _BOOT_WORDS in process.log_text():
            self._stack.callback(process.kill)
            return process
        if "Address already in use" in process.log_text() or "BindException" in process.log_text():
            process.kill()
            return None
        try:
            raise process.error(f"{main} did not start")
        finally:
            process.kill()

    def _boot_anywhere(self, main: str, configs: Iterator[Path], heap_mb: int) -> JavaProcess:
        for config in configs:
            process = self._boot(main, config, heap_mb)
            if process is not None:
                return process
        raise LabError(f"{main} found no free port in {_PORT_TRIES} tries")

    def start(self) -> None:
        """Start the name server, when there is none yet, and the broker; returns when both are up.

        Not yet registered, maybe: a broker of a busy machine whose first try takes too long tries again
        after `registerNameServerPeriod`.
        """
        self.start_name_server()
        self.process = self._boot_anywhere(_BROKER, self._broker_configs(), 512)

    def start_name_server(self) -> None:
        """Start the name server, when there is none yet."""
        if not self.name_server:
            self._boot_anywhere(_NAME_SERVER, self._name_server_configs(), 128)

    def _name_server_configs(self) -> Iterator[Path]:
        for _ in range(_PORT_TRIES):
            port = free_port()
            self.name_server = f"127.0.0.1:{port}"
            config = self.folder / "namesrv" / "ns.conf"
            config.parent.mkdir(parents=True, exist_ok=True)
            settings = {"listenPort": str(port), "bindAddress": "127.0.0.1"}
            if self.has_controller:
                controller = f"127.0.0.1:{free_port()}"
                settings |= {
                    "enableControllerInNamesrv": "true",
                    "controllerDLegerGroup": "group",
                    "controllerDLegerPeers": f"n0-{controller}",
                    "controllerDLegerSelfId": "n0",
                    "controllerStorePath": str(self.folder / "controller"),
                }
                self.settings |= {
                    "enableControllerMode": "true",
                    "controllerAddr": controller,
                    "syncBrokerMetadataPeriod": "500",
                    "syncControllerMetadataPeriod": "500",
                    "brokerHeartbeatInterval": "500",
                }
            write_settings(config, settings)
            yield config

    def _broker_configs(self) -> Iterator[Path]:
        for number in range(_PORT_TRIES):
            is_kept = number == 0 and self.port and all(is_free(self.port + place) for place in (0, -2, 1))
            self.port = port = self.port if is_kept else free_port(-2, 1)
            config = self.folder / "broker" / "broker.conf"
            config.parent.mkdir(parents=True, exist_ok=True)
            settings = _BROKER_SETTINGS | store_settings(self.version) | self.settings
            settings |= {
                "namesrvAddr": self.name_server,
                "listenPort": str(port),
                "haListenPort": str(port + 1),
                "storePathRootDir": str(self.store),
                "storePathCommitLog": str(self.store / "commitlog"),
            }
            write_settings(config, settings)
            yield config

    def stop(self) -> None:
        """SIGTERM, as an operator does it; the store is closed cleanly afterwards."""
        assert self.process is not None
        code = self.process.terminate()
        assert code == 143, self.process.error(f"exit code {code}")
        assert not (self.store / "abort").exists()

    def kill(self) -> None:
        """Kill it with -9."""
        assert self.process is not None and not self.process.ended
        self.process.kill()

    @contextmanager
    def client(self) -> Iterator[Program]:
        """A client program of the broker's version, connected, once it may send to any topic."""
        with Program(self.version, "Client", home=self.folder / "client") as client:
            client.call("connect", name_server=self.name_server)
            wait_for_topic(client, [_NEW_TOPICS])
            yield client


def wait_for_topic(client: Program, topics: Sequence[str]) -> None:
    """Until the name server knows the route to each topic."""
    for topic in topics:
        wait_until(lambda topic=topic: _knows(client, topic), f"route to {topic}")


def _knows(client: Program, topic: str) -> bool:
    try:
        return bool(client.call("queues", topic=topic))
    except LabError:
        return False
