"""``tidemill key``: who may use the server, and how much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tidemill.server.keys import Tenant

F = TypeVar("F", bound=Callable[..., Any])

_COUNT = click.IntRange(min=1)
_SETTINGS = (
    click.option("--model", "models", multiple=True, help="Only for this model; repeatable."),
    click.option("--priority", type=click.IntRange(-1000, 1000), help="Smaller is served first."),
    click.option("--weight", type=click.FloatRange(min=0, max=1e6, min_open=True),
                 help="Share beside others of the same priority. [default: 1]"),
    click.option("--admin/--no-admin", default=None, help="May load and change models."),
    click.option("--metrics/--no-metrics", default=None,
                 help="Sees the figures of all tenants at /metrics."),
    click.option("--requests-per-minute", type=_COUNT, metavar="N"),
    click.option("--tokens-per-minute", type=_COUNT, metavar="N"),
    click.option("--tokens-per-day", type=_COUNT, metavar="N",
                 help="Kept over restarts in a database, not in a TOML file."),
    click.option("--max-concurrent", type=_COUNT, metavar="N", help="Requests at the same time."),
    click.option("--burst-requests", type=_COUNT, metavar="N",
                 help="Requests that may come at once. [default: a minute's]"),
    click.option("--burst-tokens", type=_COUNT, metavar="N",
                 help="Tokens that may be asked for at once. [default: a minute's]"),
)  # fmt: skip
_NAMES = (
    "models", "priority", "weight", "admin", "metrics", "requests_per_minute",
    "tokens_per_minute", "tokens_per_day", "max_concurrent", "burst_requests", "burst_tokens",
)  # fmt: skip

_file_option = click.option(
    "-f", "--file", "path", required=True, type=click.Path(dir_okay=False, path_type=Path),
    help="Database (keys.db) or TOML file of keys.",
)  # fmt: skip


def _settings_options(command: F) -> F:
    for option in reversed(_SETTINGS):
        command = option(command)
    return command


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """Those that were set."""
    given = {name: value for name, value in settings.items() if value is not None}
    if not given["models"]:
        del given["models"]
    return given


@click.group()
def key() -> None:
    """API keys for `tidemill serve --api-key-file`.

    A file of keys is a SQLite database (keys.db), or TOML to be edited by hand. A server that runs
    notices what changes in either.
    """


@key.command("new")
@click.argument("tenant")
@_file_option
@_settings_options
def new_key(tenant: str, path: Path, **settings: Any) -> None:
    """Make a key for TENANT: it is shown once, and the file gets its hash."""
    from tidemill.server import keys
    from tidemill.server.key_stores import open_key_store

    made = keys.new_key()
    open_key_store(path).add_key(tenant, _given(settings), keys.digest_of(made))
    click.echo(made)


@key.command("list")
@_file_option
def list_keys(path: Path) -> None:
    """Show tenants, the beginnings of their keys' hashes, and their settings."""
    from tidemill.server.key_stores import open_key_store

    for tenant in open_key_store(path).read():
        digests = " ".join(digest[:8] for digest in tenant.sha256) or "no key"
        click.echo(f"{tenant.name}: {digests}{_describe(tenant)}")


def _describe(tenant: Tenant) -> str:
    """What is not as it comes."""
    from tidemill.server.keys import Tenant

    plain = Tenant(tenant.name)
    values = {name: getattr(tenant, name) for name in _NAMES}
    return "".join(
        f", {name} {' '.join(value) if isinstance(value, tuple) else value}"
        for name, value in values.items()
        if value != getattr(plain, name)
    )


@key.command("set")
@click.argument("tenant")
@_file_option
@_settings_options
@click.option("--clear", multiple=True, metavar="NAME", type=click.Choice(_NAMES),
              help="Give this setting its default; repeatable.")  # fmt: skip
def set_tenant(tenant: str, path: Path, clear: tuple[str, ...], **settings: Any) -> None:
    """Change what TENANT may do; its keys stay."""
    from tidemill.server.key_stores import open_key_store

    given = _given(settings)
    if both := set(given) & set(clear):
        raise click.UsageError(f"{min(both)} is both set and cleared")
    if not given and not clear:
        raise click.UsageError("say what to set, or to clear")
    open_key_store(path).change(tenant, {**given, **dict.fromkeys(clear)})


@key.command("revoke")
@click.argument("tenant")
@_file_option
@click.option("--key", "prefix", metavar="HASH",
              help="Only the key whose hash begins so; see `key list`.")  # fmt: skip
def revoke(tenant: str, path: Path, prefix: str | None) -> None:
    """Withdraw the keys of TENANT, and TENANT with the last one."""
    from tidemill.server.key_stores import open_key_store

    if prefix == "":  # a variable that was not set, say
        raise click.UsageError("--key is empty; leave it out to withdraw all keys")
    count = open_key_store(path).revoke(tenant, prefix or "")
    click.echo(f"{count} key{'' if count == 1 else 's'} of {tenant} withdrawn", err=True)
