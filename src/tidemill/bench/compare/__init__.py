"""Whether one result is better than another: "better", "worse", or "not distinguishable".

Two sides are compared (``base.py``), each of one run or of several repeats. Where there are
repeats, a figure's interval is Student's, of the logarithms of what the runs have: requests of one
run say nothing of how much runs differ. Of one run each, intervals are bootstrapped: from the
requests, in blocks, as requests in a queue depend on each other; for rates from the parts of the
window; and in pairs, where both sides had the same requests. That leaves out what differs between
runs, and the comparison says so.
Why runs are not bootstrapped: docs/decisions/2026-11-30-comparing-runs.md.
"""

from tidemill.bench.compare.base import CompareError, Comparison, Figure, Side
from tidemill.bench.compare.verdicts import compare

__all__ = ["CompareError", "Comparison", "Figure", "Side", "compare"]
