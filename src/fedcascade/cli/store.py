"""Commands on a store, with or without a running server: verify, audit, backup, restore."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedcascade.checks import require
from fedcascade.cli.options import Json, option

if TYPE_CHECKING:
    from fedcascade.service.store.contract import Store
    from fedcascade.service.store.sql_store import SqlStore

StoreUrl = Annotated[str, option("Store: sqlite:///file.db or postgresql://user@host/database.")]
BackupFile = Annotated[Path, option("Backup file.")]


@contextmanager
def open_for_command(url: str, *, existing: bool = True) -> Iterator["Store"]:
    """Open a store for one command, with database errors in one line."""
    from contextlib import closing

    from fedcascade.service.store.contract import explain_failures
    from fedcascade.service.store.open import open_existing, open_store

    with closing(open_existing(url) if existing else open_store(url)) as store, explain_failures(store):
        yield store


def _require_sql(store: "Store", url: str) -> "SqlStore":
    from fedcascade.service.store.open import hide_password
    from fedcascade.service.store.sql_store import SqlStore

    if not isinstance(store, SqlStore):
        raise ValueError(f"backups are for SQLite and PostgreSQL: {hide_password(url)} has tools of its own")
    return store


def _parse_head(text: str) -> tuple[int, bytes]:
    position, _, link = text.partition(":")
    try:
        return int(position), bytes.fromhex(link)
    except ValueError:
        raise ValueError(f"a head looks like 1234:ab12..., as 'fedcascade verify' prints it, got '{text}'") from None


def verify(
    store: StoreUrl,
    *,
    noted: Annotated[str | None, option("A head printed earlier: the log must be unchanged up to there.")] = None,
    json_: Json = False,
) -> None:
    """Check the integrity of a store: log, snapshot, journal and audit log, from the first entry to the last."""
    with open_for_command(store) as opened:
        position, link = opened.verify(None if noted is None else _parse_head(noted))
    if json_:
        print(json.dumps({"position": position, "head": f"{position}:{link.hex()}"}))
    else:
        print(f"the store is intact up to position {position}; head {position}:{link.hex()}")


def audit(
    store: StoreUrl, *, json_: Annotated[bool, option("Print a line of JSON for each.", name="--json")] = False
) -> None:
    """Print the audit log: enrolments, revocations, removals, folds, backups and restores, with time and actor."""
    with open_for_command(store) as opened:
        for record in opened.read_audit():
            time = datetime.fromtimestamp(record.at / 1000, UTC).isoformat(timespec="seconds")
            if json_:
                facts = {"actor": record.actor, "action": record.action, "agent": record.agent, "detail": record.detail}
                print(json.dumps({"number": record.number, "time": time} | facts))
            else:
                target = "" if record.agent is None else f" agent {record.agent}"
                print(f"{time}  {record.actor}: {record.action}{target}{record.detail and f' ({record.detail})'}")


def backup(store: StoreUrl, file: BackupFile) -> None:
    """Write a store to one file while servers run; SQLite and PostgreSQL can both restore it."""
    from fedcascade.service.protocol.clock import SYSTEM_CLOCK
    from fedcascade.service.store.backup import write_backup

    with open_for_command(store) as opened:
        position = write_backup(_require_sql(opened, store), file, SYSTEM_CLOCK.read_milliseconds())
    print(f"{file} holds everything up to position {position}; keep it as safe as the store itself")


def restore(file: BackupFile, store: StoreUrl) -> None:
    """Read a backup into a new store; agents resend what it lacks.

    Agents that were forgotten after the backup are back: forget them again.
    """
    from fedcascade.service.protocol.clock import SYSTEM_CLOCK
    from fedcascade.service.store.backup import restore_backup

    require(file.is_file(), f"there is no backup '{file}'")
    with open_for_command(store, existing=False) as opened:
        epoch = restore_backup(file, _require_sql(opened, store), SYSTEM_CLOCK.read_milliseconds())
    print(
        f"restored as epoch {epoch}: agents will resend what is missing; "
        "forget again the agents forgotten since the backup"
    )
