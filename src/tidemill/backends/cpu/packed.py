"""Packed weights kept between runs: the weight memory of one start, mapped by the next.

What is kept is the executor's weight memory, byte for byte, so that opening it is one mapping. It
is found by a key of everything that the bytes depend on: the content of the model's files, where
in them each weight comes from, how the kernels lay weights out (found out by packing made-up
matrices, see ``pack_fingerprint``), and the place of each weight. The layout is the same on every
instruction set, so the key has none. Files are those of ``tidemill.store.packed``.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import threading
from dataclasses import fields
from typing import Any

import numpy as np

from tidemill import __version__, _native
from tidemill.backends.base import Origin
from tidemill.backends.cpu.build import Built
from tidemill.models.sources import ModelWeights, Source
from tidemill.records import dataclass
from tidemill.store.base import StoreError
from tidemill.store.packed import (
    Opened,
    PackedFile,
    discard_packed,
    open_packed,
    packed_limit,
    write_packed,
)
from tidemill.weights.base import WeightTensor

log = logging.getLogger("tidemill")

# Packing less takes a moment; keeping it would only fill the store with small files.
LEAST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A weight's place in the image."""

    name: str
    offset: int
    bytes: int


class PackedImage:
    """The kept (or still to be kept) weight memory of one executor."""

    def __init__(self, key: str, origin: Origin, parts: tuple[Part, ...], total: int) -> None:
        self.key = key
        self._origin = origin
        self._parts = parts
        self._total = total

    @staticmethod
    def of(built: Built, weights: ModelWeights, origin: Origin | None) -> PackedImage | None:
        """None where nothing is kept: the origin is unknown, the weights are few or too many, or
        it has been turned off. Raises StoreError for a malformed setting."""
        total: int = built.executor.weight_bytes
        if origin is None or not LEAST_BYTES <= total <= packed_limit():
            return None
        parts = _parts(built)
        digest = hashlib.sha256(
            f"{__version__} {_native.pack_fingerprint():x} {origin.identity} {total}\n".encode()
        )
        for part in parts:
            source = _describe(weights.sources[part.name])
            digest.update(f"{part.name!r} {part.offset} {part.bytes} {source}\n".encode())
        return PackedImage(digest.hexdigest()[:32], origin, parts, total)

    def is_kept(self) -> bool:
        """Whether a file is there whose frame is sound."""
        opened = self._open()
        if opened is None:
            return False
        with opened:
            return True

    def map_into(self, executor: Any) -> bool:
        """Let the executor read its weights from the file; whether there is a sound one.

        Its image is read and compared with its checksums only if it may have been written to
        since it was put there.
        """
        opened = self._open()
        if opened is None:
            return False
        with opened:
            try:
                executor.map_weights(opened.descriptor, opened.header.image_offset)
            except ValueError:  # a file system that cannot map
                return False
            if not opened.sealed:
                if damaged := damaged_part(opened.header.content, executor.image()):
                    log.warning("packed weights are damaged at %s: packing anew", damaged)
                    discard_packed(opened.path)
                    executor.unmap_weights()
                    return False
                opened.seal()
            opened.mark_used()
        return True

    def keep(self, executor: Any) -> Keeper:
        """Write the executor's loaded weights to a file, in a thread of its own."""
        return Keeper(self, executor)

    def write(self, executor: Any, keeper: Keeper) -> None:
        image = executor.image()
        content = {
            "parts": [
                [part.name, part.offset, part.bytes, f"{checksum_of(image, part):x}"]
                for part in self._parts
                if not keeper.cancelled
            ]
        }
        if not keeper.cancelled:
            write_packed(
                self.key, self._origin.files, content, image.data,
                cancelled=lambda: keeper.cancelled,
            )  # fmt: skip

    def _open(self) -> Opened | None:
        opened = open_packed(self.key)
        if opened is None:
            return None
        parts = _read_parts(opened.header.content)
        if (
            opened.header.image_bytes != self._total
            or parts is None
            or tuple(part for part, _ in parts) != self._parts
        ):
            with opened:
                discard_packed(opened.path)
            return None
        return opened


class Keeper(threading.Thread):
    """Writes packed weights while the model is at work. They must stay until it has ended.

    What goes wrong costs the next start some time and nothing else: it is logged, once.
    """

    def __init__(self, image: PackedImage, executor: Any) -> None:
        # Not a daemon: a process that ends after a short answer waits until it is written.
        super().__init__(name="tidemill-packed")
        self._image = image
        self._executor: Any = executor
        self.cancelled = False
        self.start()

    def run(self) -> None:
        try:
            self._image.write(self._executor, self)
        except (OSError, StoreError, ValueError) as error:
            log.warning(
                "packed weights are not kept, so each start packs them again: %s", _reason(error)
            )
        finally:
            self._executor = None

    def finish(self) -> None:
        """Wait until it is written; KeyboardInterrupt gives it up."""
        try:
            self.join()
        except BaseException:
            self.cancelled = True
            raise


def check_packed(file: PackedFile) -> str | None:
    """Read a packed file whole; the first weight that is damaged, None if it is sound or gone."""
    opened = open_packed(file.path.name)
    if opened is None:
        return None
    with opened:
        header = opened.header
        with mmap.mmap(
            opened.descriptor, header.image_bytes, prot=mmap.PROT_READ, offset=header.image_offset
        ) as mapping:
            image = np.frombuffer(mapping, np.uint8)
            damaged = damaged_part(header.content, image)
            del image
        if damaged is None:
            opened.seal()
    return damaged


def damaged_part(content: dict[str, Any], image: Any) -> str | None:
    """The first weight whose bytes in the image (uint8 array) are not those that were written."""
    parts = _read_parts(content)
    if parts is None:
        return "the list of its parts"
    for part, expected in parts:
        if not 0 <= part.offset <= part.offset + part.bytes <= image.nbytes:
            return part.name
        if checksum_of(image, part) != expected:
            return part.name
    return None


def checksum_of(image: Any, part: Part) -> int:
    return int(_native.checksum(image[part.offset : part.offset + part.bytes]))


def _parts(built: Built) -> tuple[Part, ...]:
    executor = built.executor
    matrices = [Part(name, *executor.matrix_place(i)) for name, i in built.matrices.items()]
    vectors = [Part(name, *executor.vector_place(i)) for name, i in built.vectors.items()]
    return tuple(sorted([*matrices, *vectors], key=lambda part: part.offset))


def _read_parts(content: dict[str, Any]) -> list[tuple[Part, int]] | None:
    """The parts with their checksums that a header lists; None if that is no such list."""
    try:
        return [
            (Part(str(name), int(offset), int(size)), int(checksum, 16))
            for name, offset, size, checksum in content["parts"]
        ]
    except (KeyError, ValueError, TypeError):
        return None


def _describe(source: Source) -> str:
    """The recipe of a weight: the kind of source, its tensors by name and its other arguments."""
    recipe = [type(source).__name__]
    for field in fields(source):  # type: ignore[arg-type]
        value = getattr(source, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            recipe.append(item.name if isinstance(item, WeightTensor) else repr(item))
    return repr(recipe)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
