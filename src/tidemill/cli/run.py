"""``tidemill run``: one prompt, one streamed answer."""

from __future__ import annotations

import sys
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.options import (
    Text,
    answer_context_option,
    engine_options,
    read_text,
    sampling_options,
    sampling_params,
    speculation_options,
    system_option,
    template_option,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from tidemill.llm import LLM, RequestOutput


@click.command()
@click.argument("model")
@click.argument("prompt", required=False, type=Text())
@system_option
@click.option("--raw", is_flag=True, help="Continue the text as it is, without a chat template.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object at the end, no streaming.")
@click.option(
    "--profile", is_flag=True, help="Then where the time went, and what this machine could do."
)
@click.option("--stats/--no-stats", default=None, help="Speed on stderr. [default: on a terminal]")
@template_option
@sampling_options
@answer_context_option
@engine_options
@speculation_options
def run(
    model: str,
    prompt: str | None,
    system: str | None,
    raw: bool,
    chat_template: str | None,
    as_json: bool,
    profile: bool,
    stats: bool | None,
    **options: Any,
) -> None:
    """Answer one prompt with MODEL and stream the answer.

    MODEL is a catalogue name (`tidemill list`), a .gguf file, a folder, hf://owner/repo,
    pypi://package or a URL. Without PROMPT, or with `-`, the prompt is read from stdin.
    The model's chat template is used if it has one, unless --raw. The answer ends when the model
    ends it; -n bounds it, Ctrl-C stops it.
    """
    text = _prompt_text(prompt)
    if raw and (system or chat_template):
        raise click.UsageError("--raw uses no chat template: no --system, no --chat-template")
    if profile and options["backend"] != "cpu":
        raise click.UsageError("--profile times the instructions of the cpu backend only")

    from time import monotonic

    from tidemill.cli.answer import Answer, describe_speed
    from tidemill.cli.loading import load
    from tidemill.cli.profile import report_text, steps_report, watch_steps

    params = sampling_params(options)
    started = monotonic()
    quiet = options["quiet"]
    # One prompt has nobody to share its beginning with.
    llm = load(model, options, prefix_caching=False)
    loaded = monotonic()
    with llm:
        if not quiet:
            print(llm.core.compiled.describe_threads(), file=sys.stderr)
        stream = _stream(llm, text, params, raw, system, chat_template)
        watched = watch_steps(llm.core.compiled) if profile else nullcontext()
        # Its end drops the request, also when Ctrl-C or a closed pipe ends the loop.
        with watched as steps, closing(stream):
            from tidemill.llm import ContextLengthError

            answer = Answer(None if as_json else sys.stdout)
            try:
                for delta in stream:
                    answer.add(delta)
            except ContextLengthError as error:
                raise click.ClickException(
                    f"{error}; --context N gives more room where the model has it"
                ) from None
        answer.end()
        if steps is not None:
            report = steps_report(steps, llm.core.compiled)
    if answer.error:
        raise click.ClickException(answer.error)
    summary = answer.summary()
    if as_json:
        import json

        summary["timings"]["load_s"] = loaded - started
        if profile:
            summary["profile"] = report
        click.echo(json.dumps({"model": model, **summary}, ensure_ascii=False, indent=2))
    elif stats or (stats is None and not quiet and sys.stderr.isatty()):
        print(describe_speed(summary), file=sys.stderr)
    if profile and not as_json:
        print(f"\n{report_text(report)}", file=sys.stderr)


def _stream(
    llm: LLM, text: str, params: Any, raw: bool, system: str | None, template: str | None
) -> Generator[RequestOutput, None, None]:
    plain = not llm.core.has_chat_template and system is None and template is None
    if raw or plain:
        return llm.stream(text, params)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": text})
    return llm.stream_chat(messages, params, chat_template=template)


def _prompt_text(prompt: str | None) -> str:
    if prompt is None or prompt == "-":
        if sys.stdin.isatty():
            print("Prompt (end with Ctrl-D):", file=sys.stderr)
        prompt = read_text(sys.stdin, "the prompt")
    if not prompt.strip():
        raise click.UsageError("the prompt is empty; give it as an argument or on stdin")
    return prompt
