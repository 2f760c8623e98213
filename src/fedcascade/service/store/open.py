"""Opens the store that a URL names: SQLite, PostgreSQL, or one that another package offers.

A package offers a store by an entry point of the group ``fedcascade.stores``: its name is the scheme of the URL, and
it leads to a function from the URL to a ``Store``.
"""

from collections.abc import Callable
from importlib.metadata import entry_points

from fedcascade.checks import require
from fedcascade.service.store.contract import Store
from fedcascade.service.store.sqlite import open_sqlite

GROUP = "fedcascade.stores"


def open_store(url: str) -> Store:
    """Open the store of a URL: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``postgresql://user@host/database``."""
    scheme, separator, _ = url.partition("://")
    offered = {entry.name: entry for entry in entry_points(group=GROUP)}
    schemes = ", ".join(sorted({*OPENERS, *offered}))
    require(
        bool(separator) and (scheme in OPENERS or scheme in offered),
        f"a store must be a URL such as sqlite:///file.db, of one of the schemes {schemes}; got '{url}'",
    )
    opener: Callable[[str], Store] = OPENERS[scheme] if scheme in OPENERS else offered[scheme].load()
    return opener(url)


def _open_sqlite(url: str) -> Store:
    path = url.removeprefix("sqlite://")
    require(path.startswith("/") and len(path) > 1, f"a SQLite store looks like sqlite:///file.db, got '{url}'")
    return open_sqlite(path[1:])


def _open_postgres(url: str) -> Store:
    try:
        from fedcascade.service.store.postgres import open_postgres  # psycopg is an extra
    except ImportError:
        raise ValueError("PostgreSQL needs psycopg: pip install 'fedcascade[postgres]'") from None
    return open_postgres(url)


OPENERS: dict[str, Callable[[str], Store]] = {
    "sqlite": _open_sqlite,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
}
