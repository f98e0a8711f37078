"""Traces of requests for OpenTelemetry, as its conventions for generative AI name things.

With the extra ``otel``, and where ``otlp_endpoint`` or the standard variables
(OTEL_EXPORTER_OTLP_ENDPOINT and its kin) name a collector; without, nothing of OpenTelemetry is
imported. A request's spans are made when it is over, from the times that were taken anyway: one of
the server, in the trace that the client's ``traceparent`` names, and below it the time in the
queue, of the prefill and of the decode. They are sent in batches by a thread of the SDK's, which
holds a bounded number; what a collector does not take is dropped.

Source: https://github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai/gen-ai-spans.md
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidemill import __version__
from tidemill.engine.params import SamplingParams
from tidemill.llm.outputs import RequestOutput
from tidemill.server.account import Account, generated
from tidemill.server.config import ConfigError, ServerConfig
from tidemill.server.http import Exchange

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

log = logging.getLogger("tidemill.server")

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/api/chat": "chat",
    "/v1/completions": "text_completion",
    "/api/generate": "text_completion",
    "/v1/embeddings": "embeddings",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
}
"""What is traced: routes with the conventions' names of what they do."""

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_PATH = "/v1/traces"
_CLOSE_SECONDS = 2.0  # for what has not been sent yet
_MOST_CHARACTERS = 1 << 15  # of a text: many spans wait for a collector that is away
_MOST_PROMPTS = 8  # of a request with many, so many have spans of their own, or are told


def start_tracing(config: ServerConfig, environment: Mapping[str, str]) -> Tracing | None:
    """Raises ConfigError for settings that cannot be followed."""
    endpoint = config.otlp_endpoint
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"otlp_endpoint: {endpoint!r} is no http:// or https:// URL")
    if endpoint is None and not any(environment.get(name) for name in _ENDPOINTS):
        return None
    if (
        environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or environment.get("OTEL_TRACES_EXPORTER") == "none"
    ):
        return None
    capture = environment.get(_CAPTURE, "").lower() in ("true", "span_only", "span_and_event")
    try:
        provider = _provider(endpoint)
    except ImportError as error:
        if endpoint is not None:
            raise ConfigError(
                f"traces need a package that is not there ({error.name}): "
                "pip install 'tidemill[otel]'"
            ) from None
        log.warning("no traces are sent: for these, pip install 'tidemill[otel]'")
        return None
    return Tracing(provider, with_content=config.log_prompts or capture)


def _provider(endpoint: str | None) -> TracerProvider:
    """``endpoint`` None: as the environment says."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if endpoint is not None:
        endpoint = endpoint.rstrip("/").removesuffix(_PATH) + _PATH
    resource = Resource.create({SERVICE_VERSION: __version__})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "tidemill"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
    return provider


class Tracing:
    """Makes spans of requests that are over. ``with_content``: prompts and answers are told."""

    def __init__(self, provider: TracerProvider, *, with_content: bool) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("tidemill", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._with_content = with_content

    def record(self, exchange: Exchange, route: str) -> None:
        """A request of ``route`` has been answered just now."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        operation = _OPERATIONS.get(route)
        if operation is None:
            return
        names = ("traceparent", "tracestate")
        given = {name: exchange.header(name.encode()) for name in names}
        carrier = {name: value for name, value in given.items() if value is not None}
        account, now = exchange.account, time.monotonic()
        wall = time.time_ns() - round(now * 1e9)

        def at(seconds: float) -> int:
            return wall + round(seconds * 1e9)

        span = self._tracer.start_span(
            f"{operation} {account.model}".rstrip(),
            self._propagator.extract(carrier, Context()),
            SpanKind.SERVER,
            _attributes(operation, route, exchange),
            start_time=at(exchange.started),
        )
        if span.is_recording():
            if error := _error(exchange):
                span.set_attribute("error.type", error)
                if exchange.status >= 500 or exchange.status < 400:
                    span.set_status(StatusCode.ERROR)
            if self._with_content:
                span.set_attributes(_content(account))
            below = set_span_in_context(span, Context())
            for output in account.outputs[:_MOST_PROMPTS]:
                for name, start, end, attributes in _phases(output, account.params, now):
                    self._tracer.start_span(
                        name, below, attributes=attributes, start_time=at(start)
                    ).end(at(end))
            _first_token(span, account, at)
        span.end(at(now))

    def close(self) -> None:
        """Send what there is, if that is quickly done."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_CLOSE_SECONDS)


def _attributes(operation: str, route: str, exchange: Exchange) -> dict[str, Any]:
    account, params = exchange.account, exchange.account.params
    address, port = exchange.scope.get("server") or (None, None)
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "tidemill",
        "gen_ai.request.model": account.model or None,
        "gen_ai.request.stream": exchange.streamed or None,
        "gen_ai.response.id": exchange.id,
        "server.address": address,
        "server.port": port,
        "http.request.method": exchange.scope["method"],
        "http.route": route,
        "http.response.status_code": exchange.status,
        "tidemill.tenant": exchange.tenant.name,
    }
    if params is not None:
        found |= {
            "gen_ai.request.choice.count": params.n if params.n != 1 else None,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.top_k": params.top_k if params.top_k > 0 else None,
            "gen_ai.request.seed": params.seed,
            "gen_ai.request.frequency_penalty": params.frequency_penalty or None,
            "gen_ai.request.presence_penalty": params.presence_penalty or None,
        }
    if account.builders:
        first = account.time_to_first_token if exchange.streamed else None
        found |= {
            "gen_ai.response.model": account.model,
            "gen_ai.response.finish_reasons": account.finish_reasons,
            "gen_ai.response.time_to_first_chunk": first,
            "gen_ai.usage.input_tokens": account.prompt_tokens,
            "gen_ai.usage.output_tokens": account.generated_tokens,
            "gen_ai.usage.cache_read.input_tokens": account.cached_tokens,
        }
    return {name: value for name, value in found.items() if value is not None}


def _error(exchange: Exchange) -> str | None:
    """The kind of error that it ended with, also after its answer had begun."""
    if exchange.error is not None:
        return exchange.error
    if exchange.status >= 400:
        return str(exchange.status)
    return "generation_failed" if "error" in exchange.account.finish_reasons else None


def _phases(
    output: RequestOutput, params: SamplingParams | None, now: float
) -> list[tuple[str, float, float, dict[str, Any]]]:
    """What a prompt went through: name, start, end, attributes."""
    times = output.metrics
    begun, first = times.first_scheduled_time, times.first_token_time
    ended = times.finished_time or now
    found: list[tuple[str, float, float, dict[str, Any]]] = [
        ("queue", times.arrival_time, begun or ended, {})
    ]
    if begun is not None:
        computed = len(output.prompt_token_ids) - output.num_cached_tokens
        told = {"tidemill.computed_tokens": computed}
        found.append(("prefill", begun, first or ended, told))
    if first is not None and params is not None:
        tokens = {"gen_ai.usage.output_tokens": sum(generated(output, params))}
        found.append(("decode", first, times.last_token_time or ended, tokens))
    return found


def _first_token(span: Span, account: Account, at: Callable[[float], int]) -> None:
    times = [output.metrics.first_token_time for output in account.outputs]
    first = min((t for t in times if t is not None), default=None)
    seconds = account.time_to_first_token
    if first is not None and seconds is not None:
        span.add_event("first_token", {"tidemill.time_to_first_token": seconds}, at(first))


def _content(account: Account) -> dict[str, str]:
    """Prompts as the model reads them, with its template around; answers as it wrote them."""
    texts = account.texts()
    if not texts:
        return {}
    told = zip(texts["answers"], account.finish_reasons, strict=True)
    asked = [_message("user", prompt) for prompt in texts["prompts"][:_MOST_PROMPTS]]
    said = [
        _message("assistant", answer) | {"finish_reason": reason}
        for answer, reason in islice(told, _MOST_PROMPTS)
    ]
    return {
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps(said),
    }


def _message(role: str, content: Any) -> dict[str, Any]:
    text = content if isinstance(content, str) else json.dumps(content)
    if len(text) > _MOST_CHARACTERS:
        text = text[:_MOST_CHARACTERS] + "…"
    return {"role": role, "parts": [{"type": "text", "content": text}]}
