"""What candidates did, in one SQLite file that grows as they do it: a search that is killed goes on where it was.

A store belongs to one question (its digest) and one process at a time. Keys say what was run, values are the JSON of its
outcome; nothing is computed twice and nothing is lost but what was under way.
"""

from __future__ import annotations

import pathlib
import sqlite3
from types import TracebackType


class Store:
    """Outcomes by key. Raises FileExistsError when another process is searching, OSError when the disk is full."""

    def __init__(self, path: pathlib.Path, digest: str) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._open(digest)
        except sqlite3.OperationalError as error:
            self._connection.close()
            if "locked" in str(error):
                raise FileExistsError(f"'{path}' is in use: another search writes there; expected another -o, or its end") from None
            raise OSError(f"{path}: {error}") from None
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise ValueError(f"{path}: {error}; expected a store of orrery explore, or a new name") from None

    def _open(self, digest: str) -> None:
        self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._connection.execute("BEGIN EXCLUSIVE")
        self._connection.execute("CREATE TABLE IF NOT EXISTS question (digest TEXT)")
        self._connection.execute("CREATE TABLE IF NOT EXISTS outcomes (key TEXT PRIMARY KEY, json TEXT NOT NULL)")
        known = self._connection.execute("SELECT digest FROM question").fetchone()
        if known is None:
            self._connection.execute("INSERT INTO question VALUES (?)", (digest,))
        elif known[0] != digest:
            self._connection.execute("DELETE FROM outcomes")  # of another question, or of another version
            self._connection.execute("UPDATE question SET digest = ?", (digest,))
        self._connection.execute("COMMIT")
        self._known: dict[str, str] = dict(self._connection.execute("SELECT key, json FROM outcomes"))
        self.num_found = len(self._known)

    def get(self, key: str) -> str | None:
        return self._known.get(key)

    def put(self, key: str, json: str) -> None:
        """Kept on the disk when this returns."""
        try:
            self._connection.execute("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", (key, json))
        except sqlite3.OperationalError as error:
            raise OSError(f"{self.path}: {error}; what was found until then is kept") from None
        self._known[key] = json

    def put_all(self, pairs: list[tuple[str, str]]) -> None:
        """All or none."""
        try:
            self._connection.execute("BEGIN")
            self._connection.executemany("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", pairs)
            self._connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise OSError(f"{self.path}: {error}; what was found until then is kept") from None
        self._known.update(pairs)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._connection.close()


class Memory:
    """The same without a file."""

    num_found = 0

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        return self._known.get(key)

    def put(self, key: str, json: str) -> None:
        self._known[key] = json

    def put_all(self, pairs: list[tuple[str, str]]) -> None:
        self._known.update(pairs)
