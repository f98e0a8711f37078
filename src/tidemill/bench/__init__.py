"""Measures any OpenAI-compatible endpoint as its users would see it, over its HTTP API alone.

What is asked     ``scenario.py`` (files in ``scenarios/``): a ``workload.py`` of shapes, with
                  ``tasks.py`` that are checked, and a load: ``arrivals.py``, or ``traces.py``.
Of whom           ``targets.py``: an address, or one of ``engines/`` that is started for it;
                  ``starts.py`` measures the start itself.
Asking            ``run.py`` carries out a ``Plan``, in a process of its own (``apart.py``), over
                  ``client.py``, whose bytes ``stream.py`` reads. What is known then: ``records.py``.
What it took      ``meters.py`` samples ``processes.py``; ``resources.py`` makes figures of that.
Figures           ``measures.py`` by ``statistics.py``; ``definitions.py`` as other tools have them.
A measurement     ``result.py`` does all of this once; ``search.py`` and ``curve.py`` several times.
Afterwards        ``store.py`` keeps results; ``report.py`` shows one in a terminal, ``compare/`` two
                  against each other, ``reporting/`` many with pictures.
Is it right?      ``selftest.py``, on the endpoint of known times in ``mock_server.py``.

Of the server of this project nothing is known here but its command line.
"""
