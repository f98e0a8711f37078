"""``tidemill bench report``: results as a page with pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidemill.cli.bench_results import open_store

if TYPE_CHECKING:
    from pathlib import Path

_HTML = "bench-report.html"


@click.command("report", short_help="Results as a page with pictures.")
@click.argument("which", nargs=-1, metavar="[ID|NAME|FILE.json]...")
@click.option("--html", metavar="FILE", help=f"Write the page there. [default: {_HTML}]")
@click.option(
    "--markdown", metavar="FILE", help="Write Markdown there, and pictures in a folder beside it."
)
@click.option("--open", "show", is_flag=True, help="Show the page in a browser.")
def report(which: tuple[str, ...], html: str | None, markdown: str | None, show: bool) -> None:
    """Make a report of results: who is better at what, how sure that is, and what was done.

    It is one HTML file that needs no network. Without arguments it has the newest run of each
    scenario and target. A NAME stands for all runs that were given it with --name; a FILE is what
    --json wrote, which has no single requests, and so makes fewer pictures.
    """
    from pathlib import Path

    from tidemill.bench.reporting import files
    from tidemill.bench.reporting import report as made
    from tidemill.bench.reporting.chosen import choose

    document = made(choose(open_store(), which))
    if markdown is not None:
        folder = files.write_markdown(document, Path(markdown))
        click.echo(f"{markdown}: written, with its pictures in {folder}")
    if html is None and markdown is not None and not show:
        return
    path = Path(html or _HTML)
    files.write_html(document, path)
    click.echo(f"{path}: written ({path.stat().st_size / 1024:.0f} KiB)")
    if show:
        _show(path)


def _show(path: Path) -> None:
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        raise click.ClickException(f"no browser was found here: open {path} yourself")
