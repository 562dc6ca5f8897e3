"""A link between a process and its database that the test owns, and can cut."""

from __future__ import annotations

import contextlib
import socket
import threading

HOST = "127.0.0.1"


class Link:
    """Passes bytes between a port of its own and another one, until it is cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._whole = True
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection, and let none through."""
        with self._lock:
            self._whole = False
            for each in self._connections:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
            self._connections.clear()

    def mend(self) -> None:
        with self._lock:
            self._whole = True

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if not self._whole:
                    near.close()
                    continue
                try:
                    far = socket.create_connection((HOST, self._target))
                except OSError:
                    near.close()
                    continue
                self._connections += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, goal: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                goal.sendall(piece)
        for each in (source, goal):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
