"""Step times from data sheets, against values worked out by hand."""

from __future__ import annotations

import msgspec
import pytest

from tidemill.simulate.analytic import FORMATS, DoesNotFitError, analytic
from tidemill.simulate.base import StepWork
from tidemill.simulate.profiles import (
    Efficiency,
    Figure,
    Hardware,
    Link,
    assumptions,
    load_hardware,
)
from tidemill.simulate.shapes import Shape, load_shape, shape_from_config

D, FF, LAYERS, HEADS, KV, HEAD, VOCAB = 1024, 4096, 8, 16, 4, 64, 8192
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": D,
    "intermediate_size": FF, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB, "tie_word_embeddings": False,
}  # fmt: skip
LAYER = D * (HEADS + 2 * KV) * HEAD + D * HEADS * HEAD + 3 * D * FF  # weights
STEP = 1e-3  # assumed of GPUs

BANDWIDTH, RATE, LINK, LATENCY = 1e12, 1e14, 1e11, 1e-6


def figure(value: float) -> Figure:
    return Figure(value=value, kind="assumption", note="made up")


def made(**changes: object) -> Hardware:
    one = figure(1.0)
    hardware = Hardware(
        name="made up", kind="gpu", sources={}, memory=figure(16e9), bandwidth=figure(BANDWIDTH),
        flops={"bf16": figure(RATE), "f32": figure(RATE)},
        link=Link(bandwidth=figure(LINK), latency=figure(LATENCY), devices=8),
        efficiency=Efficiency(memory=one, compute=one, attention=one),
    )  # fmt: skip
    return msgspec.structs.replace(hardware, **changes)


@pytest.fixture(scope="module")
def shape() -> Shape:
    return shape_from_config("small", CONFIG, "made up")


def seconds(spec, tokens: int, rows: int = 0) -> float:
    """Of a step without any context."""
    return spec.step_time.seconds(StepWork(tokens, 0, 0, 0, rows))


def decode(spec, n: int, context: int) -> float:
    return spec.step_time.seconds(StepWork(0, 0, n, n * context, n))


def test_one_decode_takes_the_time_to_read_the_weights_and_the_kv_cache(shape: Shape) -> None:
    spec = analytic(made(), shape)
    weights = 2 * (LAYERS * LAYER + D * VOCAB)
    kv = LAYERS * 2 * KV * HEAD * 2 * 1000
    expected = STEP + (weights + kv) / BANDWIDTH
    assert decode(spec, 1, 1000) == pytest.approx(expected, rel=0.01)


def test_a_long_prompt_takes_the_time_of_its_products(shape: Shape) -> None:
    n = 4096
    context = n * (n + 1) // 2
    work = StepWork(n, context, 0, 0, 1)
    products = 2 * n * LAYERS * LAYER
    attention = LAYERS * context * HEADS * (4 * HEAD + 5)
    expected = STEP + (products + attention) / RATE
    got = analytic(made(), shape).step_time.seconds(work)
    assert got == pytest.approx(expected, rel=0.2)
    assert got > expected  # norms and activations are moved too


def test_the_stated_shares_of_bandwidth_and_arithmetic_are_taken(shape: Shape) -> None:
    half = Efficiency(memory=figure(0.5), compute=figure(0.25), attention=figure(1.0))
    slow, fast = analytic(made(efficiency=half), shape), analytic(made(), shape)
    assert decode(slow, 1, 0) - STEP == pytest.approx(2 * (decode(fast, 1, 0) - STEP), rel=0.01)
    ratio = (seconds(slow, 8192) - STEP) / (seconds(fast, 8192) - STEP)
    assert 3 < ratio <= 4


@pytest.mark.parametrize("n", [2, 4])
def test_tensor_parallelism_divides_products_and_adds_two_all_reduces_a_layer(
    shape: Shape, n: int
) -> None:
    tokens = 2048
    alone, together = analytic(made(), shape), analytic(made(), shape, tensor_parallel=n)
    assert together.devices == n
    sent = tokens * D * 2
    ring = 2 * (n - 1) / n * sent / LINK + 2 * (n - 1) * LATENCY
    # What every device computes for itself: norms and sums, in bytes moved.
    own = seconds(alone, tokens) - STEP - 2 * tokens * (LAYERS * LAYER) / RATE
    expected = (seconds(alone, tokens) - STEP) / n + 2 * LAYERS * ring
    got = seconds(together, tokens) - STEP
    assert expected <= got <= expected + abs(own)


def test_logits_are_gathered_from_the_devices(shape: Shape) -> None:
    rows = 128
    alone, together = analytic(made(), shape), analytic(made(), shape, tensor_parallel=4)
    gathered = 3 / 4 * rows * VOCAB * 2 / LINK + LATENCY
    of_rows = seconds(alone, 128, rows) - seconds(alone, 128)
    got = seconds(together, 128, rows) - seconds(together, 128)
    assert of_rows / 4 + gathered <= got < of_rows / 3 + gathered


def test_a_full_pipeline_takes_as_long_for_a_step_as_a_device_with_a_quarter_of_the_tokens(
    shape: Shape,
) -> None:
    alone, staged = analytic(made(), shape), analytic(made(), shape, pipeline_parallel=4)
    transfers = 4 * (2048 * D * 2 / LINK + LATENCY)
    got = seconds(staged, 8192) - STEP
    assert got == pytest.approx(seconds(alone, 2048) - STEP + transfers, rel=1e-6)


def test_a_single_token_goes_through_all_stages_one_after_the_other(shape: Shape) -> None:
    """The bubble: three stages wait for the fourth, and nothing is gained."""
    alone, staged = analytic(made(), shape), analytic(made(), shape, pipeline_parallel=4)
    transfers = 4 * (D * 2 / LINK + LATENCY)
    assert seconds(staged, 1) == pytest.approx(seconds(alone, 1) + transfers)
    attention = decode(staged, 1, 4000) - decode(staged, 1, 0)
    assert attention == pytest.approx(decode(alone, 1, 4000) - decode(alone, 1, 0))
    # Four sequences overlap.
    four = decode(staged, 4, 4000) - decode(staged, 4, 0)
    assert four == pytest.approx(attention)


def test_layers_that_do_not_divide_evenly_make_the_largest_stage_the_measure(shape: Shape) -> None:
    even, uneven = (analytic(made(), shape, pipeline_parallel=n) for n in (4, 3))
    # 3 stages of 8 layers: one has 3, as if there were 9.
    third = analytic(made(), shape)
    n = 3 * 512
    transfers = 3 * (512 * D * 2 / LINK + LATENCY)
    expected = (seconds(third, 512) - STEP) * 9 / 8 + transfers
    assert seconds(uneven, n) - STEP == pytest.approx(expected, rel=1e-6)
    assert even.devices == 4


def test_kv_blocks_fill_what_the_weights_leave(shape: Shape) -> None:
    usable = 16e9 * assumptions().gpu.usable_memory.value
    norms = (2 * LAYERS + 1) * D
    weights = 2 * (LAYERS * LAYER + 2 * D * VOCAB + norms)
    block = 16 * LAYERS * 2 * KV * HEAD * 2
    assert analytic(made(), shape).n_blocks == int((usable - weights) // block)
    # Half of the heads and of everything else on each of two devices.
    assert analytic(made(), shape, tensor_parallel=2).n_blocks == pytest.approx(
        (usable - weights / 2) / (block / 2), abs=2
    )
    # Heads that are fewer than devices are copied: 16 devices hold 4 KV heads 4 times.
    many = made(link=Link(bandwidth=figure(LINK), latency=figure(LATENCY), devices=16))
    assert analytic(many, shape, tensor_parallel=16).n_blocks == pytest.approx(
        (usable - weights / 16) / (block / 4), rel=1e-4
    )
    # Two stages have half of the layers each; the larger of both ends counts.
    staged = 2 * (LAYERS * LAYER / 2 + D * VOCAB)
    assert analytic(made(), shape, pipeline_parallel=2).n_blocks == pytest.approx(
        (usable - staged) / (block / 2), rel=1e-3
    )
    assert analytic(made(), shape, kv="fp8").n_blocks == pytest.approx(
        2 * analytic(made(), shape).n_blocks, abs=2
    )


@pytest.mark.parametrize(("weights", "bits"), [("f32", 32), ("fp8", 8), ("int4", 4.16)])
def test_weights_in_fewer_bits_are_read_faster(shape: Shape, weights: str, bits: float) -> None:
    spec = analytic(made(), shape, weights=weights)
    head = FORMATS[weights].head_bits
    read = (LAYERS * LAYER * bits + D * VOCAB * head) / 8
    assert decode(spec, 1, 0) == pytest.approx(STEP + read / BANDWIDTH, rel=0.02)


def test_a_format_is_computed_in_the_best_type_that_the_hardware_has(shape: Shape) -> None:
    with_fp8 = made(flops={"f32": figure(RATE), "bf16": figure(RATE), "fp8": figure(2 * RATE)})
    fast, slow = (analytic(h, shape, weights="fp8") for h in (with_fp8, made()))
    ratio = (seconds(slow, 8192) - STEP) / (seconds(fast, 8192) - STEP)
    assert 1.7 < ratio <= 2


def test_more_work_never_takes_less_time() -> None:
    spec = analytic(load_hardware("h200"), load_shape("llama-3.1-8b"), tensor_parallel=2)
    for rows in (0, 1):
        times = [seconds(spec, n, rows) for n in range(1, 8193)]
        assert times == sorted(times)


def test_what_is_said_of_it(shape: Shape) -> None:
    spec = analytic(load_hardware("h100-sxm"), load_shape("llama-3.1-70b"), tensor_parallel=4)
    assert spec.step_time.origin == "data sheet"
    assert spec.step_time.band == assumptions().gpu.band.value >= 0.3
    assert "nothing was measured" in spec.step_time.source
    assert "75%" in spec.step_time.source
    assert spec.name == "h100-sxm x 4 (TP 4, PP 1), llama-3.1-70b bf16"
    assert (spec.devices, spec.hour) == (4, None)
    assert analytic(made(), shape, tensor_parallel=4, hour=2.5).hour == 10.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel": 3}, "16 attention heads, which cannot be shared by 3"),
        ({"pipeline_parallel": 9}, "8 layers, too few for 9"),
        ({"tensor_parallel": 8, "pipeline_parallel": 2}, "16 devices for one engine, but 8"),
    ],
)
def test_cuts_that_cannot_be_are_refused(shape: Shape, options: dict, message: str) -> None:
    with pytest.raises(DoesNotFitError, match=message):
        analytic(made(), shape, **options)


def test_devices_without_a_link_serve_alone(shape: Shape) -> None:
    with pytest.raises(DoesNotFitError, match="no link between any"):
        analytic(made(link=None), shape, tensor_parallel=2)


def test_what_does_not_fit_shows_the_sum() -> None:
    with pytest.raises(DoesNotFitError, match=r"weights take 141\.1 GB .* one sequence of 8192"):
        analytic(load_hardware("h100-sxm"), load_shape("llama-3.1-70b"))
    fits = analytic(load_hardware("h100-sxm"), load_shape("llama-3.1-70b"), tensor_parallel=4)
    assert fits.n_blocks > 512


@pytest.mark.parametrize("options", [{"weights": "int3"}, {"tensor_parallel": 0}])
def test_wrong_options_are_value_errors(shape: Shape, options: dict) -> None:
    with pytest.raises(ValueError, match=r"no weight format 'int3'; there are f32|at least 1"):
        analytic(made(), shape, **options)
