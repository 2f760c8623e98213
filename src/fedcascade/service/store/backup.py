"""Backups: the whole store in one file, which any kind of database can restore.

A file starts with a line that names the format. Frames follow: four bytes of length, and the name, columns and some
rows of a table as compressed MessagePack. The last frame is the digest of all others, so damaged files are refused.
"""

import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from fedcascade.checks import require
from fedcascade.platforms import sync_file
from fedcascade.service.store.contract import LOCAL
from fedcascade.service.store.epoch import begin_epoch, load_epoch
from fedcascade.service.store.sql_store import SqlStore

MAGIC = b"fedcascade backup 1\n"
END = "end"
LARGEST_FRAME = 1 << 30
Frame = tuple[str, list[str], list[list[Any]]]


def write_backup(store: SqlStore, path: Path, at: int) -> int:
    """Verify a store and write it to a new file; return the last position. Servers may run meanwhile."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    require(not path.exists(), f"'{path}' exists already: name a new file")
    try:
        with store.read_transaction(), os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            position, _ = store.verify()
            _write_frames(file, store.read_tables())
        draft.replace(path)
    except OSError as error:
        raise ValueError(f"cannot write the backup '{path}': {error.strerror}") from None
    finally:
        draft.unlink(missing_ok=True)
    with store.transaction():
        store.record_audit(at, LOCAL, "backed up", detail=f"up to position {position}")
    return position


def restore_backup(path: Path, store: SqlStore, at: int) -> str:
    """Read a backup into an empty store, verify it, and begin a new epoch; return the epoch's name."""
    with store.transaction():
        store.expect_long_statements()
        require(store.is_unused(), "the store is in use: restore into one that is empty")
        try:
            with path.open("rb") as file:
                for table, columns, rows in _read_frames(file, path):
                    store.write_table(table, columns, rows)
        except OSError as error:
            raise ValueError(f"cannot read the backup '{path}': {error.strerror}") from None
        position, _ = store.verify()
        earlier, epoch = load_epoch(store).name, begin_epoch(store).name
        store.record_audit(at, LOCAL, "restored", detail=f"up to position {position}, epoch {earlier} became {epoch}")
    return epoch


def _write_frames(file: BinaryIO, frames: Iterator[Frame]) -> None:
    digest = blake2b(MAGIC)
    file.write(MAGIC)
    for frame in frames:
        body = zlib.compress(msgspec.msgpack.encode(frame), 1)
        digest.update(body)
        file.write(len(body).to_bytes(4) + body)
    body = zlib.compress(msgspec.msgpack.encode((END, [], [[digest.digest()]])))
    file.write(len(body).to_bytes(4) + body)
    file.flush()
    sync_file(file.fileno())


def _read_frames(file: BinaryIO, path: Path) -> Iterator[Frame]:
    """Read the frames of a file; refuse a damaged file at its end, before the rows are committed."""
    require(file.read(len(MAGIC)) == MAGIC, f"'{path}' is not a backup of this version of fedcascade")
    digest = blake2b(MAGIC)
    while size := int.from_bytes(file.read(4)):
        body, frame = file.read(min(size, LARGEST_FRAME)), None
        with suppress(zlib.error, msgspec.DecodeError):
            frame = msgspec.msgpack.decode(zlib.decompress(body), type=Frame)
        if frame is None or (frame[0] == END and frame[2] != [[digest.digest()]]):
            break
        if frame[0] == END:
            return
        digest.update(body)
        yield frame
    raise ValueError(f"the backup '{path}' is damaged: use another backup")
