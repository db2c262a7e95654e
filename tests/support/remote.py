"""Stores elsewhere, for the tests: an S3 server as a process of its own, packed and compressed stores."""

from __future__ import annotations

import gzip
import io
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zstandard

from rmqtool.check.verify import verify
from rmqtool.read.store import Store
from rmqtool.report.info import store_info
from tests.support.programs import PATIENCE_S, started, surroundings

KEY, SECRET = "the-access-key", "the-secret-of-the-key"


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """The endpoint of moto's server, as another process; its log is in `folder`."""
    for _ in range(5):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with (folder / "moto.log").open("ab") as log:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
            environment = surroundings(HOME=str(folder))
            with started(command, stdout=log, stderr=log, env=environment) as server:
                if _listens(server, port, folder / "moto.log"):
                    yield f"http://127.0.0.1:{port}"
                    return
    raise AssertionError((folder / "moto.log").read_text("utf-8"))


def _listens(server: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    """Wait until the server says that it listens; False when it ended, as where the port was taken.

    An accepted connection proves nothing: another process may have taken the port.
    """
    while server.poll() is None:
        if f"Running on http://127.0.0.1:{port}" in log.read_text("utf-8"):
            return True
        time.sleep(0.05)
    return False


def upload(endpoint: str, folder: Path, bucket: str, prefix: str) -> None:
    """Put a file or a folder into a bucket, which is made."""
    from pyarrow import fs

    system = fs.S3FileSystem(
        endpoint_override=endpoint.removeprefix("http://"), scheme="http", access_key=KEY, secret_key=SECRET,
        region="us-east-1", allow_bucket_creation=True,
        connect_timeout=PATIENCE_S, request_timeout=PATIENCE_S,
    )  # fmt: skip
    system.create_dir(bucket)
    for path in [folder] if folder.is_file() else sorted(folder.rglob("*")):
        if path.is_file():
            name = "/".join(
                part for part in (bucket, prefix, path.relative_to(folder).as_posix()) if part != "."
            )
            with system.open_output_stream(name, compression=None) as out:
                out.write(path.read_bytes())


def pack(store: Path, archive: Path, *options: str, inside: str = "store") -> Path:
    """The store as GNU tar packs it, in a folder `inside`, or at the root where that is `.`."""
    command = ["tar", "-C", store, f"--transform=s,^[.],{inside},", *options, "-cf", archive, "."]
    subprocess.run(command, check=True, capture_output=True)
    return archive


def compress(path: Path, form: str) -> Path:
    """The file beside itself, compressed by `gz` or `zst`."""
    data, target = path.read_bytes(), path.with_name(f"{path.name}.{form}")
    target.write_bytes(gzip.compress(data) if form == "gz" else zstandard.compress(data))
    return target


def compress_files(store: Path, form: str) -> Path:
    """Every file of the store in its place, compressed; empty ones stay."""
    for path in sorted(store.rglob("*")):
        if path.is_file() and path.stat().st_size:
            compress(path, form)
            path.unlink()
    return store


def tar_of(*members: tuple[str | tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar with these members; a name stands for a plain file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            info.size = len(data) if info.isreg() else info.size
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def answers(place: Path | str, **options: Any) -> dict[str, Any]:
    """What a store answers to `info`, `verify` and `dump`, without what only a local disk has."""
    with Store.open(place, **options) as store:
        info = store_info(store)
        for name in ("path", "disk", "state"):
            info.pop(name)
        if info["commit_log"] is not None:
            info["commit_log"].pop("folders")
        found = sorted(str(each.row()) for each in verify(store, jobs=2))
        records = [
            (each.physical_offset, each.message.topic, each.message.body, each.file, each.status)
            for each in store.messages(damage="skip")
        ]
        backwards = [each.physical_offset for each in store.messages(damage="skip", reverse=True)]
        units = {key: list(queue.units()) for key, queue in store.queues.items()}
    return {"info": info, "findings": found, "records": records, "backwards": backwards, "units": units}
