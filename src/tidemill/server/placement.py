"""Which class of requests gets the next place: the scheduling priority.

    utilisation = actual throughput / theoretical peak * weight
    priority    = utilisation * (1 + urgency bonus)

A *placement* is a request put into the places that are free. Its actual throughput is predicted:
that of all sequences that run with it, as a share of what the model can run. Its weight is that of
its class, half for each class before it. The bonus grows while a class is passed over, from nothing
to what lifts the least placement of the last class to the top of the scale, and the faster the
nearer its next request's deadline is. At the top, whoever has been passed over for longest is
first.

So of classes that have just been served the more urgent is first, whatever its request fills; and
one that has something waiting is at the top after PATIENCE seconds at the latest, however many
more urgent requests come. Each gets a place now and then before that. Who is next *within* a class
is decided by what each tenant has been served (fairness.py): the formula is about what a placement
will do, and says nothing for whoever has used most.
"""

from __future__ import annotations

import math
from math import inf

PATIENCE = 30.0
"""Seconds after which a class that has been passed over is at the top."""

CLASSES = 9  # that are told apart by their weight
_LEAST_UTILISATION = 0.5  # so that weights, each half of the one before, decide between fresh ones
_MOST_BONUS = 2.0**CLASSES - 1  # lifts the least utilisation of the last class to 1


def weight(rank: int) -> float:
    """Of the class that has ``rank`` more urgent ones before it."""
    return 2.0 ** -min(rank, CLASSES - 1)


def utilisation(running: int, size: int, capacity: int, weight: float) -> float:
    """Of ``size`` sequences beside ``running`` others where ``capacity`` can run: in [1/2, 1] times
    the weight, since below one half nobody keeps anybody from a place."""
    return min(max((running + size) / capacity, _LEAST_UTILISATION), 1.0) * weight


def urgency(passed_over: float, left: float = inf, patience: float = PATIENCE) -> float:
    """The bonus, in [0, _MOST_BONUS], of a class that has got nothing for ``passed_over`` seconds
    and whose next request is given up in ``left`` seconds. It is measured by the patience or by
    what is left, and falls to nothing with each place: so neither a backlog of old requests nor
    one of requests about to be given up turns the order of the classes round."""
    bearable = min(patience, max(left, patience / 10))
    return math.pow(1 + _MOST_BONUS, min(max(passed_over / bearable, 0.0), 1.0)) - 1


def scheduling_priority(utilisation: float, urgency: float) -> float:
    """In (0, 1]; the greatest is first."""
    return min(utilisation * (1 + urgency), 1.0)
