"""Which engine, in which configuration, for a case: advice by rules over dated, sourced facts.

``questions.py`` are answered (``answers.py``), in a terminal or on a ``page/``. ``flow.py`` decides
which class of engine is needed where, ``rules.py`` which engines of ``facts.py`` may be it, and
``scores.py`` which is best; ``advice.py`` puts that together, with ``evidence.py`` where something
was measured or simulated. ``report.py`` shows it: the ``reasons.py``, the command (``launch.py``),
the ``risks.py``, what to measure (``measuring.py``), and what would change it (``flips.py``).
"""
