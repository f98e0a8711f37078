"""Measures any OpenAI-compatible endpoint as its users would see it, over its HTTP API alone.

A ``Plan`` (``run.py``) says what is asked of whom and how fast; running it gives a ``Recording``,
in which every request has its ``Record``; ``measures.py`` makes figures of that. A ``Scenario`` is
what a plan is made from, and ``result.py`` carries it out on an address, or on an engine that is
started for it. Of the server of this project nothing is known here but its command line.
"""
