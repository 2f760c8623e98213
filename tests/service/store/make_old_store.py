"""Makes the database of an older version that tests open: ``python tests/service/make_old_store.py FILE``.

It writes with the first migration alone, as the first version of the service did.
"""

import sqlite3
import sys

from fedcascade.service.protocol.wire import packed
from fedcascade.service.store.sqlite import MIGRATIONS
from fedcascade.testing.stores import unit


def main(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(MIGRATIONS[0])
    connection.execute("CREATE TABLE migration (number INTEGER PRIMARY KEY)")
    connection.execute("INSERT INTO migration VALUES (1)")
    connection.execute('INSERT INTO setting VALUES (\'terms\', \'{"dimension": 3, "policy": "fedc3ucb-h"}\')')
    for agent in (1, 2):
        connection.execute("INSERT INTO agent VALUES (?, ?, 1.0, NULL)", (agent, bytes([agent]) * 32))
    for position in range(1, 7):
        agent, sequence = (position - 1) % 2 + 1, (position + 1) // 2
        row = (position, agent, sequence, "forced", 1, 1, 1, packed(unit((position - 1) % 3)))
        connection.execute("INSERT INTO upload VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        connection.execute("INSERT INTO answer VALUES (?, ?)", (position, b"answer %d" % position))
    connection.commit()
    connection.execute("VACUUM")
    connection.close()


if __name__ == "__main__":
    main(sys.argv[1])
