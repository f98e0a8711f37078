"""Prometheus metrics, under the names and buckets of vLLM's where they mean the same, so that
dashboards made for it show this server too.

Counters and histograms are of requests as their handlers see them; gauges of the engines come from
what the workers last said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tidemill.engine.base import EngineStats
from tidemill.llm.embeddings import EmbeddingOutput
from tidemill.llm.outputs import RequestOutput

_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_ITL = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_E2E = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class Metrics:
    """One server's metrics. ``engines`` gives the latest statistics of each loaded model, and how
    many KV blocks it has."""

    def __init__(self, engines: Callable[[], Mapping[str, tuple[EngineStats, int]]]) -> None:
        self.registry = CollectorRegistry()
        model = ["model_name"]

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, model, buckets=buckets, registry=self.registry)

        self._ttft = histogram("vllm:time_to_first_token_seconds", "Time to first token.", _TTFT)
        self._itl = histogram(
            "vllm:inter_token_latency_seconds", "Time between two tokens of an answer.", _ITL
        )
        self._e2e = histogram(
            "vllm:e2e_request_latency_seconds", "Time from arrival to the last token.", _E2E
        )
        self._prompt = histogram("vllm:request_prompt_tokens", "Tokens of prompts.", _TOKENS)
        self._generated = histogram("vllm:request_generation_tokens", "Tokens of answers.", _TOKENS)
        self._finished = Counter(
            "vllm:request_success", "Answers that ended, by why.", [*model, "finished_reason"],
            registry=self.registry,
        )  # fmt: skip
        self.http = Counter(
            "tidemill:http_requests", "Requests by route and status.", ["route", "status"],
            registry=self.registry,
        )  # fmt: skip
        self._engines = engines
        self.registry.register(self)

    def token(self, model: str, seconds: float) -> None:
        """Another token came ``seconds`` after the one before it."""
        self._itl.labels(model).observe(seconds)

    def observe(self, model: str, output: RequestOutput) -> None:
        """A request is over, however it ended."""
        times = output.metrics
        if times.time_to_first_token is not None:
            self._ttft.labels(model).observe(times.time_to_first_token)
        if self._observe_end(model, output):
            for out in output.outputs:
                self._generated.labels(model).observe(len(out.token_ids))
                self._finished.labels(model, out.finish_reason or "abort").inc()

    def observe_embedding(self, model: str, output: EmbeddingOutput) -> None:
        """A text has been embedded, or that was given up."""
        if self._observe_end(model, output):
            self._finished.labels(model, "stop").inc()

    def _observe_end(self, model: str, output: RequestOutput | EmbeddingOutput) -> bool:
        """Whether it ended well; if not, that has been counted."""
        times = output.metrics
        if times.finished_time is None or output.error is not None:
            self._finished.labels(model, "error" if output.error else "abort").inc()
            return False
        self._e2e.labels(model).observe(times.finished_time - times.arrival_time)
        self._prompt.labels(model).observe(len(output.prompt_token_ids))
        return True

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client: what the engines say of themselves."""
        engines = self._engines()
        stats = {model: s for model, (s, _) in engines.items()}

        def gauge(name: str, text: str, value: Callable[[EngineStats], float]) -> Metric:
            family = GaugeMetricFamily(name, text, labels=["model_name"])
            for model, s in stats.items():
                family.add_metric([model], value(s))
            return family

        def counter(name: str, text: str, value: Callable[[EngineStats], float]) -> Metric:
            family = CounterMetricFamily(name, text, labels=["model_name"])
            for model, s in stats.items():
                family.add_metric([model], value(s))
            return family

        yield gauge("vllm:num_requests_running", "Sequences computed.", lambda s: s.running)
        yield gauge("vllm:num_requests_waiting", "Sequences queued.", lambda s: s.waiting)
        usage = GaugeMetricFamily(
            "vllm:kv_cache_usage_perc", "Share of KV blocks that sequences hold.",
            labels=["model_name"],
        )  # fmt: skip
        for model, (s, blocks) in engines.items():
            usage.add_metric([model], 1 - (s.free_blocks + s.cached_blocks) / max(1, blocks))
        yield usage
        yield counter("vllm:num_preemptions", "Sequences preempted.", lambda s: s.preemptions)
        yield counter("vllm:prompt_tokens", "Prompt tokens.", lambda s: s.prompt_tokens)
        yield counter("vllm:generation_tokens", "Tokens generated.", lambda s: s.generated_tokens)
        yield counter(
            "vllm:prefix_cache_queries", "Prompt tokens looked up.", lambda s: s.prompt_tokens
        )
        yield counter(
            "vllm:prefix_cache_hits", "Prompt tokens found.", lambda s: s.cached_prompt_tokens
        )
        yield counter("vllm:spec_decode_num_draft_tokens", "Guesses.", lambda s: s.drafted_tokens)
        yield counter(
            "vllm:spec_decode_num_accepted_tokens", "Right guesses.", lambda s: s.accepted_tokens
        )
        yield counter("tidemill:engine_steps", "Forward steps.", lambda s: s.steps)
        yield counter(
            "tidemill:queue_seconds", "Time that requests waited to begin.",
            lambda s: s.queue_seconds,
        )  # fmt: skip
