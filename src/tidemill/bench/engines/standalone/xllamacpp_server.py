"""Starts the HTTP server that the package ``xllamacpp`` has in it.

Run by path with an interpreter that has it, and so needs nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import threading


def main() -> None:
    parser = argparse.ArgumentParser(description="llama.cpp's server of the package xllamacpp.")
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--name", default="model")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens of all sequences")
    parser.add_argument("--sequences", type=int, default=8, help="most at once")
    options = parser.parse_args()
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.name}
    params.hostnames, params.port = ["127.0.0.1"], options.port
    params.n_ctx, params.n_parallel = options.context, options.sequences
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.use_jinja = True
    server = xllamacpp.Server(params)  # listens as long as it is there
    threading.Event().wait()
    del server


if __name__ == "__main__":
    main()
