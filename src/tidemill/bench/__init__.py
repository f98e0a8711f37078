"""Measures any OpenAI-compatible endpoint as its users would see it, over its HTTP API alone.

A ``Plan`` (``run.py``) says what is asked of whom and how fast; running it gives a ``Recording``,
in which every request has its ``Record``; ``measures.py`` makes figures of that. Nothing here knows
the server of this project.
"""
