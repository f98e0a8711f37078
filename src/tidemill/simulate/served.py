"""What a server adds to its engine's steps: measured through HTTP, with the steps' own times taken
away.

Before a request's first step come HTTP, the chat template, the tokenizer and the way to the model's
process. Each step then sends its tokens on, which on a CPU takes time from the next one. So the
time to the first token of single requests is compared with that of their prompts' step, and the
time between tokens of 1, 4, 8 ... streams with that of steps of so many decodes.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tidemill.bench.client import Client, Endpoint, Reply
from tidemill.bench.engines import ENGINES, MODEL_NAME, Launch, TargetError, started
from tidemill.bench.stream import Answer, read
from tidemill.bench.targets import FULL_LENGTH, GREEDY
from tidemill.bench.workload import Fixed, Shape, Workload
from tidemill.engine.step_time import attended
from tidemill.simulate.base import StepTime, StepWork
from tidemill.simulate.calibration import Served
from tidemill.simulate.fit import nonnegative_least_squares

_STREAMS = (1, 2, 4, 8, 16)
_WORDS = 6  # of a prompt: the longer its step, the less can be said of what comes before it
_TOKENS = 48  # of an answer
_READY_SECONDS = 300.0
_TIMEOUT = 300.0

Say = Callable[[str], None]


def measure_served(
    model: Path,
    steps: StepTime,
    *,
    context: int,
    sequences: int,
    threads: int,
    requests: int = 20,
    repeats: int = 3,
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
            return asyncio.run(_measure(endpoint, steps, sequences, requests, repeats, say))


async def _measure(
    endpoint: Endpoint, steps: StepTime, sequences: int, requests: int, repeats: int, say: Say
) -> Served:
    client = Client(endpoint, _TIMEOUT)
    numbers = itertools.count()

    async def ask(streams: int, tokens: int) -> list[tuple[Reply, Answer]]:
        """So many requests at once, each with a prompt of its own and an answer of ``tokens``."""
        workload = Workload((Shape("words", Fixed(_WORDS), Fixed(tokens)),))
        bodies = [endpoint.body(workload.prompt(next(numbers))) for _ in range(streams)]
        replies = await asyncio.gather(*(client.send(body) for body in bodies))
        answers = [(reply, read(reply)) for reply in replies]
        for _, answer in answers:
            if answer.error is not None:
                raise TargetError(f"the server's answer failed, {answer.error}: {answer.detail}")
        return answers

    try:
        await ask(2, 4)  # the first requests of a server load what they need
        first = []
        for done in range(requests):
            say(f"request {done + 1} of {requests}")
            first += await ask(1, 2)
        counts = [n for n in _STREAMS if n <= sequences]
        gaps: dict[int, list[tuple[float, float]]] = {n: [] for n in counts}
        for _ in range(repeats):
            for n in counts:
                say(f"{n} streams")
                gaps[n].append(_gap(await ask(n, _TOKENS)))
    finally:
        client.close()
    return served_costs(
        steps,
        [(reply.sent, answer) for reply, answer in first],
        {n: _medians(found) for n, found in gaps.items()},
    )


def served_costs(
    steps: StepTime,
    first: Sequence[tuple[float, Answer]],
    gaps: dict[int, tuple[float, float]],
) -> Served:
    """``first``: when single requests were sent, and their answers; ``gaps``: seconds between
    tokens of so many streams, and the tokens that each attended to meanwhile."""
    prompts = [answer.times[0] - sent - _prompt_seconds(steps, answer) for sent, answer in first]
    per_request = max(0.0, statistics.median(prompts))
    middle = statistics.median(answer.times[0] - sent for sent, answer in first)
    low, high = np.quantile(prompts, (0.25, 0.75))
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
        per_request=max(0.0, per_request - float(per_step + per_token)),
        per_step=float(per_step),
        per_token=float(per_token),
        spread=float(high - low) / 2 / middle,
    )


def _prompt_seconds(steps: StepTime, answer: Answer) -> float:
    cached = answer.cached_tokens or 0
    new = (answer.prompt_tokens or 0) - cached
    return steps.seconds(StepWork(new, attended(cached, new), 0, 0, 1))


def _gap(answers: Sequence[tuple[Reply, Answer]]) -> tuple[float, float]:
    """Seconds between tokens while all streams were sending, and the tokens attended to then."""
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
    return statistics.median(gaps), context + _TOKENS / 2


def _medians(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(gap for gap, _ in found), statistics.mean(c for _, c in found)
