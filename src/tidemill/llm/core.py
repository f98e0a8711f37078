"""What LLM and AsyncLLM have in common: a loaded model, and requests made from prompts."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, get_args

from tidemill import text  # its members load on first use: plain prompts need no Jinja
from tidemill.backends.base import KVDtype
from tidemill.engine.base import NO_OUTPUT, Constraint, Request
from tidemill.engine.engine import Engine
from tidemill.engine.errors import RequestError
from tidemill.engine.params import SamplingParams, as_integer, as_number
from tidemill.engine.pooling import Pooling
from tidemill.engine.speculation import MAX_DRAFT
from tidemill.llm.aside import AsideThread
from tidemill.llm.draft import open_draft
from tidemill.llm.driver import Driver, OnEnd
from tidemill.llm.embeddings import check_dimensions, choose_pooling, fit_text
from tidemill.llm.loading import (
    BackendName,
    CompiledModel,
    OnStage,
    Speculative,
    check_size,
    compile_model,
    open_model,
    start_engine,
)
from tidemill.llm.outputs import OutputBuilder
from tidemill.llm.prompts import (
    Conversation,
    PreparedPrompt,
    Prompt,
    as_messages,
    as_tools,
    prepare,
)
from tidemill.records import dataclass
from tidemill.store.base import Progress, parse_size
from tidemill.text.base import Tokenizer
from tidemill.text.grammar import GrammarError

if TYPE_CHECKING:
    from tidemill.llm.kv_disk import DiskTier
    from tidemill.text.grammar_masks import GrammarCompiler

_TURN_MARKERS = {
    "chatml": "<|im_start|>",
    "llama3": "<|start_header_id|>",
    "gemma": "<start_of_turn>",
}


class LoadOptions(TypedDict, total=False):
    """Keyword arguments of LLM and AsyncLLM.

    max_context: most tokens of prompt and answer together (default: the model's, at most 8192).
    threads: compute threads (default: the cores that this process may use). kv_dtype: how the KV
    cache is stored. kv_memory: its size in bytes (default: a quarter of the free memory, at most
    4 GiB, at least one full context). backend: "cpu", or "reference" for plain NumPy.
    max_sequences: most sequences computed at once. max_batch_tokens: token budget of a step.
    max_waiting: most requests queued. prefix_caching: share the KV blocks of equal beginnings.
    kv_disk: keep the KV blocks of what has been computed on disk, beyond memory and restarts, up to
    so many bytes ("4GiB"; default: none).
    target_itl: seconds between two tokens of a sequence to aim at while the prompts of others are
    computed: their chunks are made as long as fits into it (default: at most 256 tokens, and in
    LLM, where nobody waits for the next one, as many as a step takes).
    speculative: guess tokens ahead, which changes no output: "auto" by looking up what followed
    the same words earlier in prompt and answer, as far as it pays; "lookup" the same, always as
    many as there can be; "off" (default: "auto"; "off" on the reference backend). draft_model: a
    smaller model of the same vocabulary that guesses instead, as far as it pays.
    pre_tokenizer: instead of the one that a GGUF file names, or does not.
    seed: makes requests that bring no seed repeatable too, in the order in which they come.
    keep_packed: keep packed weights in the store, so that later starts need not pack them again
    (default: true). offline: never use the network. progress, on_stage: callbacks while downloading
    and loading.
    """

    max_context: int | None
    threads: int | None
    kv_dtype: KVDtype
    kv_memory: int | None
    backend: BackendName
    max_sequences: int
    max_batch_tokens: int
    max_waiting: int
    prefix_caching: bool
    kv_disk: int | str | None
    target_itl: float | None
    speculative: Speculative | None
    draft_model: str | os.PathLike[str] | None
    pre_tokenizer: str | None
    seed: int | None
    keep_packed: bool
    offline: bool | None
    progress: Progress | None
    on_stage: OnStage | None


def _check(options: LoadOptions) -> None:
    """Refuse what has no meaning before anything is downloaded or computed. Raises ValueError.

    Sizes are checked against each other where memory is planned."""
    for name, value in options.items():
        if name in ("progress", "on_stage"):
            if value is not None and not callable(value):
                raise ValueError(f"{name} must be a function, not {value!r}")
        elif name in ("prefix_caching", "keep_packed") and not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, not {value!r}")
        elif name == "offline" and not isinstance(value, bool | None):
            raise ValueError(f"{name} must be true, false or None, not {value!r}")
        elif name == "max_waiting" or (name == "seed" and value is not None):
            as_integer(value, name)
        elif name == "target_itl" and value is not None:
            if as_number(value, name) <= 0:
                raise ValueError(f"target_itl must be more than 0 seconds, not {value!r}")
        elif name == "speculative" and value not in (None, *get_args(Speculative)):
            raise ValueError(f"speculative must be 'off', 'lookup' or 'auto', not {value!r}")
        elif name == "pre_tokenizer" and not isinstance(value, str | None):
            raise ValueError(f"{name} must be a name, not {value!r}")
    _kv_disk(options)
    if options.get("draft_model") is not None and options.get("speculative") in ("off", "lookup"):
        raise ValueError(
            f"draft_model needs speculative='auto', not {options.get('speculative')!r}: "
            "a draft model guesses instead of the lookup, and only where it pays"
        )


def _kv_disk(options: LoadOptions) -> int:
    """Its bytes; 0 where nothing is to be kept. Raises ValueError."""
    kv_disk = options.get("kv_disk")
    size = parse_size(kv_disk, "kv_disk") if kv_disk else 0
    if size and not options.get("prefix_caching", True):
        raise ValueError("kv_disk needs prefix_caching: what is kept is found by it")
    return size


@dataclass(slots=True)
class Prepared:
    """A request ready to be submitted, and where its events will be gathered."""

    request: Request
    builder: OutputBuilder


class Core:
    """A loaded model with its engine: prompts in, requests out.

    Closing frees KV memory, weights and threads.
    """

    def __init__(
        self,
        compiled: CompiledModel,
        engine: Engine,
        draft: CompiledModel | None = None,
        aside: AsideThread | None = None,
        tier: DiskTier | None = None,
    ) -> None:
        self.compiled = compiled
        self.draft = draft
        self.driver = Driver(engine)
        self._aside = aside
        self._tier = tier
        self._grammars: GrammarCompiler | None = None
        self._grammars_lock = threading.Lock()
        self.tokenizer: Tokenizer = compiled.opened.tokenizer
        self._templates: dict[str | None, text.ChatTemplate] = {}
        self._ids = itertools.count()

    @staticmethod
    def load(
        model: str | os.PathLike[str], options: LoadOptions, *, max_waiting: int, interactive: bool
    ) -> Core:
        unknown = sorted(options.keys() - LoadOptions.__annotations__.keys())
        if unknown:
            known = ", ".join(LoadOptions.__annotations__)
            raise TypeError(f"there is no option {unknown[0]!r}; there are {known}")
        _check(options)
        on_stage = options.get("on_stage")
        max_sequences = check_size("max_sequences", options.get("max_sequences", 64))
        draft_name = options.get("draft_model")
        # The reference backend is there to be compared with: plain, unless asked otherwise.
        plain = options.get("backend") == "reference" and draft_name is None
        speculative = options.get("speculative") or ("off" if plain else "auto")
        opened = open_model(
            model,
            max_context=options.get("max_context"),
            pre_tokenizer=options.get("pre_tokenizer"),
            offline=options.get("offline"),
            progress=options.get("progress"),
            on_stage=on_stage,
        )
        draft_opened = None
        if draft_name is not None:
            draft_opened = open_draft(
                draft_name,
                opened,
                offline=options.get("offline"),
                progress=options.get("progress"),
                on_stage=on_stage,
            )
        compiled = compile_model(
            opened,
            backend=options.get("backend", "cpu"),
            threads=options.get("threads"),
            kv_dtype=options.get("kv_dtype", "f16"),
            kv_memory=options.get("kv_memory"),
            max_sequences=max_sequences,
            max_batch_tokens=options.get("max_batch_tokens", 512),
            # A few sequences may have several rows each: their guesses and the known token.
            max_logit_rows=max_sequences
            if speculative == "off"
            else max(max_sequences, 1 + MAX_DRAFT),
            keep_packed=options.get("keep_packed", True),
            on_stage=on_stage,
        )
        draft = tier = None
        try:
            if draft_opened is not None:
                draft = compile_model(
                    draft_opened,
                    backend=options.get("backend", "cpu"),
                    threads=options.get("threads"),
                    kv_dtype=options.get("kv_dtype", "f16"),
                    max_sequences=max_sequences,
                    max_batch_tokens=options.get("max_batch_tokens", 512),
                    on_stage=on_stage,
                )
            if kv_disk := _kv_disk(options):
                from tidemill.llm.kv_disk import open_tier

                tier = open_tier(compiled, kv_disk)
            aside = AsideThread()
            engine = start_engine(
                compiled,
                max_sequences=max_sequences,
                max_waiting=options.get("max_waiting", max_waiting),
                prefix_caching=options.get("prefix_caching", True),
                seed=options.get("seed"),
                target_itl=options.get("target_itl"),
                speculative=speculative,
                draft=draft,
                aside=aside,
                tier=tier,
                interactive=interactive,
            )
        except BaseException:
            if tier is not None:
                tier.close()
            compiled.runner.close()
            if draft is not None:
                draft.runner.close()
            raise
        return Core(compiled, engine, draft, aside, tier)

    @property
    def has_chat_template(self) -> bool:
        return self.tokenizer.chat_template is not None

    def fitting_template(self) -> str | None:
        """The built-in template whose turn marker is a control token of this vocabulary.

        For models that were trained on chats and whose file lost the template.
        """
        for name, marker in _TURN_MARKERS.items():
            ids = self.tokenizer.encode(marker, add_special=False, parse_special=True)
            if len(ids) == 1 and ids[0] in self.tokenizer.special_ids:
                return name
        return None

    @property
    def max_context(self) -> int:
        return self.compiled.opened.max_context

    def check_open(self) -> None:
        if self.driver.closed:
            raise RuntimeError("this model has been closed")

    def close(self) -> None:
        """Free the model, once a step in progress is done; what runs ends with an error. Waits some
        seconds at most for KV blocks that are still being written to disk."""
        with self.driver.lock:
            self.driver.close("the model was closed while this request ran")
            if self._tier is not None:
                self._tier.close()
            self.compiled.runner.close()
            if self.draft is not None:
                self.draft.runner.close()
        if self._aside is not None:
            self._aside.close()

    def constraint(self, params: SamplingParams) -> Constraint | None:
        """What ``params.grammar`` asks of an answer's tokens. The first one takes a moment, by the
        size of the vocabulary. Raises RequestError if it cannot be compiled."""
        if params.grammar is None:
            return None
        with self._grammars_lock:
            if self._grammars is None:
                from tidemill.text.grammar_masks import GrammarCompiler

                self._grammars = GrammarCompiler(self.tokenizer)
        try:
            return self._grammars.matcher(params.grammar)
        except GrammarError as error:
            raise RequestError(f"grammar: {error}", param="grammar") from None

    def prepare(
        self,
        prompt: Prompt | PreparedPrompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        salt: str = "",
        pooling: Pooling | None = None,
    ) -> Prepared:
        """A request for the engine, whose checks come when it is submitted.

        ``request_id`` is the caller's name for it and need not be unique: the engine gets one of
        our own, so that dropping one request can never hit another.
        """
        arrival = self.driver.clock()
        if not isinstance(prompt, PreparedPrompt):
            prompt = prepare(prompt, self.tokenizer)
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params must be a SamplingParams, not {params!r}")
        if not isinstance(request_id, str | None):
            raise ValueError(f"request_id must be a string, not {request_id!r}")
        request = Request(
            id=str(next(self._ids)),
            prompt_token_ids=prompt.token_ids,
            params=params,
            priority=priority,
            salt=salt,
            continues_text=params.echo or not prompt.is_chat,
            constraint=self.constraint(params),
            pooling=pooling,
        )
        builder = OutputBuilder(
            request.id if request_id is None else request_id,
            prompt.text,
            prompt.token_ids,
            params,
            self.tokenizer,
            arrival,
        )
        return Prepared(request, builder)

    def prepare_embedding(
        self,
        prompt: Prompt,
        pooling: Pooling | None,
        *,
        dimensions: int | None,
        truncate: int | None,
        request_id: str | None = None,
        priority: int = 0,
        salt: str = "",
    ) -> Prepared:
        """A text to embed, as ``prepare`` makes it. Raises RequestError."""
        opened = self.compiled.opened
        check_dimensions(dimensions, opened.model.config.d_model)
        whole = prepare(prompt, self.tokenizer)
        ids = fit_text(
            whole.token_ids,
            context=self.driver.engine.max_context,
            truncate=truncate,
            end_ids=self.tokenizer.eos_ids,
        )
        return self.prepare(
            PreparedPrompt(whole.text, tuple(ids)),
            NO_OUTPUT,
            request_id=request_id,
            priority=priority,
            salt=salt,
            pooling=choose_pooling(pooling, opened.checkpoint),
        )

    def submit(self, prepared: Prepared, on_end: OnEnd = lambda: None) -> None:
        """Queue a request; ``on_end`` is called when it has ended. Raises RequestError (a
        ValueError) if it can never be served, QueueFullError if too many wait."""
        self.driver.submit(prepared.request, prepared.builder.push, on_end)

    def render_chat(
        self,
        messages: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        template_options: Mapping[str, Any] | None = None,
    ) -> PreparedPrompt:
        """A conversation as the model's chat template writes it, tokenised.

        Nothing is added to what the template writes: where it has a BOS, there is one, and only
        one. ``chat_template`` is the name of a built-in template or Jinja source. Raises
        ValueError for what is no conversation or no list of tools, ChatTemplateError (one too) if
        there is no template, or it refuses the messages.
        """
        messages = as_messages(messages)
        tools = as_tools(tools)
        if not isinstance(chat_template, str | None):
            raise ValueError(f"chat_template must be a string, not {chat_template!r}")
        template = self._templates.get(chat_template)
        if template is None:
            template = text.ChatTemplate.for_tokenizer(self.tokenizer, chat_template)
            self._templates = {chat_template: template}  # compiling takes longer than rendering
        prompt = text.encode_chat(
            self.tokenizer,
            template,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            **(template_options or {}),
        )
        return PreparedPrompt(prompt.text, tuple(prompt.ids), is_chat=True)
