"""Commands on a store, with or without a running server: verify, audit, export, upgrade, backup, restore."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fedcascade.checks import require
from fedcascade.cli.options import Json, Whole, option
from fedcascade.service.protocol.clock import SYSTEM_CLOCK
from fedcascade.service.server.settings import ServerOptions
from fedcascade.service.server.tenure import require_known_terms
from fedcascade.service.store import sql
from fedcascade.service.store.backup import restore_backup, write_backup
from fedcascade.service.store.contract import Store, explain_failures
from fedcascade.service.store.open import hide_password, open_existing, open_store, open_unmigrated
from fedcascade.service.store.sql_log import unpack_row
from fedcascade.service.store.sql_store import SqlStore

StoreUrl = Annotated[str, option("Store: sqlite:///file.db or postgresql://user@host/database.")]
BackupFile = Annotated[Path, option("Backup file.")]


@contextmanager
def open_for_command(url: str, *, existing: bool = True) -> Iterator[Store]:
    """Open a store for one command, with database errors in one line."""
    with closing(open_existing(url) if existing else open_store(url)) as store, explain_failures(store):
        yield store


def _require_sql(store: Store, url: str) -> SqlStore:
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


def export(
    agent: Annotated[Whole, option("The agent's number.")],
    *,
    store: Annotated[str, option("Store of the server.", env_var="FEDCASCADE_STORE")] = ServerOptions.store,
) -> None:
    """Print all that a store holds of an agent, as JSON: enrolment, uploads, exchanges, moves, actions."""
    with open_for_command(store) as opened:
        found = _require_sql(opened, store).read_agent(agent)
    require(any(found.values()), f"the store holds nothing of agent {agent}")
    print(json.dumps({table: [_explain_row(row) for row in rows] for table, rows in found.items()}, indent=1))


def _explain_row(row: dict[str, Any]) -> dict[str, Any]:
    """Turn a row into readable values: times as text, sums of an upload as numbers, keys and digests in hexadecimal."""
    shown = dict(row)
    if "numbers" in row:
        sums = unpack_row(row["numbers"], row["count"], row["clicks"], row["rounds"])
        shown |= {"numbers": {"gram": sums.gram.tolist(), "moment": sums.moment.tolist()}}
    for name, unit in (("at", 1000), ("enrolled", 1), ("revoked", 1), ("created", 1)):
        if row.get(name) is not None:
            shown[name] = datetime.fromtimestamp(row[name] / unit, UTC).isoformat(timespec="milliseconds")
    return {
        name: bytes(value).hex() if isinstance(value, bytes | memoryview) else value for name, value in shown.items()
    }


def upgrade(
    store: StoreUrl,
    *,
    check: Annotated[bool, option("Only say what an upgrade would do; change nothing.", show_default=False)] = False,
) -> None:
    """Migrate a store to this version, before servers start; 'serve' does the same.

    A store with a policy or a constant that this version does not have is refused, and stays as it is.
    """
    found = open_unmigrated(store)
    if found is None:
        raise ValueError(f"there is no store of SQLite or PostgreSQL at '{hide_password(store)}'")
    with closing(found), explain_failures(found):
        version, known = found.find_version(), len(sql.MIGRATIONS)
        newer = f"the store is at migration {version}, this version knows {known}: use a newer fedcascade"
        require(version <= known, newer)
        require_known_terms(found)
    if not check:
        with open_for_command(store):
            pass
    left = f"migrations {'to do' if check else 'done'}: {known - version}"
    print(f"the store can be served by this version with the same terms; {left}")


def backup(store: StoreUrl, file: BackupFile) -> None:
    """Write a store to one file while servers run; SQLite and PostgreSQL can both restore it."""
    with open_for_command(store) as opened:
        position = write_backup(_require_sql(opened, store), file, SYSTEM_CLOCK.read_milliseconds())
    print(f"{file} holds everything up to position {position}; keep it as safe as the store itself")


def restore(file: BackupFile, store: StoreUrl) -> None:
    """Read a backup into a new store; agents resend what it lacks.

    Agents that were forgotten after the backup are back: forget them again.
    """
    require(file.is_file(), f"there is no backup '{file}'")
    with open_for_command(store, existing=False) as opened:
        epoch = restore_backup(file, _require_sql(opened, store), SYSTEM_CLOCK.read_milliseconds())
    print(
        f"restored as epoch {epoch}: agents will resend what is missing; "
        "forget again the agents forgotten since the backup"
    )
