"""A TCP proxy that can fall silent or cut the line at a COMMIT; before several servers, it is a load balancer."""

import socket
import threading
from contextlib import suppress
from typing import Self


class Proxy:
    """Forwards connections to a port of this machine; of several, to the next one where somebody listens.

    While ``frozen``, it takes new connections and swallows every byte. ``lose_commit`` says what happens to the next
    COMMIT, once: "request" keeps it from the database, "reply" keeps the database's reply; both close the line.
    """

    def __init__(self, *targets: int) -> None:
        self.frozen = False
        self.lose_commit: str | None = None
        self.connections = 0
        self.targets = targets
        self._turn = 0
        self._closed = False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._listening.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        self._listening.settimeout(0.05)
        while not self._closed:
            with suppress(OSError):
                client, _ = self._listening.accept()
                self.connections += 1
                thread = threading.Thread(target=self._forward, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _forward(self, client: socket.socket) -> None:
        """Carry bytes both ways until either side ends; one thread for both keeps their order."""
        with client, self._connect() as database:
            client.settimeout(0.01)
            database.settimeout(0.01)
            with suppress(OSError):
                while not self._closed:
                    if not self._carry(client, database, b"COMMIT") or not self._carry(database, client, None):
                        return

    def _connect(self) -> socket.socket:
        turn = self._turn = self._turn + 1  # the next connection begins with another one
        for number in range(len(self.targets)):
            port = self.targets[(turn + number) % len(self.targets)]
            with suppress(ConnectionRefusedError):
                return socket.create_connection(("127.0.0.1", port))
        raise ConnectionRefusedError("nobody listens")

    def _carry(self, source: socket.socket, sink: socket.socket, watched: bytes | None) -> bool:
        """Carry what there is from one side to the other; False when the line ends."""
        try:
            body = source.recv(1 << 20)
        except TimeoutError:
            return True
        if self.frozen:
            return bool(body)
        if self.lose_commit is not None and watched is not None and watched in body:
            kind, self.lose_commit = self.lose_commit, None
            if kind == "reply":
                sink.sendall(body)
                sink.settimeout(10)
                sink.recv(1 << 16)  # so the database has done it
            return False
        sink.sendall(body)
        return bool(body)
