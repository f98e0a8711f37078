"""Measures any OpenAI-compatible endpoint as its users would see it, over its HTTP API alone.

What is asked   ``scenario.py`` (files in ``scenarios/``): a ``workload.py`` of shapes, with
                ``tasks.py`` that are checked, and a load, ``arrivals.py`` or ``traces.py``.
Of whom         ``targets.py``: an address, or one of ``engines/`` that is started for it;
                ``starts.py`` measures the start itself.
Asking          ``run.py`` carries out a ``Plan``, in another process (``apart.py``), over
                ``client.py``; ``stream.py`` reads what came, and ``records.py`` has what is known.
Figures         ``measures.py``, with ``statistics.py``; ``definitions.py``, as other tools have
                them; ``resources.py``, of what ``meters.py`` saw of ``processes.py``.
All of it       once in ``result.py``, at several loads in ``search.py`` and ``curve.py``.
Afterwards      ``store.py`` keeps results. ``report.py`` shows one in a terminal, ``compare/`` two
                against each other, ``reporting/`` many, with pictures.
Is it right?    ``selftest.py`` measures the endpoint of known times in ``mock_server.py``.

Of the server of this project nothing is known here but its command line.
"""
