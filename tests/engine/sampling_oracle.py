"""The rules of sampling once more, in NumPy and float64, one line per rule; see csrc/sampling.h."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rules:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)


def adjusted(
    logits: npt.NDArray[np.float32], rules: Rules, prompt: Sequence[int], output: Sequence[int]
) -> npt.NDArray[np.float32]:
    """After penalties and bias; in float32, as the real one, so that ties stay ties."""
    x = logits.copy()
    f = np.float32
    for token in set(prompt) | set(output):
        penalty = f(rules.repetition_penalty)
        x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
        count = list(output).count(token)
        x[token] -= f(rules.frequency_penalty) * f(count)
        if count:
            x[token] -= f(rules.presence_penalty)
    for token, bias in rules.bias.items():
        x[token] += f(bias)
    return x


def candidates(x: npt.NDArray[np.float32], rules: Rules) -> tuple[npt.NDArray[np.int64], Floats]:
    """The token ids that the filters leave, rising, and their masses (not normalised)."""
    scaled = (x.astype(np.float64) - x.max()) / rules.temperature
    order = np.lexsort((np.arange(len(x)), -scaled))  # by falling logit, then rising id
    if 0 < rules.top_k < len(x):
        order = order[: rules.top_k]
    mass = np.exp(scaled[order])
    if rules.top_p < 1:
        order = order[: prefix(mass, rules.top_p)]
    if rules.min_p > 0:
        order = order[np.exp(scaled[order]) >= rules.min_p]
    if rules.typical_p < 1:
        mass = np.exp(scaled[order])
        p = mass / mass.sum()
        information = -np.log(p, where=p > 0, out=np.full_like(p, -np.inf))
        entropy = (p[p > 0] * information[p > 0]).sum()
        distance = np.abs(information - entropy).astype(np.float32)
        nearest = np.lexsort((order, distance))
        order = order[nearest[: prefix(mass[nearest], rules.typical_p)]]
    order = np.sort(order)
    return order, np.exp(scaled[order])


def prefix(mass: Floats, share: float) -> int:
    """How many of ``mass``, from the first on, it takes to reach ``share`` of the total."""
    reached = np.cumsum(mass) >= share * mass.sum()
    return int(np.argmax(reached)) + 1 if reached.any() else len(mass)


def choose(x: npt.NDArray[np.float32], rules: Rules, *uniforms: float) -> set[int]:
    """The tokens that uniform numbers pick from adjusted logits."""
    if rules.temperature < 1e-3 or rules.top_k == 1:
        return {int(np.argmax(x))}
    ids, mass = candidates(x, rules)
    cumulative = np.cumsum(mass)
    at = np.searchsorted(cumulative, np.array(uniforms) * cumulative[-1], "right")
    return set(ids[np.minimum(at, len(ids) - 1)].tolist())


def choose_clearly(x: npt.NDArray[np.float32], rules: Rules, u: float) -> int | None:
    """The token that ``u`` picks, or None where float32 rounding may decide otherwise."""
    e = 4e-6
    choices = choose(x, rules, u - e, u, u + e)
    if rules.top_p < 1 or rules.typical_p < 1 or rules.min_p > 0:
        for side in (-e, e):
            shifted = replace(
                rules,
                top_p=rules.top_p + side if 0 < rules.top_p < 1 else rules.top_p,
                typical_p=rules.typical_p + side if rules.typical_p < 1 else rules.typical_p,
                min_p=rules.min_p * (1 + side),
            )
            choices |= choose(x, shifted, u - e, u + e)
    return choices.pop() if len(choices) == 1 else None


def logprobs(logits: npt.NDArray[np.float32]) -> Floats:
    x = logits.astype(np.float64)
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def philox_uniform(seed: int, stream: int, position: int) -> float:
    """Philox4x32-10 (Salmon et al. 2011) of (seed, stream, position), 53 bits of it."""
    mask = 2**32 - 1
    counter = [position, stream, 0, 0]
    key = [seed & mask, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            b >> 32 ^ counter[1] ^ key[0], b & mask, a >> 32 ^ counter[3] ^ key[1], a & mask,
        ]  # fmt: skip
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return ((counter[1] << 32 | counter[0]) >> 11) * 2.0**-53
