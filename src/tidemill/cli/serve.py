"""``tidemill serve``: the HTTP server."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

import click

from tidemill.cli.options import kv_dtype_option, pre_tokenizer_option, template_option


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="[default: 8000; 0: any free one]")
@click.option(
    "--api-key-file", metavar="FILE", help="Tenants and the hashes of their keys; see `key new`."
)
@click.option("--insecure", is_flag=True, help="Listen beyond this machine without keys.")
@click.option("--config", "config_file", metavar="FILE", help="Settings as TOML.")
@click.option("--print-config", is_flag=True, help="Show the settings of all sources, and end.")
@click.option("--name", help="What clients call the model. [default: its own name]")
@click.option("-c", "--context", "max_context", type=click.IntRange(min=2), metavar="N",
              help="Most tokens of prompt and answer together. [default: the model's, at most "
              "8192]")  # fmt: skip
@click.option("-t", "--threads", type=click.IntRange(1, 1024), metavar="N",
              help="Compute threads. [default: the cores that this process may use]")  # fmt: skip
@click.option("--max-sequences", type=click.IntRange(min=1), metavar="N",
              help="Most sequences computed at once. [default: 64]")  # fmt: skip
@click.option("--kv-memory", type=click.IntRange(min=1), metavar="BYTES",
              help="Size of the KV cache. [default: a quarter of the free memory]")  # fmt: skip
@click.option("--kv-disk", metavar="SIZE",
              help="Keep computed KV blocks on disk as well, up to SIZE, such as 4GiB. "
              "[default: off]")  # fmt: skip
@kv_dtype_option
@pre_tokenizer_option
@template_option
@click.option("--target-itl", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
              help="Time between two tokens to aim at while others begin.")  # fmt: skip
@click.option("--speculative", type=click.Choice(["auto", "lookup", "off"]),
              help="Guess tokens from what has been said before. [default: auto]")  # fmt: skip
@click.option("--max-waiting", type=click.IntRange(min=1), metavar="N",
              help="Requests queued before 429. [default: 512]")  # fmt: skip
@click.option("--keep-alive", "keep_alive_seconds", type=click.FloatRange(min=0, min_open=True),
              metavar="SECONDS", help="Unload models that nobody used for so long.")  # fmt: skip
@click.option("--max-loaded", type=click.IntRange(min=1), metavar="N",
              help="Most models in memory at once. [default: all]")  # fmt: skip
@click.option("--drain", "drain_seconds", type=click.FloatRange(min=0, min_open=True),
              metavar="SECONDS", help="What SIGTERM gives to requests. [default: 30]")  # fmt: skip
@click.option("--allow-origin", "allow_origins", multiple=True, metavar="ORIGIN",
              help="A web page's origin that may use the API; repeatable.")  # fmt: skip
@click.option("--allowed-host", "allowed_hosts", multiple=True, metavar="NAME",
              help="A name that clients may ask for, without keys; repeatable.")  # fmt: skip
@click.option("--offline", is_flag=True, help="Never use the network for models.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="[default: text]")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]),
              help="[default: info]")  # fmt: skip
@click.option("--log-prompts", is_flag=True, help="Log prompts and answers too.")
@click.option("--otlp-endpoint", metavar="URL",
              help="OpenTelemetry collector to send traces to (OTLP over HTTP).")  # fmt: skip
def serve(
    models: tuple[str, ...], config_file: str | None, print_config: bool, **flags: Any
) -> None:
    """Serve MODELs over HTTP with the OpenAI API.

    MODEL is what `tidemill run` takes. Settings can also come from --config, and from environment
    variables such as TIDEMILL_PORT; the command line comes first, then the environment, then the
    file. Options about a model are for the MODELs given here.
    """
    from tidemill.server.config import as_toml, config_path, load_config

    options = {name: flags.pop(name) for name in _MODEL_OPTIONS}
    for name in ("insecure", "offline", "log_prompts"):
        flags[name] = flags[name] or None
    for name in ("allow_origins", "allowed_hosts"):
        flags[name] = list(flags[name]) or None
    if options["name"] and len(models) > 1:
        raise click.UsageError("--name is for one MODEL; give several in a --config file")
    given = {name: value for name, value in options.items() if value is not None}
    if models:
        flags["models"] = [{"source": model, **given} for model in models]
    config = load_config(config_path(config_file), os.environ, flags)
    if print_config:
        click.echo(as_toml(config), nl=False)
        return
    if not config.models:
        raise click.UsageError("name a MODEL to serve, here or in --config; try smollm2")

    from tidemill.server.errors import ModelUnavailable
    from tidemill.server.logs import configure_logging
    from tidemill.server.serve import serve as run

    configure_logging(config.log_level, config.log_format, log_prompts=config.log_prompts)
    names = ", ".join(model.name for model in config.models)

    def on_ready(url: str) -> None:
        with suppress(OSError):  # nobody reads it
            print(f"tidemill: serving {names} at {url}/v1 (Ctrl-C ends it)", file=sys.stderr)

    try:
        run(config, on_ready=on_ready)
    except ModelUnavailable as error:
        raise click.ClickException(str(error)) from None


_MODEL_OPTIONS = (
    "name", "max_context", "threads", "max_sequences", "kv_memory", "kv_disk", "kv_dtype",
    "pre_tokenizer", "chat_template", "target_itl", "speculative",
)  # fmt: skip
