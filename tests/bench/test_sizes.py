"""Sizes of prompts, drawn without their words."""

from __future__ import annotations

import pytest

from tidemill.bench import scenario as known
from tidemill.bench.workload import Workload


@pytest.mark.parametrize("name", known.names())
def test_sizes_are_those_of_the_prompts(name: str) -> None:
    scenario = known.load(name).scaled(0.05)  # words take their time to be made
    workload = Workload(scenario.shapes, 3)
    for index in range(30):
        for history in ((), (("a question", "an answer"),)):
            prompt = workload.prompt(index, history)
            sizes = workload.sizes(index, len(history))
            words = prompt.text.split()
            if prompt.shape.prefix and not prompt.shape.system and not history:
                words = words[prompt.shape.prefix :]
            assert sizes.shape is prompt.shape
            assert sizes.max_tokens == prompt.max_tokens
            assert sum(part.tokens for part in sizes.parts) == prompt.shape.prefix
            assert sizes.words + len(sizes.task.split()) == len(words)
            assert prompt.text.endswith(sizes.task)
