"""Prometheus metrics, under the names and buckets of vLLM's where they mean the same, so that
dashboards made for it show this server too (docs/server.md says which are not there).

Histograms of requests are filled as their handlers see them, those of steps and all that the
engines count come from what the workers last said. Whatever is labelled with a model goes when the
model does; labels come from the settings and the key file only, never from requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from tidemill.engine.base import EngineStats, TierStats
from tidemill.engine.histogram import Histogram
from tidemill.engine.params import SamplingParams
from tidemill.hardware.energy import EnergyMeters
from tidemill.llm.outputs import RequestOutput
from tidemill.server.account import generated, queue_seconds
from tidemill.server.keys import Tenant
from tidemill.server.models import LoadedModel, Models

_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_ITL = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_REQUEST = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_N = (1, 2, 5, 10, 20)

_OLDER_NAMES = {
    # Dashboards made for vLLM before 0.9 ask for these.
    "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
}


class _Distribution(NamedTuple):
    name: str
    text: str
    bounds: Sequence[float]


_OF_REQUESTS = {
    "ttft": _Distribution(
        "vllm:time_to_first_token_seconds", "Time from arrival to the first token.", _TTFT
    ),
    "itl": _Distribution(
        "vllm:inter_token_latency_seconds", "Time between two tokens of an answer.", _ITL
    ),
    "tpot": _Distribution(
        "vllm:request_time_per_output_token_seconds", "Mean time per token after the first.", _ITL
    ),
    "e2e": _Distribution(
        "vllm:e2e_request_latency_seconds", "Time from arrival to the last token.", _REQUEST
    ),
    "queue": _Distribution(
        "vllm:request_queue_time_seconds", "Time from arrival to the first step.", _REQUEST
    ),
    "prefill": _Distribution(
        "vllm:request_prefill_time_seconds", "Time from there to the first token.", _REQUEST
    ),
    "decode": _Distribution(
        "vllm:request_decode_time_seconds", "Time from there to the last token.", _REQUEST
    ),
    "inference": _Distribution(
        "vllm:request_inference_time_seconds", "Time of prefill and decode.", _REQUEST
    ),
    "prompt": _Distribution("vllm:request_prompt_tokens", "Tokens of prompts.", _TOKENS),
    "computed": _Distribution(
        "vllm:request_prefill_kv_computed_tokens", "Of these, not found in the cache.", _TOKENS
    ),
    "generated": _Distribution("vllm:request_generation_tokens", "Tokens of answers.", _TOKENS),
    "longest": _Distribution(
        "vllm:request_max_num_generation_tokens", "Tokens of the longest of n answers.", _TOKENS
    ),
    "max_tokens": _Distribution(
        "vllm:request_params_max_tokens", "The parameter max_tokens, where given.", _TOKENS
    ),
    "n": _Distribution("vllm:request_params_n", "The parameter n.", _N),
}
_REASONS = ("stop", "length", "abort", "error")


class _OfModel:
    """What is counted of one model's requests."""

    def __init__(self) -> None:
        self.histograms = {key: Histogram(tuple(d.bounds)) for key, d in _OF_REQUESTS.items()}
        self.itl = self.histograms["itl"]
        self.finished = Counter(dict.fromkeys(_REASONS, 0))

    def add(self, key: str, value: float) -> None:
        self.histograms[key].add(value)


class _View(NamedTuple):
    """The metrics as one tenant sees them, for prometheus_client."""

    metrics: Metrics
    tenant: Tenant

    def collect(self) -> Iterator[Metric]:
        return self.metrics.collect(self.tenant)


class Metrics:
    """One server's metrics."""

    def __init__(self, models: Models, energy: EnergyMeters) -> None:
        self._models = models
        self._energy = energy
        self._of_models: defaultdict[str, _OfModel] = defaultdict(_OfModel)
        self._answers: Counter[tuple[str, str]] = Counter()  # by route and status
        self._tenants: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)
        GCCollector(registry=self._process)

    # ---- what happens

    def first_token(self, model: str, seconds: float) -> None:
        """A request's first token came ``seconds`` after it had arrived."""
        self._of_models[model].add("ttft", seconds)

    def token(self, model: str, seconds: float) -> None:
        """Another token came ``seconds`` after the one before it."""
        self._of_models[model].itl.add(seconds)

    def observe(
        self, model: str, tenant: Tenant, params: SamplingParams, output: RequestOutput
    ) -> None:
        """A prompt's answers are over, however they ended."""
        of, times = self._of_models[model], output.metrics
        lengths = generated(output, params)
        served = self._tenants[tenant.name]
        if times.prompt_done_time is not None:
            served["prompt"] += len(output.prompt_token_ids)
        served["generation"] += sum(lengths)
        if times.finished_time is None or output.error is not None:
            of.finished["error" if output.error else "abort"] += 1
            return
        for length, out in zip(lengths, output.outputs, strict=True):
            of.add("generated", length)
            of.finished[out.finish_reason or "abort"] += 1
        of.add("e2e", times.finished_time - times.arrival_time)
        of.add("queue", queue_seconds(times, times.finished_time))
        of.add("prompt", len(output.prompt_token_ids))
        of.add("computed", len(output.prompt_token_ids) - output.num_cached_tokens)
        of.add("longest", max(lengths))
        of.add("n", params.n)
        if params.max_tokens is not None:
            of.add("max_tokens", params.max_tokens)
        begun, first = times.first_scheduled_time, times.first_token_time
        last = times.last_token_time
        if begun is not None and first is not None and last is not None:
            of.add("prefill", first - begun)
            of.add("decode", last - first)
            of.add("inference", last - begun)
            if max(lengths) > 1:
                of.add("tpot", (last - first) / (max(lengths) - 1))

    def answered(self, route: str, status: int, tenant: Tenant | None) -> None:
        """A request has been answered; one of a ``tenant`` where keys are asked for."""
        self._answers[route, str(status)] += 1
        if tenant is not None:
            served = self._tenants[tenant.name]
            served["requests"] += 1
            served["refused"] += status in (403, 429)

    async def watch(self) -> None:
        """Read the energy meters often enough for all of them; runs until it is cancelled."""
        while self._energy.meters:
            self._energy.read()
            await asyncio.sleep(1)

    # ---- what is shown

    def text(self, tenant: Tenant) -> bytes:
        """What ``tenant`` may see: unless that is all, the models that it may use, and itself."""
        return generate_latest(_View(self, tenant))

    def collect(self, tenant: Tenant) -> Iterator[Metric]:
        for gone in self._of_models.keys() - {entry.config.name for entry in self._models}:
            del self._of_models[gone]
        entries = {
            entry.config.name: entry for entry in self._models
            if tenant.sees_all or tenant.may_use(entry.config.name)
        }  # fmt: skip
        of_models = {name: self._of_models[name] for name in entries}
        loaded = {name: e.model for name, e in entries.items() if e.model is not None}
        for family in chain(_requests(of_models), _engines(loaded), _tiers(loaded)):
            yield from _also(family)
        yield from _workers(loaded)
        yield from self._of_tenants(tenant)
        yield from self._server()
        yield from self._process.collect()

    def _of_tenants(self, asking: Tenant) -> Iterator[Metric]:
        for key, name, text in (
            ("requests", "tidemill:tenant_requests", "Requests of a tenant."),
            ("refused", "tidemill:tenant_refused", "Of these, answered with 403 or 429."),
            ("prompt", "tidemill:tenant_prompt_tokens", "Prompt tokens of a tenant."),
            ("generation", "tidemill:tenant_generation_tokens", "Tokens of its answers."),
        ):
            family = CounterMetricFamily(name, text, labels=["tenant"])
            for tenant, served in self._tenants.items():
                if asking.sees_all or tenant == asking.name:
                    family.add_metric([tenant], served[key])
            yield family

    def _server(self) -> Iterator[Metric]:
        answers = CounterMetricFamily(
            "tidemill:http_requests", "Requests by route and status.", labels=["route", "status"]
        )
        for labels, count in self._answers.items():
            answers.add_metric(labels, count)
        yield answers
        joules = CounterMetricFamily(
            "tidemill:energy_joules", "Energy since the start, as a meter of the machine has it.",
            labels=["meter"],
        )  # fmt: skip
        self._energy.read()
        for meter in self._energy.meters:
            joules.add_metric([meter.name], meter.joules)
        if self._energy.meters:
            yield joules


def _requests(of_models: Mapping[str, _OfModel]) -> Iterator[Metric]:
    for key, (name, text, _) in _OF_REQUESTS.items():
        yield _histogram(name, text, {m: of.histograms[key] for m, of in of_models.items()})
    finished = CounterMetricFamily(
        "vllm:request_success", "Answers that ended, by why.",
        labels=["model_name", "finished_reason"],
    )  # fmt: skip
    for model, of in of_models.items():
        for reason, count in of.finished.items():
            finished.add_metric([model, reason], count)
    yield finished


_Value = Callable[[LoadedModel], float]

_GAUGES: tuple[tuple[str, str, _Value], ...] = (
    ("vllm:num_requests_running", "Sequences computed.", lambda m: m.worker.stats.running),
    (
        "vllm:num_requests_waiting", "Sequences queued.",
        lambda m: m.worker.stats.waiting + m.admission.waiting,
    ),
    (
        "vllm:kv_cache_usage_perc", "Share of KV blocks that sequences hold.",
        lambda m: _kv_usage(m.worker.stats, m.worker.info["kv_blocks"]),
    ),
)  # fmt: skip

_COUNTERS: tuple[tuple[str, str, _Value], ...] = (
    ("vllm:num_preemptions", "Sequences preempted.", lambda m: m.worker.stats.preemptions),
    ("vllm:prompt_tokens", "Prompt tokens.", lambda m: m.worker.stats.prompt_tokens),
    ("vllm:generation_tokens", "Tokens generated.", lambda m: m.worker.stats.generated_tokens),
    ("vllm:prefix_cache_queries", "Prompt tokens looked up.",
     lambda m: m.worker.stats.prompt_tokens),
    ("vllm:prefix_cache_hits", "Prompt tokens found.",
     lambda m: m.worker.stats.cached_prompt_tokens),
    ("vllm:spec_decode_num_draft_tokens", "Guesses.", lambda m: m.worker.stats.drafted_tokens),
    ("vllm:spec_decode_num_accepted_tokens", "Right guesses.",
     lambda m: m.worker.stats.accepted_tokens),
    ("tidemill:engine_steps", "Forward steps.", lambda m: m.worker.stats.steps),
    ("tidemill:engine_failures", "Requests that failed.", lambda m: m.worker.stats.failures),
    ("tidemill:grammar_step_seconds", "Time that steps took for grammars: the rest is beside them.",
     lambda m: m.worker.stats.constraint_seconds),
)  # fmt: skip


_HISTOGRAMS: tuple[tuple[str, str, Callable[[EngineStats], Histogram]], ...] = (
    ("vllm:iteration_tokens_total", "Tokens of a forward step.", lambda s: s.step_tokens),
    ("tidemill:step_sequences", "Sequences of a forward step.", lambda s: s.step_sequences),
    ("tidemill:grammar_mask_seconds", "Time to find out which tokens a grammar allows next.",
     lambda s: s.mask_seconds),
)  # fmt: skip


def _kv_usage(stats: EngineStats, blocks: int) -> float:
    return 1 - (stats.free_blocks + stats.cached_blocks) / max(1, blocks)


def _engines(loaded: Mapping[str, LoadedModel]) -> Iterator[Metric]:
    """What the engines say of themselves."""
    for kind, table in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for name, text, value in table:
            family = kind(name, text, labels=["model_name"])
            for model, of in loaded.items():
                family.add_metric([model], value(of))
            yield family
    stats = {model: of.worker.stats for model, of in loaded.items()}
    for name, text, histogram in _HISTOGRAMS:
        yield _histogram(name, text, {model: histogram(s) for model, s in stats.items()})
    cache = GaugeMetricFamily(
        "vllm:cache_config_info", "The KV cache; always 1.",
        labels=["model_name", "block_size", "num_gpu_blocks", "cache_dtype",
                "enable_prefix_caching"],
    )  # fmt: skip
    for model, of in loaded.items():
        info, config = of.worker.info, of.config
        cache.add_metric(
            [model, str(info["kv_block_size"]), str(info["kv_blocks"]), config.kv_dtype,
             str(config.prefix_caching)], 1,
        )  # fmt: skip
    yield cache


_TierValue = Callable[[EngineStats, TierStats], float]

_TIER: tuple[tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, _TierValue], ...] = (
    (GaugeMetricFamily, "blocks", "KV blocks on disk.", lambda _, t: t.blocks),
    (GaugeMetricFamily, "bytes", "Bytes that they take.", lambda _, t: t.bytes),
    (CounterMetricFamily, "restored_tokens", "Tokens whose KV came from disk.",
     lambda s, _: s.restored_tokens),
    (CounterMetricFamily, "blocks_read", "KV blocks read.", lambda _, t: t.read),
    (CounterMetricFamily, "blocks_written", "KV blocks written.", lambda _, t: t.written),
    (CounterMetricFamily, "blocks_dropped", "KV blocks not written: the disk is too slow or full.",
     lambda _, t: t.dropped),
    (CounterMetricFamily, "blocks_damaged", "KV blocks that could not be read.",
     lambda _, t: t.damaged),
)  # fmt: skip


def _tiers(loaded: Mapping[str, LoadedModel]) -> Iterator[Metric]:
    """What is on disk, of those models that keep KV blocks there."""
    stats = {model: of.worker.stats for model, of in loaded.items()}
    tiers = {model: (s, s.tier) for model, s in stats.items() if s.tier is not None}
    for kind, name, text, value in _TIER if tiers else ():
        family = kind(f"tidemill:kv_disk_{name}", text, labels=["model_name"])
        for model, (s, tier) in tiers.items():
            family.add_metric([model], value(s, tier))
        yield family


def _workers(loaded: Mapping[str, LoadedModel]) -> Iterator[Metric]:
    """What the system says of the models' processes, as process_* has it of this one."""
    families: dict[str, Metric] = {}
    for model, of in loaded.items():
        for found in _ProcessOf(of.worker.pid).collect():
            name = found.name.replace("process_", "tidemill:worker_", 1)
            family = families.setdefault(name, Metric(name, found.documentation, found.type))
            for sample in found.samples:
                name = sample.name.replace("process_", "tidemill:worker_", 1)
                family.add_sample(name, {"model_name": model}, sample.value)
    yield from families.values()


class _ProcessOf(ProcessCollector):
    def __init__(self, pid: int) -> None:
        super().__init__(pid=lambda: pid, registry=None)


def _histogram(name: str, text: str, of_models: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=["model_name"])
    for model, histogram in of_models.items():
        bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
        counts = accumulate(histogram.counts)
        family.add_metric([model], list(zip(bounds, counts, strict=True)), histogram.total)
    return family


def _also(family: Metric) -> Iterator[Metric]:
    """A metric, and once more under its older name, if it has one."""
    yield family
    if (older := _OLDER_NAMES.get(family.name)) is not None:
        again = Metric(older, family.documentation, family.type)
        for sample in family.samples:
            name = sample.name.replace(family.name, older, 1)
            again.add_sample(name, sample.labels, sample.value)
        yield again
