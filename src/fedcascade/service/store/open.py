"""Stores by URL: SQLite, PostgreSQL, or one of another package.

A package adds a store by an entry point of the group ``fedcascade.stores``: its name is the scheme of the URL, its
value a function from the URL to a ``Store``.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from fedcascade.checks import require
from fedcascade.plugins import get_plugin, list_plugins
from fedcascade.service.store.contract import Store
from fedcascade.service.store.sql import MIGRATIONS
from fedcascade.service.store.sql_store import SqlStore
from fedcascade.service.store.sqlite import open_sqlite


def open_store(url: str) -> Store:
    """Open the store of a URL, such as ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or ``postgresql://...``."""
    scheme, separator, _ = url.partition("://")
    if separator and scheme in OPENERS:
        return OPENERS[scheme](url)
    offered = [plugin.name for plugin in list_plugins("store")]
    advice = f"a store must be a URL such as sqlite:///file.db, of the schemes {', '.join([*OPENERS, *offered])}"
    require(bool(separator) and scheme in offered, f"{advice}; got '{hide_password(url)}'")
    opener: Callable[[str], Store] = get_plugin("store", scheme).load()
    return opener(url)


def hide_password(url: str) -> str:
    """Return the URL of a store without its password, for messages.

    >>> hide_password("postgresql://me:secret@host/database")
    'postgresql://me:...@host/database'
    """
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:...@", url)


def open_existing(url: str) -> Store:
    """Open a store; refuse to create one."""
    scheme, _, path = url.partition(":///")
    require(scheme != "sqlite" or Path(path).exists(), f"there is no store at '{url}'")
    return open_store(url)


def open_unmigrated(url: str) -> SqlStore | None:
    """Open a store and leave its tables as they are; return None for a new store and for one of another package."""
    scheme, _, path = url.partition("://")
    if scheme not in OPENERS or (scheme == "sqlite" and not Path(path[1:]).exists()):
        return None
    store = OPENERS[scheme](url, None)
    if store.find_version():
        return store
    store.close()
    return None


def _open_sqlite(url: str, migrations: Sequence[str] | None = MIGRATIONS) -> SqlStore:
    path = url.removeprefix("sqlite://")
    require(path.startswith("/") and len(path) > 1, f"a SQLite store must look like sqlite:///file.db, got '{url}'")
    return open_sqlite(path[1:], migrations)


def _open_postgres(url: str, migrations: Sequence[str] | None = MIGRATIONS) -> SqlStore:
    try:
        from fedcascade.service.store.postgres import open_postgres  # here, because psycopg is an extra
    except ImportError:
        raise ValueError("PostgreSQL needs psycopg: pip install 'fedcascade[postgres]'") from None
    return open_postgres(url, migrations)


OPENERS: dict[str, Callable[..., SqlStore]] = {
    "sqlite": _open_sqlite,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
}
