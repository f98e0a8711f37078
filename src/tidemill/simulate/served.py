"""What a server adds to its engine's steps: measured through HTTP, with the steps' own times taken
away.

Before a request's first step come HTTP, the chat template, the tokenizer and the way to the model's
process; the longer a prompt is, the longer that takes. Each step then sends its tokens on, which on
a CPU takes time from the next one. So the time to the first token of single requests, with short
prompts and with long ones, is compared with that of their prompts' step, and the time between
tokens of 1, 2, 4 ... streams with that of steps of so many decodes. All but a few tokens of a long
prompt are in the prefix cache, or its step would take so long that it hides what came before it.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tidemill.bench.client import Client, Endpoint
from tidemill.bench.engines import ENGINES, MODEL_NAME, Launch, TargetError, started
from tidemill.bench.stream import Answer, read
from tidemill.bench.targets import FULL_LENGTH, GREEDY
from tidemill.bench.workload import Fixed, Shape, Workload
from tidemill.engine.step_time import attended
from tidemill.hardware.scheduling import wake_promptly
from tidemill.simulate.base import StepTime, StepWork
from tidemill.simulate.calibration import Served
from tidemill.simulate.fit import nonnegative_least_squares

_STREAMS = (1, 2, 4, 8, 16)
_WORDS = 6  # of a prompt: the longer its step, the less can be said of what comes before it
_BEGINNING = 1500  # words of a long prompt before these
_TOKENS = 48  # of an answer
_READY_SECONDS = 300.0
_TIMEOUT = 300.0

Say = Callable[[str], None]
Sent = tuple[float, Answer]
"""When a request was sent, and what came back."""


def measure_served(
    model: Path,
    steps: StepTime,
    *,
    context: int,
    sequences: int,
    threads: int,
    requests: int,
    repeats: int,
    say: Say = lambda _: None,
) -> Served:
    """Starts ``tidemill serve`` with ``model`` for it. Raises TargetError."""
    with tempfile.TemporaryDirectory(prefix="tidemill-calibrate-") as folder:
        launch = Launch(
            model=model, context=context, sequences=sequences, threads=threads, folder=Path(folder)
        )
        with started(ENGINES["tidemill"], launch) as process:
            process.until_ready(_READY_SECONDS)
            endpoint = Endpoint(process.url, MODEL_NAME, extra={**GREEDY, **FULL_LENGTH})
            return asyncio.run(
                _measure(endpoint, steps, context, sequences, requests, repeats, say)
            )


async def _measure(
    endpoint: Endpoint, steps: StepTime, context: int, sequences: int, requests: int, repeats: int,
    say: Say,
) -> Served:  # fmt: skip
    wake_promptly()  # as the load generator does
    client = Client(endpoint, _TIMEOUT)
    numbers = itertools.count()

    async def ask(streams: int, tokens: int, prefix: int = 0) -> list[Sent]:
        """So many requests at once, each with a prompt of its own after a beginning of ``prefix``
        words, and an answer of ``tokens``."""
        workload = Workload((Shape("words", Fixed(_WORDS), Fixed(tokens), prefix=prefix),))
        bodies = [endpoint.body(workload.prompt(next(numbers))) for _ in range(streams)]
        replies = await asyncio.gather(*(client.send(body) for body in bodies))
        answers = [(reply.sent, read(reply)) for reply in replies]
        for _, answer in answers:
            if answer.error is not None:
                raise TargetError(f"the server's answer failed, {answer.error}: {answer.detail}")
        return answers

    # A word has three tokens at most, and the template and the answer need some.
    prefix = min(_BEGINNING, context // 4)
    short: list[Sent] = []
    long: list[Sent] = []
    try:
        for words in (0, prefix):  # the first requests of a server load what they need
            await ask(2, 4, words)
        for done in range(requests):
            say(f"request {done + 1} of {requests}")
            short += await ask(1, 2)
            long += await ask(1, 2, prefix)
        counts = [n for n in _STREAMS if n <= sequences]
        gaps: dict[int, list[tuple[float, float]]] = {n: [] for n in counts}
        for _ in range(repeats):
            for n in counts:
                say(f"{n} streams")
                gaps[n].append(mean_gap(await ask(n, _TOKENS)))
    finally:
        client.close()
    return served_costs(steps, short, long, {n: _medians(found) for n, found in gaps.items()})


def served_costs(
    steps: StepTime,
    short: Sequence[Sent],
    long: Sequence[Sent],
    gaps: dict[int, tuple[float, float]],
) -> Served:
    """``short``, ``long``: single requests, with such prompts; ``gaps``: seconds between tokens of
    so many streams, and the tokens that each attended to meanwhile."""
    before, tokens = _before_step(steps, short)
    before_long, tokens_long = _before_step(steps, long)
    per_prompt_token = 0.0
    if tokens_long > tokens:
        per_prompt_token = max(0.0, (before_long - before) / (tokens_long - tokens))
    firsts = [answer.times[0] - sent for sent, answer in short]
    low, middle, high = np.quantile(firsts, (0.25, 0.5, 0.75))
    matrix = np.array([[1.0, n] for n in gaps])
    added = np.array(
        [
            max(0.0, seconds - steps.seconds(StepWork(0, 0, n, round(n * context), n)))
            for n, (seconds, context) in gaps.items()
        ]
    )
    weights = np.array([[1.0 / seconds] for seconds, _ in gaps.values()])
    per_step, per_token = nonnegative_least_squares(matrix * weights, added * weights[:, 0])
    return Served(
        # The first token's way out is in the time to it, as one of a step.
        per_request=max(0.0, before - per_prompt_token * tokens - float(per_step + per_token)),
        per_prompt_token=per_prompt_token,
        per_step=float(per_step),
        per_token=float(per_token),
        spread=float((high - low) / 2 / middle),
    )


def _before_step(steps: StepTime, requests: Sequence[Sent]) -> tuple[float, float]:
    """Seconds to the first token that were not of its prompt's step, and tokens of a prompt."""
    before = []
    for sent, answer in requests:
        cached = answer.cached_tokens or 0
        new = (answer.prompt_tokens or 0) - cached
        step = steps.seconds(StepWork(new, attended(cached, new), 0, 0, 1))
        before.append(answer.times[0] - sent - step)
    return statistics.median(before), statistics.fmean(a.prompt_tokens or 0 for _, a in requests)


def mean_gap(answers: Sequence[Sent]) -> tuple[float, float]:
    """Mean seconds between tokens while all streams were sending, and the tokens attended to then.
    The mean, as that is what an answer takes: now and then a step waits for a core that sending
    its tokens has taken, which a median knows nothing of."""
    begin = max(answer.times[0] for _, answer in answers)
    end = min(answer.times[-1] for _, answer in answers)
    gaps = [
        b - a
        for _, answer in answers
        for a, b in itertools.pairwise(answer.times)
        if a >= begin and b <= end
    ]
    if not gaps:
        raise TargetError("the server's streams did not overlap; was it stopped for a while?")
    context = statistics.mean((answer.prompt_tokens or 0) for _, answer in answers)
    return statistics.fmean(gaps), context + _TOKENS / 2


def _medians(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(gap for gap, _ in found), statistics.mean(c for _, c in found)
