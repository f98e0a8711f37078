"""Stands for the package ``openvino_genai`` as far as ``openvino_server.py`` uses it.

Its tokens are the bytes of the text, and its answers repeat the prompt's last bytes. A prompt that
ends in "!" ends its answer after three tokens, unless the end is ignored; one with "ignored" in it
finds no memory; one with "fails" in it makes a step fail.
"""

from __future__ import annotations

import enum
import time
from pathlib import Path

import openvino  # as the real one does: nothing beside the server may be of that name

assert openvino.__doc__ is not None


class GenerationStatus(enum.Enum):
    RUNNING = 0
    FINISHED = 1
    IGNORED = 2
    CANCEL = 3


class SchedulerConfig:
    pass


class GenerationConfig:
    max_new_tokens = 0
    ignore_eos = False
    do_sample = False
    structured_output_config = None
    stop_strings: frozenset[str] = frozenset()

    @property
    def temperature(self) -> float:
        return 1.0

    @temperature.setter
    def temperature(self, value: float) -> None:
        if not isinstance(value, (int, float)):
            raise TypeError("temperature: a number is needed")


class StructuredOutputConfig:
    def __init__(self, json_schema: str) -> None:
        self.json_schema = json_schema


class _Tensor:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def get_shape(self) -> list[int]:
        return [1, len(self.data)]


class _Inputs:
    def __init__(self, data: bytes) -> None:
        self.input_ids = _Tensor(data)


class Tokenizer:
    def encode(self, text: str, add_special_tokens: bool) -> _Inputs:
        return _Inputs((b"\1" if add_special_tokens else b"") + text.encode())

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def apply_chat_template(self, messages: list[dict], add_generation_prompt: bool) -> str:
        assert add_generation_prompt
        return "".join(f"<{m['role']}>{m['content']}" for m in messages)


class _Output:
    def __init__(self, ids: list[int]) -> None:
        self.generated_ids = ids


class _Handle:
    def __init__(self, data: bytes, config: GenerationConfig) -> None:
        self.data, self.config = data, config
        self.status = GenerationStatus.RUNNING
        self.count = 0
        self.waiting: list[int] = []

    def get_status(self) -> GenerationStatus:
        return self.status

    def can_read(self) -> bool:
        return bool(self.waiting)

    def read(self) -> dict[int, _Output]:
        ids, self.waiting = self.waiting, []
        return {0: _Output(ids)}

    def cancel(self) -> None:
        self.status = GenerationStatus.CANCEL

    def step(self) -> None:
        if b"ignored" in self.data:
            self.status = GenerationStatus.IGNORED
            return
        said = self.data[-8:]
        self.waiting.append(said[self.count % len(said)])
        self.count += 1
        ended = self.data.endswith(b"!") and not self.config.ignore_eos and self.count == 3
        if ended or self.count == self.config.max_new_tokens:
            self.status = GenerationStatus.FINISHED


class ContinuousBatchingPipeline:
    def __init__(
        self, model: str, scheduler: SchedulerConfig, device: str, properties: dict[str, object]
    ) -> None:
        if not Path(model).exists():
            raise RuntimeError(f"there is no {model}")
        time.sleep(0.1)
        print(model, device, sorted(vars(scheduler).items()), properties, flush=True)
        self.handles: list[_Handle] = []

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer()

    def add_request(self, number: int, inputs: _Tensor, config: GenerationConfig) -> _Handle:
        handle = _Handle(inputs.data, config)
        self.handles.append(handle)
        return handle

    def step(self) -> None:
        running = [h for h in self.handles if h.status is GenerationStatus.RUNNING]
        if any(b"fails" in handle.data for handle in running):
            raise RuntimeError("out of memory")
        for handle in running:
            handle.step()
        time.sleep(0.001)
