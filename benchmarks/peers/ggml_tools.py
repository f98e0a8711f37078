"""What llama.cpp and its forks share: a source package on PyPI, and tools that measure."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from peers.environments import root, step
from peers.protocol import Figures, Limits, Model, Peer, Settings, Work, process_figures, tail


class GgmlTools(Peer):
    """``llama-bench`` for one sequence, ``llama-batched-bench`` for several or a long context."""

    timed = (
        "its own tools, llama-bench and llama-batched-bench: the forward passes alone, random "
        "tokens, no sampling, no detokenising, no requests: the most generous figure for it"
    )
    package: ClassVar[str]
    release: ClassVar[str]
    source: ClassVar[str]  # within the unpacked package
    cmake: ClassVar[tuple[str, ...]]
    answers: ClassVar[str]  # the tool that continues a prompt once
    source_override: ClassVar[str | None] = None  # a local copy of the source instead

    @property
    def folder(self) -> Path:
        return root() / f"{self.name}-{self.release}"

    @property
    def tools(self) -> Path:
        return self.folder / "build" / "bin"

    @property
    def targets(self) -> tuple[str, ...]:
        return ("llama-bench", "llama-batched-bench", self.answers)

    def install(self) -> Path:
        """Build the tools for this machine (ten minutes and more on two cores, once)."""
        if all((self.tools / tool).exists() for tool in self.targets):
            return Path(sys.executable)
        self.folder.mkdir(parents=True, exist_ok=True)
        env = self.folder / "env" / "bin"
        step("make a virtual environment", [sys.executable, "-m", "venv", str(env.parent)])
        pip = [str(env / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
        step("install cmake and ninja", [*pip, "install", "cmake", "ninja"])
        if self.source_override:
            source = Path(self.source_override)
        else:
            archive = f"{self.package.replace('-', '_')}-{self.release}"
            step(
                f"download the source of {self.package} {self.release}",
                [*pip, "download", "--no-deps", "--no-binary", ":all:", "-d", str(self.folder),
                 f"{self.package}=={self.release}"],
            )  # fmt: skip
            step("unpack", ["tar", "xf", f"{archive}.tar.gz"], cwd=self.folder)
            source = self.folder / archive / self.source
            self.complete(source)
        build = self.folder / "build"
        step(
            "configure",
            [str(env / "cmake"), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={env / 'ninja'}",
             "-S", str(source), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release",
             "-DGGML_NATIVE=ON", *self.cmake],
        )  # fmt: skip
        step(
            "build",
            [str(env / "cmake"), "--build", str(build), "-j", "2", "--target", *self.targets],
        )
        return Path(sys.executable)

    def complete(self, source: Path) -> None:
        """Add what the package lacks, to the source just unpacked."""

    def version(self) -> str:
        return f"{self.package} {self.release}"

    def options(self, settings: Settings) -> list[str]:
        """Options of llama-batched-bench."""
        raise NotImplementedError

    def bench_options(self, settings: Settings) -> list[str]:
        """Options of llama-bench, where they are spelt differently."""
        return self.options(settings)

    def measure(
        self, model: Model, work: Work, threads: int, settings: Settings, limits: Limits
    ) -> Figures:
        common = ["-m", model.path, "-t", str(threads)]
        if work.kind == "start":
            return process_figures(work, [str(self.tools / self.answers), *common,
                                          *self.answer_options(work, settings)])  # fmt: skip
        # The KV cells of all sequences are allocated as one context.
        context = str(work.streams * work.context)
        batched = [
            str(self.tools / "llama-batched-bench"), *common, *self.options(settings),
            "-c", context, "-npp", str(work.prompt), "-npl", str(work.streams),
        ]  # fmt: skip
        if work.kind == "memory":
            return process_figures(work, [*batched, "-ntg", "1"])
        if work.streams == 1 and work.prompt <= 512:
            return self._bench(common, work, settings)
        # llama.cpp prints its table to standard output, its fork to standard error.
        rows = batched_rows("\n".join(run([*batched, "-ntg", str(max(work.generate, 1))])))
        if not rows:
            raise RuntimeError("llama-batched-bench printed no figures")
        prefill, decode = rows[-1]
        figures = {"prefill": prefill, "decode": decode}
        return {name: figures[name] for name in work.figures}

    def answer_options(self, work: Work, settings: Settings) -> list[str]:
        raise NotImplementedError

    def _bench(self, common: Sequence[str], work: Work, settings: Settings) -> Figures:
        prompt = work.prompt if "prefill" in work.figures else 0
        generate = work.generate if "decode" in work.figures else 0
        output, _ = run(
            [str(self.tools / "llama-bench"), *common, *self.bench_options(settings),
             "-p", str(prompt), "-n", str(generate), "-r", str(work.repeats), "-o", "json"]
        )  # fmt: skip
        figures = {}
        for row in json.loads(output):
            figures["decode" if row["n_gen"] else "prefill"] = float(row["avg_ts"])
        return {name: figures[name] for name in work.figures}


def batched_rows(output: str) -> list[tuple[float, float]]:
    """Prefill and decode rates, tokens per second, of the rows of llama-batched-bench's table."""
    rows = []
    for line in re.findall(r"^\|\s*\d+ \|.*$", output, re.MULTILINE):
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        rows.append((float(cells[5]), float(cells[7])))
    return rows


def run(command: Sequence[str]) -> tuple[str, str]:
    """Standard output and standard error of a tool, run in a folder of its own: some leave log
    files behind."""
    with tempfile.TemporaryDirectory(prefix="peer-") as folder:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    if done.returncode != 0:
        raise RuntimeError(
            f"{Path(command[0]).name}: exit status {done.returncode}: {tail(done.stderr)}"
        )
    return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
