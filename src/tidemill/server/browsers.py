"""What web pages may have a browser do here, where no key says who is asking.

A server without keys trusts whoever can reach it, and so every page that its user looks at, as
browsers send requests to this machine for any of them. Two things tell these from others, and
pages can change neither.

- Where a request comes from: of the server's own origin or not (``is_foreign``).
- Whom it is for. A site can let its own name lead to this machine once its page is there (DNS
  rebinding), and the page is then of the server's origin; but ``Host`` has that name. It cannot be
  an address, nor a name that public DNS does not have.

Programs send no ``Origin``, and ask for an address, a short name or a private one as a rule;
``--allowed-host`` adds public ones. A server that listens to other machines is asked by any name,
and looks at names only if some are given.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from tidemill.presentation.pages import is_foreign
from tidemill.server.config import ServerConfig
from tidemill.server.errors import ApiError

_PRIVATE = ("localhost", "local", "internal")
"""Top-level domains that nobody can have a name in: RFC 6761, RFC 6762, ICANN's for private use."""


def check_browser(headers: Mapping[str, str], config: ServerConfig) -> None:
    """Raises ApiError 403 for a request that a page of another site may have had sent."""
    if is_foreign(headers) and not {"*", headers.get("origin")} & {*config.allow_origins}:
        raise ApiError(
            403, "pages of other sites may not use this server; --allow-origin allows it",
            code="origin_not_allowed", kind="permission_error",
        )  # fmt: skip
    name = _name_of(headers.get("host", ""))
    if not _may_be_called(name, config):
        raise ApiError(
            403,
            f"this server is not asked by the name {name[:200]!r}, as pages of other sites might "
            f"be behind it; --allowed-host allows it",
            code="host_not_allowed",
            kind="permission_error",
        )


def _may_be_called(name: str, config: ServerConfig) -> bool:
    allowed = {each.lower() for each in config.allowed_hosts}
    if "*" in allowed or not (allowed or config.is_local):
        return True
    if "." not in name or name.endswith(tuple(f".{domain}" for domain in _PRIVATE)):
        return True  # also where there is none: HTTP/1.0
    return name in (config.host.lower(), *allowed) or _is_address(name)


def _name_of(host: str) -> str:
    """The name in a Host field, without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
