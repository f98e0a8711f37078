"""What the server can be asked for: one table, for the routes and for the OpenAPI description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from tidemill import __version__
from tidemill.server import admin, openapi, web
from tidemill.server.anthropic import catalogue as anthropic_catalogue
from tidemill.server.anthropic.errors import write_error as write_anthropic_error
from tidemill.server.anthropic.messages import count_tokens, messages
from tidemill.server.anthropic.requests import CountTokensRequest, MessagesRequest
from tidemill.server.config import ModelConfig
from tidemill.server.errors import ErrorWriter
from tidemill.server.http import JSON, Exchange
from tidemill.server.ollama import catalogue as ollama_catalogue
from tidemill.server.ollama import requests as ollama_requests
from tidemill.server.ollama.embeddings import (
    EmbedRequest,
    OldEmbeddingRequest,
    embed,
    old_embeddings,
)
from tidemill.server.ollama.errors import write_error as write_ollama_error
from tidemill.server.ollama.generate import NDJSON
from tidemill.server.ollama.generate import chat as ollama_chat
from tidemill.server.ollama.generate import generate as ollama_generate
from tidemill.server.openai import catalogue
from tidemill.server.openai.answers import write_error
from tidemill.server.openai.catalogue import (
    DetokenizeRequest,
    TokenizeRequest,
    detokenize,
    tokenize,
)
from tidemill.server.openai.chat import ChatRequest, chat_completions
from tidemill.server.openai.completions import CompletionRequest, completions
from tidemill.server.openai.embeddings import EmbeddingRequest, embeddings
from tidemill.server.openai.responses import ResponsesRequest, responses
from tidemill.server.service import Service

Handler = Callable[[Service, Exchange], Awaitable[None]]


@dataclass(frozen=True)
class Operation:
    """One method of one path. ``body``: what a request has; ``open``: answered without a key, and
    while the server drains; ``errors`` writes them as the API does; ``group``: whose API it is;
    ``answers``: content types of success."""

    method: str
    path: str
    handler: Handler
    summary: str
    body: type[msgspec.Struct] | None = None
    group: str = "OpenAI"
    open: bool = False
    errors: ErrorWriter = write_error
    answers: tuple[str, ...] = (JSON,)


_STREAMED = (JSON, "text/event-stream")


def _anthropic(
    path: str, handler: Handler, summary: str, body: type[msgspec.Struct],
    answers: tuple[str, ...] = (JSON,),
) -> Operation:  # fmt: skip
    return Operation(
        "POST", path, handler, summary, body, group="Anthropic", errors=write_anthropic_error,
        answers=answers,
    )  # fmt: skip


def _ollama(
    method: str, path: str, handler: Handler, summary: str,
    body: type[msgspec.Struct] | None = None, *, open: bool = False,
    answers: tuple[str, ...] = (JSON,),
) -> Operation:  # fmt: skip
    return Operation(
        method, path, handler, summary, body, group="Ollama", open=open, errors=write_ollama_error,
        answers=answers,
    )  # fmt: skip


def _admin(
    method: str, path: str, handler: Handler, summary: str,
    body: type[msgspec.Struct] | None = None,
) -> Operation:  # fmt: skip
    return Operation(method, f"/admin/models{path}", handler, summary, body, group="Admin")


async def _live(service: Service, exchange: Exchange) -> None:
    await exchange.json({"status": "ok"})


async def _ready(service: Service, exchange: Exchange) -> None:
    models = {entry.config.name: entry.state for entry in service.visible(exchange.tenant)}
    if service.draining:
        await exchange.json({"status": "draining", "models": models}, 503)
    elif not service.models.ready:
        await exchange.json({"status": "loading", "models": models}, 503)
    else:
        await exchange.json({"status": "ok", "models": models})


async def _version(service: Service, exchange: Exchange) -> None:
    await exchange.json({"version": __version__})


async def _metrics(service: Service, exchange: Exchange) -> None:
    await exchange.send_body(
        service.metrics.text(exchange.tenant), "text/plain; version=0.0.4; charset=utf-8"
    )


async def _openapi(service: Service, exchange: Exchange) -> None:
    await exchange.json(openapi.describe(OPERATIONS))


async def _models(service: Service, exchange: Exchange) -> None:
    api = anthropic_catalogue if anthropic_catalogue.is_anthropic(exchange) else catalogue
    await api.list_models(service, exchange)


async def _model(service: Service, exchange: Exchange) -> None:
    api = anthropic_catalogue if anthropic_catalogue.is_anthropic(exchange) else catalogue
    await api.get_model(service, exchange)


def _of_server(
    path: str, handler: Handler, summary: str, *, open: bool = True, answer: str = JSON
) -> Operation:
    return Operation("GET", path, handler, summary, group="Server", open=open, answers=(answer,))


_ONE = "/{model:path}"

OPERATIONS: tuple[Operation, ...] = (
    Operation("POST", "/v1/chat/completions", chat_completions, "Answer a conversation",
              ChatRequest, answers=_STREAMED),
    Operation("POST", "/v1/completions", completions, "Continue texts or token ids",
              CompletionRequest, answers=_STREAMED),
    Operation("POST", "/v1/responses", responses, "Answer items; nothing is stored",
              ResponsesRequest, answers=_STREAMED),
    Operation("POST", "/v1/embeddings", embeddings, "Vectors of texts or token ids",
              EmbeddingRequest),
    Operation("GET", "/v1/models", _models, "The models"),
    Operation("GET", f"/v1/models{_ONE}", _model, "One model"),
    Operation("POST", "/tokenize", tokenize, "Token ids of a text or a conversation",
              TokenizeRequest),
    Operation("POST", "/detokenize", detokenize, "The text of token ids", DetokenizeRequest),
    _anthropic("/v1/messages", messages, "Answer a conversation", MessagesRequest,
               _STREAMED),
    _anthropic("/v1/messages/count_tokens", count_tokens, "How long a conversation is",
               CountTokensRequest),
    _ollama("POST", "/api/generate", ollama_generate, "Answer a prompt",
            ollama_requests.GenerateRequest, answers=(JSON, NDJSON)),
    _ollama("POST", "/api/chat", ollama_chat, "Answer a conversation",
            ollama_requests.ChatRequest, answers=(JSON, NDJSON)),
    _ollama("POST", "/api/embed", embed, "Vectors of texts", EmbedRequest),
    _ollama("POST", "/api/embeddings", old_embeddings, "The vector of one text: the older form",
            OldEmbeddingRequest),
    _ollama("POST", "/api/show", ollama_catalogue.show, "What is known of a model",
            ollama_catalogue.ShowRequest),
    _ollama("GET", "/api/tags", ollama_catalogue.tags, "The models"),
    _ollama("GET", "/api/ps", ollama_catalogue.running, "The models that are loaded"),
    _ollama("GET", "/api/version", ollama_catalogue.version, "The API's version", open=True),
    _admin("GET", "", admin.list_all, "All models and how they are doing"),
    _admin("POST", "", admin.add, "Serve another model", ModelConfig),
    # Before the model's own path, which would take these for parts of a name.
    _admin("POST", f"{_ONE}/load", admin.load, "Load a model now"),
    _admin("POST", f"{_ONE}/unload", admin.unload, "Free a model's memory"),
    _admin("POST", f"{_ONE}/pin", admin.pin, "Keep a model loaded, or not", admin.Pin),
    _admin("GET", _ONE, admin.show, "How a model is doing"),
    _admin("PUT", _ONE, admin.replace, "Serve another model under this name", ModelConfig),
    _admin("DELETE", _ONE, admin.remove, "Serve a model no longer"),
    _of_server("/metrics", _metrics, "Prometheus metrics", open=False, answer="text/plain"),
    _of_server("/health", _ready, "Whether models can be asked"),
    _of_server("/health/ready", _ready, "Whether models can be asked"),
    _of_server("/health/live", _live, "Whether the process is up"),
    _of_server("/version", _version, "The version"),
    _of_server("/openapi.json", _openapi, "This description"),
    _of_server("/docs", web.docs, "This description to read", answer="text/html"),
    _of_server("/", web.page, "A page to chat and to watch the load",
               answer="text/html"),
    _of_server("/web/{name:path}", web.asset, "Its parts", answer="*/*"),
)  # fmt: skip
