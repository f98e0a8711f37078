"""Content over HTTP, continued with ranges (RFC 9110, sections 13.1.5 and 14)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tidemill.store.base import DownloadError, InvalidNameError, ModelNotFoundError
from tidemill.store.transfer import CHUNK_BYTES, StaleContentError, Stream, TransientError

# Seconds without a byte before a try is given up.
TIMEOUT_SECONDS = 60.0

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class HttpSource:
    """One URL.

    Args:
        url: where.
        label: what to call it in errors; without the secrets that a URL may hold.
        headers: sent along; not passed on to other hosts when redirected.
        immutable: the URL names one content for ever, so it may be continued unconditionally.
    """

    def __init__(
        self,
        url: str,
        *,
        label: str,
        headers: Mapping[str, str] | None = None,
        immutable: bool = False,
    ) -> None:
        self._url = url
        self._label = label
        self._headers = dict(headers or {})
        self._immutable = immutable

    @contextlib.contextmanager
    def open(self, offset: int, validator: str | None) -> Iterator[Stream]:
        # The client of huggingface_hub brings certificates, proxies and what users have set on it.
        from huggingface_hub import get_session

        # Compressed content could not be continued, and its length would be another one.
        headers = {**self._headers, "Accept-Encoding": "identity"}
        if offset and (self._immutable or validator):
            headers["Range"] = f"bytes={offset}-"
            if validator and not self._immutable:
                headers["If-Range"] = validator
        else:
            offset = 0
        with (
            transport_errors(self._label),
            get_session().stream(
                "GET", self._url, headers=headers, timeout=TIMEOUT_SECONDS, follow_redirects=True
            ) as response,
        ):
            yield self._stream(response, offset, validator)

    def _stream(self, response: Any, offset: int, validator: str | None) -> Stream:
        status = response.status_code
        if status == 416:
            # Nothing lies beyond what is here: whole if the server says so, else another version.
            match = re.fullmatch(r"bytes \*/(\d+)", response.headers.get("Content-Range", ""))
            if match and int(match[1]) == offset:
                return Stream(offset, offset, validator, iter(()))
            raise StaleContentError(f"{self._label}: changed on the server")
        if status not in (200, 206):
            raise status_error(status, self._label)
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise DownloadError(f"{self._label}: the server sends compressed content unasked")
        start = 0
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        if status == 206:
            match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if match is None or int(match[1]) != offset:
                raise DownloadError(f"{self._label}: the server sends another range than asked for")
            if not self._immutable and _validator(response.headers) not in (None, validator):
                raise StaleContentError(f"{self._label}: changed on the server")
            start = offset
            total = None if match[2] == "*" else int(match[2])
        return Stream(start, total, _validator(response.headers), response.iter_bytes(CHUNK_BYTES))


def _validator(headers: Mapping[str, str]) -> str | None:
    """What If-Range may carry: a strong entity tag, else the date of the last change."""
    tag = headers.get("ETag")
    if tag and not tag.startswith("W/"):
        return tag
    return headers.get("Last-Modified")


def status_error(status: int, label: str) -> DownloadError | ModelNotFoundError:
    """The error for an HTTP status that is no success."""
    if status in _PASSING:
        return TransientError(f"{label}: the server answers {status}")
    if status in (404, 410):
        return ModelNotFoundError(f"{label}: the server has no such file (HTTP {status})")
    if status in (401, 403):
        return DownloadError(f"{label}: access denied (HTTP {status})")
    return DownloadError(f"{label}: the server answers HTTP {status}")


@contextlib.contextmanager
def transport_errors(label: str) -> Iterator[None]:
    """Turn what the HTTP client raises below the protocol into errors of the store."""
    from huggingface_hub import errors

    # The base class of whichever client this version of huggingface_hub uses.
    client_error: type[Exception] = errors.HfHubHTTPError.__mro__[1]
    try:
        yield
    except errors.HfHubHTTPError:
        raise
    except client_error as error:
        what = str(error) or type(error).__name__
        if any(kind in type(error).__name__ for kind in ("Unsupported", "TooManyRedirects")):
            raise DownloadError(f"{label}: {what}") from error
        raise TransientError(f"{label}: {what}") from error
    except Exception as error:
        # Host names that cannot be looked up are found out by the client or the system's resolver.
        if isinstance(error, UnicodeError) or type(error).__name__ == "InvalidURL":
            raise InvalidNameError(f"{label} is no URL: {error}") from error
        raise
