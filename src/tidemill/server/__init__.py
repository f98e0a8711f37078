"""HTTP over engines: the APIs of OpenAI, Anthropic and Ollama, and what belongs to a service.

``serve.py`` runs it, ``app.py`` answers requests by the table in ``operations.py``, ``service.py``
is what handlers share. ``openai/``, ``anthropic/`` and ``ollama/`` translate their APIs, ``tools/``
finds calls in answers, ``web/`` is the page. ``models.py`` holds the models that are served:
``worker.py`` is the process that runs one's engine, ``worker_process.py`` the front end's end of
it, ``wire.py`` what the two say. ``admission.py`` decides who is next.
"""
