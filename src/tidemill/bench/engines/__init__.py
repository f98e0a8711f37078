"""Engines that are started here, each a child process and a file of its own.

All listen on a free port of this machine only, and hold as many sequences of as many tokens as the
load needs (``Launch``). Otherwise they run as they do by default, but that guessing ahead is off:
answers to prompts of random words repeat themselves, which would flatter whoever guesses. What is
to be different (tensor parallelism, data types ...) is said by ``--engine-args``.
"""

from collections.abc import Mapping

from tidemill.bench.engines.base import MODEL_NAME, Engine, Launch, TargetError
from tidemill.bench.engines.llama_cpp import LlamaCpp
from tidemill.bench.engines.ollama import Ollama
from tidemill.bench.engines.openvino import OpenVino
from tidemill.bench.engines.process import EngineProcess, started
from tidemill.bench.engines.sglang import Sglang
from tidemill.bench.engines.tgi import Tgi
from tidemill.bench.engines.tidemill import Tidemill
from tidemill.bench.engines.transformers import Transformers
from tidemill.bench.engines.vllm import Vllm
from tidemill.bench.engines.xllamacpp import Xllamacpp

ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Tidemill(), LlamaCpp(), Xllamacpp(), Vllm(), Sglang(), Tgi(), Ollama(), OpenVino(),
        Transformers(),
    )
}  # fmt: skip

__all__ = [
    "ENGINES",
    "MODEL_NAME",
    "Engine",
    "EngineProcess",
    "Launch",
    "TargetError",
    "started",
]
