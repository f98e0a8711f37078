"""The questions, in the order of the interview: five dimensions, the budget and the stage.

One table says all of each: where it stands in an answers file (``section.name``), what may be
answered, what is taken if nothing is, and how it is asked. The fields of ``Answers`` have the same
names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tidemill.advise.facts import ARCHITECTURES, BOTTLENECKS, FORMATS, HARDWARE
from tidemill.records import dataclass

Kind = Literal["choice", "choices", "whole", "number", "yes-no", "text"]

# What the load looks like: the scenarios of `tidemill bench`.
WORKLOADS = {
    "short-chat": "questions and short answers",
    "multi-turn-chat": "conversations over a shared system prompt",
    "rag": "answers over retrieved documents",
    "summarising": "long documents made short",
    "code-completion": "an editor's completions, in bursts",
    "agentic-coding": "an agent's many steps over a long prefix",
    "offline-batch": "a heap of work, by tomorrow",
    "json-extraction": "fields out of texts, under a schema",
    "tool-calling": "calls of tools",
    "voice-turn": "spoken dialogue",
    "translation": "texts from one language to another",
    "long-generation": "long answers to short prompts",
    "two-tenants": "two tenants, one of which floods",
    "edge-single-user": "one user, on a device",
}

GPUS = ("nvidia", "amd", "intel")


def kind_of_processor(architecture: str, system: str) -> str:
    """Which kind of hardware a machine is, by what ``platform`` says of it."""
    if architecture.lower() in ("arm64", "aarch64"):
        return "apple" if system.startswith("Darwin") else "cpu-arm"
    return "cpu-x86"


@dataclass(frozen=True, slots=True)
class Question:
    """``least`` and ``most`` bound numbers. A number whose default is None may stay unanswered."""

    section: str
    name: str
    kind: Kind
    ask: str
    default: object
    choices: Mapping[str, str] | None = None
    help: str = ""
    least: float = 0
    most: float = 1e9

    @property
    def key(self) -> str:
        """What an answers file and messages call it."""
        return f"{self.section}.{self.name}"


SECTIONS = {
    "load": "Concurrency and latency",
    "hardware": "Hardware",
    "team": "Operations",
    "model": "Life of the model",
    "data": "Data and compliance",
    "budget": "Budget",
    "case": "Stage",
}

QUESTIONS = (
    Question(
        "case", "stage", "choice", "How far is this?", "trying",
        {
            "trying": "trying out: does a model do what is needed?",
            "tuning": "fine-tuning and evaluation: versions of a model are compared",
            "production": "production: others depend on it",
            "edge": "edge: devices or sites away from the data centre",
        },
    ),
    Question(
        "case", "current", "text", "Which engine is in use today? (id, or none)", "none",
        help="An id such as vllm or ollama: what changes for its users is then among the risks.",
    ),
    Question(
        "load", "workload", "choice", "What will it mostly do?", "short-chat", WORKLOADS,
    ),
    Question(
        "load", "peak_concurrency", "whole", "Most requests at the same time?", 4,
        help="In flight at the peak, not users: people read and type between two requests.",
        least=1, most=1_000_000,
    ),
    Question(
        "load", "latency", "choice", "How soon must an answer come?", "interactive",
        {
            "interactive": "people wait for every word",
            "relaxed": "seconds do not matter",
            "batch": "hours do not matter",
        },
    ),
    Question(
        "load", "ttft_ms", "number", "Longest time to the first token at p99, in ms?", None,
        help="Time to first token (TTFT) that 99 of 100 requests must keep to. MLPerf asks 2000 ms "
        "of a 70B model in its server scenario, 500 ms of an interactive 8B one.",
        least=1,
    ),
    Question(
        "load", "tpot_ms", "number", "Longest time per token after it at p99, in ms?", None,
        help="Time per output token (TPOT). MLPerf asks 200 ms of a 70B model in its server "
        "scenario, 30 ms of an interactive 8B one.",
        least=0.1,
    ),
    Question(
        "load", "bottleneck", "choice", "Has a bottleneck been measured in a running system?",
        "none", {"none": "no, or not yet", **BOTTLENECKS},
        help="Only what a profile or metrics showed, not a guess.",
    ),
    Question(
        "hardware", "servers", "choices", "What is there centrally (servers, cloud, workstation)?",
        ("cpu-x86",), HARDWARE, help="Several are possible; none if all is at the edge.",
    ),
    Question(
        "hardware", "edge", "choices", "And at the edge (devices, branch offices)?", (), HARDWARE,
    ),
    Question(
        "hardware", "gpus", "whole", "How many GPUs in one server?", 0, most=1024,
        help="Of the servers; 0 without GPUs.",
    ),
    Question(
        "hardware", "gpu_memory_gb", "number", "Memory of one GPU, in GB?", None, least=1,
    ),
    Question(
        "hardware", "memory_gb", "number", "Main memory of the smallest machine, in GB?", None,
        least=0.5, help="Of Apple silicon the unified memory.",
    ),
    Question(
        "team", "operations", "choice", "Who keeps it running?", "part-time",
        {
            "none": "nobody: whoever uses it installs it",
            "part-time": "a few people, beside other work",
            "dedicated": "a team for it, on call",
        },
    ),
    Question(
        "model", "name", "text", "Which model? (a repository or a file)", "./model.gguf",
        help="As the engine will be given it: a Hugging Face repository, a file, a folder.",
    ),
    Question(
        "model", "parameters_b", "number", "How many billion parameters?", None, least=0.01,
        most=10_000, help="All of them, for a mixture of experts too; empty if not known.",
    ),
    Question(
        "model", "architecture", "choice", "Of which family?", "llama",
        {**dict.fromkeys(ARCHITECTURES, ""), "other": "none of these, or not decided"},
    ),
    Question(
        "model", "format", "choice", "In which format do its weights come?", "gguf", FORMATS,
    ),
    Question(
        "model", "bits", "whole", "Bits of a weight as it will be served?", 4,
        help="16 as trained, 8 or 4 quantised.", least=1, most=32,
    ),
    Question(
        "model", "context", "whole", "Longest prompt and answer together, in tokens?", 4096,
        least=16, most=10_000_000,
    ),
    Question(
        "model", "changes", "choice", "How often does the model change?", "fixed",
        {"fixed": "rarely", "monthly": "every month or so", "weekly": "every week or more often"},
    ),
    Question(
        "model", "custom_operators", "yes-no", "Does it need operators of your own?", False,
    ),
    Question(
        "model", "special_tokens", "yes-no", "Does it have special tokens of your own?", False,
    ),
    Question(
        "data", "stays_local", "yes-no", "Must prompts and answers stay with you?", False,
        help="On your own machines, with nothing sent elsewhere.",
    ),
    Question(
        "data", "access_control", "yes-no", "Must users identify themselves to it?", False,
    ),
    Question(
        "data", "audit", "yes-no", "Must it be recorded who asked, and when?", False,
    ),
    Question(
        "budget", "per_month", "number", "What may it cost per month, in your currency?", None,
        least=0.01, most=1e12, help="Hardware, power and people; empty: no limit.",
    ),
)  # fmt: skip

BY_KEY = {question.key: question for question in QUESTIONS}
