"""Rows with digests: a damaged row of an agent is found before it is used."""

import secrets
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

SHARED = 0  # agent number of entries that all agents share
SIZE = 8  # bytes of a digest
NEW = 0  # version of an agent without entries
UPLOAD = "upload "  # before the sequence number in the name of the entry of an unanswered upload
UNSETTLED = "unsettled"  # name of the entry of an agent that is to compare sums with the server
PUT_ENTRY = "INSERT INTO pool_entry VALUES (?, ?, ?) ON CONFLICT (agent, name) DO UPDATE SET value = excluded.value"
AgentRows = list[tuple[Any, ...]]
Run = Callable[..., AgentRows]  # runs a statement with its values in a transaction, and returns the rows


class DamagedAgents(ValueError):  # noqa: N818 (named after what was found)
    """A store of agents that is not as it was written."""

    def __init__(self, title: str, finding: str) -> None:
        advice = "restore a copy, or connect with start_over=True, which keeps the key of an agent if it can be read"
        super().__init__(f"cannot use '{title}' as an agent's store: it is damaged ({finding}): {advice}")


def seal(agent: int, name: str, body: bytes) -> bytes:
    """Return a body behind the digest of its agent, name and bytes."""
    digest = blake2b(f"{agent} {name}\n".encode(), digest_size=SIZE)
    digest.update(body)
    return digest.digest() + body


def unseal(title: str, agent: int, name: str, value: bytes) -> bytes:
    """Return the body of a value; raise ``DamagedAgents`` if its digest differs."""
    body = value[SIZE:]
    if value != seal(agent, name, body):
        raise DamagedAgents(title, f"row '{name}' of agent {agent}")
    return body


def put_shared(run: Run, name: str, body: bytes) -> None:
    """Write an entry that all agents share."""
    run(PUT_ENTRY, SHARED, name, seal(SHARED, name, body))


def read_values(run: Run, agent: int) -> dict[str, bytes]:
    """Read the entries of an agent as they are stored, with their digests."""
    return {name: bytes(value) for name, value in run("SELECT name, value FROM pool_entry WHERE agent = ?", agent)}


def read_entries(
    run: Run, title: str, agent: int, name: str, version: int
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Read all entries of an agent and their digests; raise ``DamagedAgents`` if they are not as they were written."""
    columns = "name, unsent, unsettled, digest"
    [(written, *waiting, digest)] = run(f"SELECT {columns} FROM pool_agent WHERE number = ?", agent)
    values = read_values(run, agent)
    entries = {entry: unseal(title, agent, entry, value) for entry, value in values.items()}
    digests = {entry: value[:SIZE] for entry, value in values.items()}
    is_new = version == NEW and not values
    if written != name or not (is_new or digest_agent((agent, name, version, *waiting), digests) == bytes(digest)):
        raise DamagedAgents(title, f"the row of agent {agent}")
    return entries, digests


def digest_agent(row: tuple[Any, ...], digests: Mapping[str, bytes]) -> bytes:
    """Compute the digest of an agent's number, name, version and counts, and of the digests of its entries."""
    digest = blake2b(repr(row).encode(), digest_size=SIZE)
    for name in sorted(digests):
        digest.update(f"{name}\n".encode() + digests[name])
    return digest.digest()


def insert_agent(run: Run, name: str, entries: Mapping[str, bytes] | None = None) -> int:
    """Add an agent, with its entries if it has any; return its number."""
    added = run(
        "INSERT INTO pool_agent (name, version, unsent, unsettled, digest) VALUES (?, ?, 0, 0, ?) "
        "ON CONFLICT (name) DO NOTHING RETURNING number",
        *(name, NEW, b""),
    )
    [[number]] = added or run("SELECT number FROM pool_agent WHERE name = ?", name)  # another process was faster
    if entries:
        save_entries(run, int(number), name, entries, {})
    return int(number)


def save_entries(
    run: Run, number: int, name: str, entries: Mapping[str, bytes | None], digests: Mapping[str, bytes]
) -> tuple[int, dict[str, bytes]]:
    """Write entries of an agent, or delete those that are None; return a new version, and the digests of all entries.

    ``digests`` are those of the entries before.
    """
    after = dict(digests)
    for entry, body in entries.items():
        if body is not None:
            value = seal(number, entry, body)
            after[entry] = value[:SIZE]
            run(PUT_ENTRY, number, entry, value)
        elif after.pop(entry, None) is not None:
            run("DELETE FROM pool_entry WHERE agent = ? AND name = ?", number, entry)
    version, waiting = 1 + secrets.randbits(62), (sum(each.startswith(UPLOAD) for each in after), UNSETTLED in after)
    digest = digest_agent((number, name, version, *map(int, waiting)), after)
    statement = "UPDATE pool_agent SET version = ?, unsent = ?, unsettled = ?, digest = ? WHERE number = ?"
    run(statement, version, *map(int, waiting), digest, number)
    return version, after
