"""Results that are kept: a Parquet file for each run below ``$TIDEMILL_HOME/bench``.

::

    <id>.parquet    a row for each request (``records.Record``), with times in seconds from the
                    opening of the measured window; in the file's key-value metadata, as JSON,
                    ``tidemill_result`` (``result.Result``) and, but for cold starts,
                    ``tidemill_recording`` (what a ``Recording`` has beside its records)
    .<id>.part      one that is being written

DuckDB (https://duckdb.org) writes and reads them, and users can ask it about them themselves. A
file is there whole or not at all, whatever happens to who writes it, and several processes can
write at once.
"""

from __future__ import annotations

import datetime
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.bench.records import Record, Recording, Window
from tidemill.bench.result import NewerFormatError, Result, decode
from tidemill.store import home

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_SUFFIX = ".parquet"
_RESULT = "tidemill_result"
_RECORDING = "tidemill_recording"

# A field of Record -> its type in the file.
_COLUMNS = {
    "index": "BIGINT",
    "turn": "BIGINT",
    "shape": "VARCHAR",
    "warmup": "BOOLEAN",
    "due": "DOUBLE",
    "sent": "DOUBLE",
    "ended": "DOUBLE",
    "times": "DOUBLE[]",
    "prompt_tokens": "BIGINT",
    "cached_tokens": "BIGINT",
    "output_tokens": "BIGINT",
    "asked": "BIGINT",
    "error": "VARCHAR",
    "detail": "VARCHAR",
    "verdict": "VARCHAR",
    "text": "VARCHAR",
}

_MOST = 1e9
"""Seconds, beyond what a run lasts."""

_MOST_VALUES = 100_000_000
"""Of all columns together, times counted one by one: compressed they can be a file of some KiB."""

# Of the end of an id, which tells runs of the same minute apart; none that are read as another.
_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"
_LEFT_BEHIND = 3600
"""Seconds after which a file that is still being written is one of a process that was killed."""


class StoreError(ValueError):
    """A result that cannot be kept or read: the message says which, and why."""


class UnknownResult(StoreError):
    """There is none of that id."""


class MissingDuckDB(StoreError):
    def __init__(self) -> None:
        super().__init__("results are kept with DuckDB: pip install 'tidemill[bench]'")


class Store:
    """The results in ``folder``, by default those of this user.

    ``say`` is told of files that are passed over because they cannot be read, or are none of ours.
    All methods raise StoreError, and MissingDuckDB where the extra ``bench`` is not installed.
    """

    def __init__(
        self, folder: Path | None = None, say: Callable[[str], None] = lambda message: None
    ) -> None:
        self.folder = home() / "bench" if folder is None else folder
        self._say = say
        self._connection: DuckDBPyConnection | None = None

    def put(self, result: Result, recording: Recording | None) -> str:
        """Keep a run; ``result.id`` is its id from then on, which is returned. Cold starts have no
        recording. If it fails nothing is left behind, and the result is as it was."""
        database = self._database
        part: Path | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._discard_left_behind()
            found, part = self._reserve(result)
            _write(database, part, msgspec.structs.replace(result, id=found), recording)
            os.replace(part, self._path(found))
        except (OSError, _database_error()) as error:
            raise StoreError(f"{self.folder}: {_first_line(error)}") from None
        finally:
            if part is not None:
                part.unlink(missing_ok=True)
        result.id = found
        return found

    def results(
        self,
        *,
        scenario: str | None = None,
        target: str | None = None,
        name: str | None = None,
        series: str | None = None,
    ) -> list[Result]:
        """Those that fit all that is given, newest first. ``target``: the name of an engine,
        ENGINE:MODEL or a URL."""
        found = [
            result
            for result in self._all()
            if scenario in (None, result.scenario.name)
            and target in (None, result.target.engine, result.target.url, result.target.whom)
            and name in (None, result.name)
            and series in (None, result.series)
        ]
        return sorted(found, key=lambda result: (result.when, result.id), reverse=True)

    def find(self, beginning: str) -> str:
        """The id that begins so, if it is one only; whether the file can be read is not asked."""
        found = [path.stem for path in self._paths() if path.stem.startswith(beginning)]
        if not beginning:  # of all: an empty variable of a script shall not remove a result
            found = []
        if beginning in found:
            return beginning
        if not found:
            raise UnknownResult(f"there is no result {beginning!r}; see `tidemill bench results`")
        if len(found) > 1:
            some = ", ".join(found[:5])
            raise StoreError(f"{beginning!r} is the beginning of {len(found)} results: {some}")
        return found[0]

    def get(self, id: str) -> Result:
        """By its id, or the beginning of it."""
        return self._result(self._path(self.find(id)))

    def recording(self, id: str) -> Recording | None:
        """What was recorded: times count from the window's opening. None of cold starts."""
        path = self._path(self.find(id))
        about = self._about(path).get(_RECORDING)
        if about is None:
            return None
        try:
            recording = msgspec.json.decode(about, type=Recording)
            values = "SELECT coalesce(sum(num_values), 0) FROM parquet_metadata(?)"
            (count,) = self._database.execute(values, [str(path)]).fetchall()[0]
            if count > _MOST_VALUES:
                raise StoreError(f"{path} has {count} values in it, more than a run can have")
            rows = self._database.execute("SELECT * FROM read_parquet(?)", [str(path)])
            names = [column[0] for column in rows.description or ()]
            recording.records = msgspec.convert(
                [dict(zip(names, row, strict=True)) for row in rows.fetchall()], list[Record]
            )
        except (msgspec.MsgspecError, _database_error()) as error:
            raise StoreError(f"{path} is damaged: {_first_line(error)}") from None
        if not all(map(_is_sound, recording.records)) or not 0 < recording.window.seconds < _MOST:
            raise StoreError(f"{path} is damaged: it has times or tokens that no request has")
        return recording

    def remove(self, id: str) -> str:
        """By its id, or the beginning of it; returns the whole id."""
        path = self._path(self.find(id))
        try:
            path.unlink()
        except OSError as error:
            raise StoreError(f"{path} cannot be removed: {error.strerror}") from None
        return path.stem

    # ---- files

    def _path(self, id: str) -> Path:
        return self.folder / f"{id}{_SUFFIX}"

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob(f"[!.]*{_SUFFIX}"))

    def _reserve(self, result: Result) -> tuple[str, Path]:
        """An id that no other run has or will get, and the file to write it to."""
        when = datetime.datetime.fromisoformat(result.when).astimezone()
        stem = f"{result.scenario.name}-{_slug(result.target.whom)}-{when:%m%d-%H%M}"
        while True:
            found = f"{stem}-{''.join(secrets.choice(_LETTERS) for _ in range(3))}"
            part = self.folder / f".{found}.part"
            try:
                part.touch(exist_ok=False)
            except FileExistsError:
                continue
            if not self._path(found).exists():
                return found, part
            part.unlink()

    def _discard_left_behind(self) -> None:
        for part in self.folder.glob(".*.part"):
            with suppress(OSError):
                if time.time() - part.stat().st_mtime > _LEFT_BEHIND:
                    part.unlink()

    # ---- what is in them

    def _all(self) -> Iterator[Result]:
        for path in self._paths():
            try:
                yield self._result(path)
            except MissingDuckDB:
                raise
            except StoreError as error:
                self._say(f"{error}; passed over")

    def _result(self, path: Path) -> Result:
        about = self._about(path)
        if _RESULT not in about:
            raise StoreError(f"{path} is no result of tidemill bench")
        try:
            result = decode(about[_RESULT])
        except NewerFormatError as error:
            raise StoreError(f"{path} is {error}") from None
        except (ValueError, RecursionError) as error:  # msgspec's are ValueErrors
            raise StoreError(f"{path} is damaged: {_first_line(error)}") from None
        result.id = path.stem  # whoever renamed the file wants it to be called that
        return result

    def _about(self, path: Path) -> dict[str, bytes]:
        """A file's key-value metadata."""
        database = self._database
        try:
            query = "SELECT key, value FROM parquet_kv_metadata(?)"
            rows = database.execute(query, [str(path)]).fetchall()
        except _database_error() as error:
            raise StoreError(f"{path} cannot be read: {_first_line(error)}") from None
        return {key.decode(errors="replace"): value for key, value in rows}

    @property
    def _database(self) -> DuckDBPyConnection:
        if self._connection is None:
            try:
                import duckdb
            except ImportError:
                raise MissingDuckDB from None
            # One thread, as what is measured may be running beside; and nothing is downloaded.
            self._connection = duckdb.connect(
                config={"threads": 1, "autoinstall_known_extensions": False}
            )
        return self._connection


def _write(
    database: DuckDBPyConnection, path: Path, result: Result, recording: Recording | None
) -> None:
    records = []
    about = {_RESULT: msgspec.json.encode(result)}
    if recording is not None:
        recording = relative(recording)
        records = recording.records
        about[_RECORDING] = msgspec.json.encode(msgspec.structs.replace(recording, records=[]))
    columns = ", ".join(f'unnest(?::{kind}[]) AS "{name}"' for name, kind in _COLUMNS.items())
    database.execute(
        f"CREATE OR REPLACE TEMP TABLE records AS SELECT {columns}",
        [[getattr(record, name) for record in records] for name in _COLUMNS],
    )
    metadata = ", ".join(f"{key}: {_quoted(value.decode())}" for key, value in about.items())
    database.execute(
        f"COPY records TO {_quoted(str(path))} "
        f"(FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false, KV_METADATA {{{metadata}}})"
    )
    database.execute("DROP TABLE records")
    with path.open("rb") as file:
        os.fsync(file.fileno())


def relative(recording: Recording) -> Recording:
    """The same with times from the opening of its window."""
    start = recording.window.opened
    records = [
        msgspec.structs.replace(
            record,
            due=record.due - start,
            sent=record.sent - start,
            ended=record.ended - start,
            times=[moment - start for moment in record.times],
        )
        for record in recording.records
    ]
    window = Window(0.0, recording.window.closed - start)
    return msgspec.structs.replace(recording, records=records, window=window)


def _is_sound(record: Record) -> bool:
    """Whether it can be of a request: files may be damaged, or edited."""
    moments = (record.due, record.sent, record.ended, *record.times)
    counts = (record.prompt_tokens, record.cached_tokens, record.output_tokens, record.asked)
    return (
        all(abs(moment) < _MOST for moment in moments)
        and all(count is None or count >= 0 for count in counts)
        and (record.error is not None or bool(record.times))
    )


def _database_error() -> type[Exception]:
    """What DuckDB raises; it is only imported where it is needed."""
    import duckdb

    return duckdb.Error


def _quoted(text: str) -> str:
    """A string in SQL."""
    return "'" + text.replace("'", "''") + "'"


def _slug(text: str) -> str:
    """Small letters, digits and - for an id that is easy to type."""
    bare = re.sub(r"^https?://|/v1$", "", text.lower())
    return re.sub(r"[^a-z0-9]+", "-", bare).strip("-")[:32].strip("-")


def _first_line(error: BaseException) -> str:
    said: Any = getattr(error, "strerror", None) or str(error)
    return str(said).partition("\n")[0]
