"""AsyncLLM on a tiny random model: streams, concurrency, cancellation, isolation, closing."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from llm.helpers import GREEDY, PROMPTS
from support.tiny_chat_model import write_chat_model
from tidemill import LLM, AsyncLLM, SamplingParams
from tidemill.llm import QueueFullError, RequestOutput

T = TypeVar("T")
ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_chat_model: Path) -> Iterator[AsyncLLM]:
    model = AsyncLLM(str(tiny_chat_model), max_sequences=8, threads=1)
    yield model
    model.close()


@pytest.fixture(scope="module")
def expected(tiny_chat_model: Path) -> dict[str, list[int]]:
    with LLM(str(tiny_chat_model), threads=1) as model:
        return {o.prompt or "": o.outputs[0].token_ids for o in model.generate(PROMPTS, GREEDY)}


def run(main: Awaitable[T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(main, 120)

    return asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread is about to do; ``run`` bounds it."""
    while not condition():
        await asyncio.sleep(0.005)


async def collect(stream: AsyncIterator[RequestOutput]) -> list[RequestOutput]:
    return [output async for output in stream]


def idle(llm: AsyncLLM) -> bool:
    stats = llm.core.driver.engine.stats
    return not llm.core.driver.busy and stats.running == 0 and stats.waiting == 0


def test_cumulative_delta_and_final(llm: AsyncLLM, expected: dict[str, list[int]]) -> None:
    async def main() -> None:
        cumulative = await collect(llm.generate("Hello", GREEDY, request_id="mine"))
        lengths = [len(o.outputs[0].token_ids) for o in cumulative]
        assert lengths == sorted(lengths)
        assert lengths[-1] == 12
        assert cumulative[-1].request_id == "mine"
        assert [o.finished for o in cumulative] == [False] * (len(cumulative) - 1) + [True]
        deltas = await collect(llm.generate("Hello", GREEDY, output="delta"))
        tokens = [t for d in deltas for o in d.outputs for t in o.token_ids]
        text = "".join(o.text for d in deltas for o in d.outputs)
        (final,) = await collect(llm.generate("Hello", GREEDY, output="final"))
        last = cumulative[-1].outputs[0]
        assert tokens == last.token_ids == final.outputs[0].token_ids == expected["Hello"]
        assert text == last.text == final.outputs[0].text

    run(main())


def test_concurrent_streams_are_as_if_alone(llm: AsyncLLM, expected: dict[str, list[int]]) -> None:
    async def main() -> None:
        streams = [llm.generate(p, GREEDY, output="final") for p in PROMPTS * 10]
        outputs = await asyncio.gather(*(collect(s) for s in streams))
        for (output,) in outputs:
            assert output.outputs[0].token_ids == expected[output.prompt or ""]

    run(main())
    run(until(lambda: idle(llm)))  # the thread ends its step after it has told what came of it


def test_equal_request_ids_do_not_meet(llm: AsyncLLM, expected: dict[str, list[int]]) -> None:
    async def main() -> None:
        doomed = llm.generate("The sky is", ENDLESS, request_id="same")
        await anext(doomed)
        other = asyncio.create_task(collect(llm.generate("Hello", GREEDY, request_id="same")))
        await doomed.aclose()
        assert (await other)[-1].outputs[0].token_ids == expected["Hello"]

    run(main())


@pytest.mark.parametrize("how", ["break", "aclose", "cancel"])
def test_leaving_a_stream_drops_its_request_and_no_other(
    llm: AsyncLLM, expected: dict[str, list[int]], how: str
) -> None:
    async def main() -> None:
        others = [asyncio.create_task(collect(llm.generate(p, GREEDY))) for p in PROMPTS]
        if how == "break":
            async for _ in llm.generate("Hello there", ENDLESS):
                break
        elif how == "aclose":
            stream = llm.generate("Hello there", ENDLESS)
            await anext(stream)
            await stream.aclose()
        else:
            started = asyncio.Event()

            async def read() -> None:
                async for _ in llm.generate("Hello there", ENDLESS):
                    started.set()

            task = asyncio.create_task(read())
            await started.wait()
            task.cancel()
            (end,) = await asyncio.gather(task, return_exceptions=True)
            assert end is None or isinstance(end, asyncio.CancelledError)  # it may be over
        for prompt, other in zip(PROMPTS, others, strict=True):
            assert (await other)[-1].outputs[0].token_ids == expected[prompt]
        await until(lambda: idle(llm))

    run(main())


def test_cancelled_before_it_ran(llm: AsyncLLM) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(collect(llm.generate("Hello", ENDLESS))) for _ in range(30)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(r, asyncio.CancelledError) for r in results)
        await until(lambda: idle(llm))

    run(main())


def test_a_slow_reader_holds_nobody_up_and_misses_nothing(
    llm: AsyncLLM, expected: dict[str, list[int]]
) -> None:
    async def main() -> None:
        slow = llm.generate("Hello", GREEDY, output="delta")
        deltas = [await anext(slow)]
        # While nobody reads it, it runs to its end, and so do the others.
        outputs = await asyncio.gather(*(collect(llm.generate(p, GREEDY)) for p in PROMPTS))
        assert all(o[-1].finished for o in outputs)
        await until(lambda: idle(llm))
        deltas += await collect(slow)
        assert [t for d in deltas for o in d.outputs for t in o.token_ids] == expected["Hello"]
        assert len(deltas) <= 3  # what had piled up came in one go

    run(main())


def test_chat(llm: AsyncLLM) -> None:
    async def main() -> None:
        messages = [{"role": "user", "content": "Hi"}]
        (final,) = await collect(llm.chat(messages, GREEDY, output="final"))
        assert final.prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        assert len(final.outputs[0].token_ids) == 12

    run(main())


def test_invalid_input_is_raised_and_hurts_nobody(
    llm: AsyncLLM, expected: dict[str, list[int]]
) -> None:
    async def main() -> None:
        good = asyncio.create_task(collect(llm.generate("Hello", GREEDY)))
        bad: list[Any] = ["", {"prompt_token_ids": [10**9]}, "x" * 5000, 3]
        for prompt in bad:
            with pytest.raises(ValueError):
                await collect(llm.generate(prompt, GREEDY))
        with pytest.raises(ValueError, match="output"):
            await collect(llm.generate("x", GREEDY, output="everything"))  # type: ignore[arg-type]
        wrong: list[dict[str, Any]] = [{"priority": "first"}, {"salt": 3}, {"request_id": 3}]
        for options in wrong:
            with pytest.raises(ValueError, match=next(iter(options))):
                await collect(llm.generate("x", GREEDY, **options))
        with pytest.raises(ValueError, match="SamplingParams"):
            await collect(llm.generate("x", {"temperature": 0}))  # type: ignore[arg-type]
        assert (await good)[-1].outputs[0].token_ids == expected["Hello"]

    run(main())


def test_a_failing_step_ends_with_an_error_not_a_hang(
    llm: AsyncLLM, expected: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(
                llm.core.driver.engine, "step", lambda now: (_ for _ in ()).throw(OSError("boom"))
            )
            outputs = await asyncio.gather(*(collect(llm.generate(p, GREEDY)) for p in PROMPTS))
        for output in outputs:
            assert output[-1].finished
            assert "boom" in (output[-1].error or "")
            assert output[-1].outputs[0].finish_reason == "error"
        (final,) = await collect(llm.generate("Hello", GREEDY, output="final"))
        assert final.outputs[0].token_ids == expected["Hello"]

    run(main())


def test_several_event_loops(llm: AsyncLLM, expected: dict[str, list[int]]) -> None:
    found: dict[str, list[int]] = {}

    def work(prompt: str) -> None:
        outputs = run(collect(llm.generate(prompt, GREEDY)))
        found[prompt] = outputs[-1].outputs[0].token_ids

    threads = [threading.Thread(target=work, args=(prompt,)) for prompt in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == expected


def test_a_loop_that_dies_leaves_nothing_running(llm: AsyncLLM) -> None:
    loop = asyncio.new_event_loop()
    stream = llm.generate("Hello", ENDLESS)
    loop.run_until_complete(asyncio.wait_for(anext(stream), 60))
    loop.close()  # without closing the stream
    run(until(lambda: idle(llm)))


def test_a_stream_that_is_forgotten_is_dropped(llm: AsyncLLM) -> None:
    async def main() -> None:
        stream = llm.generate("Hello", ENDLESS)
        await anext(stream)
        del stream
        gc.collect()
        await until(lambda: idle(llm))

    run(main())


def test_a_stream_stays_in_its_event_loop(llm: AsyncLLM) -> None:
    loop = asyncio.new_event_loop()
    stream = llm.generate("Hello", ENDLESS)
    loop.run_until_complete(asyncio.wait_for(anext(stream), 60))
    loop.close()

    async def go_on() -> None:
        with pytest.raises(RuntimeError, match="event loop in which it was begun"):
            await anext(stream)
        await until(lambda: idle(llm))

    run(go_on())


def test_hundreds_of_dropped_streams_leave_nothing(
    llm: AsyncLLM, expected: dict[str, list[int]]
) -> None:
    async def drop(i: int) -> None:
        params = SamplingParams(max_tokens=None, ignore_eos=True, n=1 + i % 3)
        stream = llm.generate(PROMPTS[i % 4], params)
        task = asyncio.create_task(anext(stream))
        for _ in range(i % 7):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await stream.aclose()

    async def main() -> None:
        good = asyncio.create_task(collect(llm.generate("Hello", GREEDY)))
        await asyncio.gather(*(drop(i) for i in range(400)))
        assert (await good)[-1].outputs[0].token_ids == expected["Hello"]
        engine = llm.core.driver.engine
        await until(lambda: idle(llm) and not engine.has_work)
        assert not llm._engine._mailboxes
        stats = engine.stats
        assert stats.free_blocks + stats.cached_blocks == llm.core.compiled.runner.kv.n_blocks

    run(main())


def test_a_full_queue_is_refused(tiny_chat_model: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(
            str(tiny_chat_model), max_sequences=1, max_waiting=2, threads=1
        ) as small:
            # So long that none ends before the last one comes.
            tasks = [asyncio.create_task(collect(small.generate("x", ENDLESS))) for _ in range(12)]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            refused = [r for r in results if isinstance(r, QueueFullError)]
            served = [r for r in results if isinstance(r, list)]
            assert len(refused) + len(served) == 12
            assert refused
            assert len(served) >= 2
            assert all(r[-1].finished and r[-1].error is None for r in served)

    run(main())


def test_closing_ends_streams_and_refuses_new_ones(tmp_path: Path) -> None:
    endless = write_chat_model(tmp_path / "endless.gguf", context=65536)

    async def main() -> None:
        model = AsyncLLM(str(endless), threads=1, max_sequences=2, max_context=65536)
        stream = model.generate("Hello", SamplingParams(n=2, max_tokens=None, ignore_eos=True))
        await anext(stream)
        await model.aclose()
        rest = await collect(stream)
        assert rest[-1].finished
        assert "closed" in (rest[-1].error or "")
        with pytest.raises(RuntimeError, match="closed"):
            await collect(model.generate("Hello", GREEDY))
        await model.aclose()

    run(main())


def test_the_thread_ends_when_closed(tiny_chat_model: Path) -> None:
    model = AsyncLLM(str(tiny_chat_model), threads=1)
    thread = model._engine._thread
    assert thread.is_alive()
    model.close()
    assert not thread.is_alive()


def test_a_forgotten_model_stops_its_thread(tiny_chat_model: Path) -> None:
    model = AsyncLLM(str(tiny_chat_model), threads=1)
    thread = model._engine._thread
    del model
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_a_program_that_never_closes_ends_cleanly(tiny_chat_model: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from tidemill import AsyncLLM, SamplingParams\n"
        "model = AsyncLLM(sys.argv[1], threads=1)\n"
        "async def main():\n"
        "    stream = model.generate('x', SamplingParams(max_tokens=None, ignore_eos=True))\n"
        "    print((await anext(stream)).outputs[0].token_ids)\n"
        "    globals()['kept'] = stream\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tiny_chat_model)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
