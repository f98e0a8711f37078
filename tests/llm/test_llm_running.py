"""LLM while it runs: streams, threads, Ctrl-C, closing."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from llm.helpers import GREEDY, PROMPTS, ids
from tidemill import LLM, SamplingParams
from tidemill.llm import RequestOutput


def test_streaming_gives_the_same_text(llm: LLM) -> None:
    (whole,) = llm.generate("Hello", GREEDY)
    deltas = list(llm.stream("Hello", GREEDY))
    assert "".join(o.text for d in deltas for o in d.outputs) == whole.outputs[0].text
    assert [t for d in deltas for o in d.outputs for t in o.token_ids] == ids([whole])[0]
    assert [d.finished for d in deltas] == [False] * (len(deltas) - 1) + [True]
    with pytest.raises(ValueError):
        next(llm.stream("", GREEDY))


def test_leaving_a_stream_drops_its_request(llm: LLM) -> None:
    stream = llm.stream("Hello", SamplingParams(max_tokens=None, ignore_eos=True))
    next(stream)
    assert llm.core.driver.busy
    stream.close()
    assert not llm.core.driver.busy
    assert llm.core.driver.engine.stats.running == 0


def test_two_streams_and_a_batch_can_be_interleaved(llm: LLM) -> None:
    expected = ids(llm.generate(["Hello", "The sky is", "x"], GREEDY))
    one, two = llm.stream("Hello", GREEDY), llm.stream("The sky is", GREEDY)
    found: list[list[int]] = [[], []]
    for _ in range(3):
        for which, stream in enumerate((one, two)):
            found[which] += next(stream).outputs[0].token_ids
    three = ids(llm.generate("x", GREEDY))[0]
    for which, stream in enumerate((one, two)):
        found[which] += [t for d in stream for o in d.outputs for t in o.token_ids]
    assert [*found, three] == expected


def test_several_threads(llm: LLM) -> None:
    expected = {prompt: ids(llm.generate(prompt, GREEDY))[0] for prompt in PROMPTS}
    found: dict[str, list[int]] = {}

    def work(prompt: str) -> None:
        found[prompt] = ids(llm.generate(prompt, GREEDY))[0]

    threads = [threading.Thread(target=work, args=(prompt,)) for prompt in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == expected


def test_ctrl_c_drops_the_requests_and_leaves_the_llm_usable(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ids(llm.generate(PROMPTS, GREEDY))
    runner = llm.core.compiled.runner
    forward, calls = runner.forward, []

    class Interrupting:
        def __getattr__(self, name: str) -> Any:
            return getattr(runner, name)

        def forward(self, batch: Any) -> Any:
            calls.append(len(batch.tokens))
            if len(calls) == 3:
                signal.raise_signal(signal.SIGINT)  # in the middle of a step
                calls.append(0)
            return forward(batch)

    with monkeypatch.context() as patch:
        patch.setattr(llm.core.driver.engine, "_runner", Interrupting())
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, GREEDY)
    assert calls[3:] == [0]  # the step was completed, and was the last
    assert not llm.core.driver.busy
    assert llm.core.driver.engine.stats.running == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert ids(llm.generate(PROMPTS, GREEDY)) == expected


def test_a_handler_of_ones_own_is_called_between_steps_and_may_go_on(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ids(llm.generate(PROMPTS, GREEDY))
    engine, events = llm.core.driver.engine, []
    step = engine.step

    def interrupted_step(now: float) -> Any:
        events.append("step")
        if len(events) == 2:
            signal.raise_signal(signal.SIGINT)
        return step(now)

    def handler(number: int, frame: Any) -> None:
        events.append(number)

    before = signal.signal(signal.SIGINT, handler)
    try:
        monkeypatch.setattr(engine, "step", interrupted_step)
        assert ids(llm.generate(PROMPTS, GREEDY)) == expected
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert events[:4] == ["step", "step", signal.SIGINT, "step"]
    assert events.count(signal.SIGINT) == 1


def test_ctrl_c_ends_a_stream_after_the_step(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, done = llm.core.driver.engine, []
    step = engine.step

    def interrupted_step(now: float) -> Any:
        signal.raise_signal(signal.SIGINT)
        done.append(step(now))
        return done[-1]

    with monkeypatch.context() as patch:
        patch.setattr(engine, "step", interrupted_step)
        with pytest.raises(KeyboardInterrupt):
            list(llm.stream(PROMPTS[0], GREEDY))
    assert len(done) == 2  # the step, and one that clears up what was dropped
    assert not llm.core.driver.busy
    assert engine.stats.running == 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_progress_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(PROMPTS, GREEDY, use_tqdm=True)
    assert "4/4" in capsys.readouterr().err
    llm.generate(PROMPTS, GREEDY)
    assert capsys.readouterr().err == ""


def test_closing(tiny_chat_model: Path) -> None:
    model = LLM(str(tiny_chat_model), threads=1)
    model.close()
    model.close()
    for call in (
        lambda: model.generate("x", GREEDY),
        lambda: model.chat([{"role": "user", "content": "x"}], GREEDY),
        lambda: next(model.stream("x", GREEDY)),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_closing_waits_for_the_step_of_another_thread(tiny_chat_model: Path) -> None:
    model = LLM(str(tiny_chat_model), threads=1)
    runner = model.core.compiled.runner
    in_step, closing, order = threading.Event(), threading.Event(), []

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(runner, name)

        def forward(self, batch: Any) -> Any:
            in_step.set()
            assert closing.wait(60)
            logits = runner.forward(batch)
            order.append("step")
            return logits

    model.core.driver.engine._runner = Slow()
    found: list[RequestOutput] = []
    thread = threading.Thread(target=lambda: found.extend(model.generate(PROMPTS, GREEDY)))
    thread.start()
    assert in_step.wait(60)
    closing.set()
    model.close()
    order.append("closed")
    thread.join(60)
    assert order[-1] == "closed"
    assert all(output.finished for output in found)
    assert len(found) == len(PROMPTS)
    assert all("closed" in output.error for output in found if output.error)
    with pytest.raises(RuntimeError, match="closed"):
        model.generate("x", GREEDY)
