"""Files of agents before version 7, which had a table for each kind of row and no digests."""

from fedcascade.service.agent.saved_lists import RECORDED, SavedList, SavedLists
from fedcascade.service.agent.sealed_rows import SHARED, UPLOAD, Run, insert_agent, put_shared

OLD_TABLES = ("owner", "token", "entry", "outbox", "open_list", "recorded_list")


def read_old_agents(run: Run) -> None:
    """Copy the agents of version 6 into the tables of today, and drop the old tables."""
    for [token] in run("SELECT value FROM token"):
        run("INSERT INTO pool_token (value) VALUES (?)", token)
    for name, value in run("SELECT name, value FROM entry WHERE agent = ?", SHARED):
        put_shared(run, name, bytes(value))
    for old, user in run("SELECT agent, name FROM owner ORDER BY agent"):
        values = {name: bytes(value) for name, value in run("SELECT name, value FROM entry WHERE agent = ?", old)}
        uploads = run("SELECT sequence, cause, statistics FROM outbox WHERE agent = ?", old)
        values |= {f"{UPLOAD}{number}": f"{cause}\n".encode() + bytes(body) for number, cause, body in uploads}
        _copy_lists(run, old, insert_agent(run, user, values))
    for table in OLD_TABLES:
        run(f"DROP TABLE {table}")


def _copy_lists(run: Run, old: int, agent: int) -> None:
    """Copy lists; their old numbers, which counted them, still name them."""
    lists = SavedLists(run, "", agent)
    recorded = {row[0]: row[1:] for row in run("SELECT * FROM recorded_list WHERE agent = ?", old) for row in [row[1:]]}
    for number, at, items, features in run(
        "SELECT impression, shown_at, items, features FROM open_list WHERE agent = ?", old
    ):
        _, _, chances, offered, _, _ = recorded.pop(number, (None,) * 6)
        lists.insert(SavedList(number, number, at, items, features, chances, offered))
    for number, (at, items, *rest) in recorded.items():
        if rest[2] is not None:  # with feedback
            lists.insert(SavedList(number, number, at, items, b"", *rest), RECORDED)
