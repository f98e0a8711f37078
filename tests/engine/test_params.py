"""Every limit of SamplingParams, and what its errors say."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from tidemill.engine import params as limits
from tidemill.engine.errors import RequestError
from tidemill.engine.params import SamplingParams

BAD = [
    *[("n", v) for v in (0, -1, 129, 5_000_000, 1.5, "2", None, True)],
    *[("best_of", v) for v in (0, 129, 2.0)],
    *[("temperature", v) for v in (-0.1, 101, math.nan, math.inf, "1", None, True, 10**400)],
    *[("top_k", v) for v in (-2, 2**31, 1.0)],
    *[("top_p", v) for v in (-0.01, 1.01, math.nan)],
    *[("min_p", v) for v in (-0.01, 1.01, math.nan)],
    *[("typical_p", v) for v in (-0.01, 1.01, -math.inf)],
    *[("repetition_penalty", v) for v in (0.0, -1.0, 101.0, math.inf)],
    *[("presence_penalty", v) for v in (-2.1, 2.1, math.nan)],
    *[("frequency_penalty", v) for v in (-2.1, 2.1, math.nan)],
    *[("seed", v) for v in (2**64, -(2**63) - 1, 1.0, "x", 10**5000)],
    *[("max_tokens", v) for v in (-1, 2**31, 1.0)],
    *[("min_tokens", v) for v in (-1, 257, None)],
    *[("stop", v) for v in ((1,), ("",), ("x" * 1025,), ["x"] * 65, 5, None)],
    *[("stop_token_ids", v) for v in (("1",), [0] * 1025, 5, "12", (True,))],
    *[("ignore_eos", v) for v in (1, None, "true")],
    *[("echo", v) for v in (1, None, "true")],
    *[("skip_special_tokens", v) for v in (1, None)],
    *[("logprobs", v) for v in (-1, 21, 1_000_000_000, 1.0, True)],
    *[("prompt_logprobs", v) for v in (-1, 21)],
    *[("logit_bias", v) for v in ({1: 100.5}, {1: math.nan}, {"1": 1.0}, {1: "x"}, [1], None,
                                  dict.fromkeys(range(4097), 1.0))],
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"), BAD, ids=lambda v: f"{v:x}"[:20] if type(v) is int else str(v)[:20]
)
def test_what_is_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert name in str(caught.value) or (name == "stop" and "stop string" in str(caught.value))
    assert len(str(caught.value)) < 200


def test_endless_lists_end_at_the_limit() -> None:
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield "x"

    with pytest.raises(RequestError, match="at most 64"):
        SamplingParams(stop=endless())
    assert taken == limits.MAX_STOP_STRINGS + 1


def test_the_edges_are_accepted() -> None:
    SamplingParams(
        n=128, best_of=128, temperature=0, top_k=-1, top_p=0, min_p=1, typical_p=0,
        repetition_penalty=0.01, presence_penalty=-2, frequency_penalty=2, seed=-(2**63),
        max_tokens=0, stop=["x" * 1024] * 64, stop_token_ids=[0] * 1024, logprobs=20,
        prompt_logprobs=20, logit_bias=dict.fromkeys(range(4096), -100),
    )  # fmt: skip
    SamplingParams(seed=2**64 - 1, max_tokens=None, min_tokens=10**6)


def test_values_are_made_plain() -> None:
    source = {np.int64(3): 1}
    params = SamplingParams(stop="end", stop_token_ids=[np.int32(4)], top_p=1, logit_bias=source)
    assert params.stop == ("end",)
    assert params.stop_token_ids == (4,)
    assert isinstance(params.top_p, float)
    source[5] = 2
    assert dict(params.logit_bias) == {3: 1.0}
    with pytest.raises(FrozenInstanceError):
        params.n = 2  # type: ignore[misc]


def test_copies_are_equal() -> None:
    params = SamplingParams(n=2, stop="end", logit_bias={3: 1.5}, echo=True)
    for twin in (copy.deepcopy(params), pickle.loads(pickle.dumps(params))):  # noqa: S301
        assert twin == params
        assert twin.most_tokens(3) == params.most_tokens(3) == 3


@pytest.mark.parametrize(("n", "best_of"), [(2, 1), (5, 4)])
def test_best_of_is_at_least_n(n: int, best_of: int) -> None:
    with pytest.raises(RequestError, match=f"best_of \\({best_of}\\) must be at least n"):
        SamplingParams(n=n, best_of=best_of)
