"""HTTP over engines: the OpenAI API and what belongs to a service around it.

``base.py`` is what handlers see of a model; ``worker.py`` is the process that runs one engine, and
``worker_process.py`` the front end's end of it; ``models.py`` holds the models that are served;
``openai/`` translates the API; ``app.py`` puts the routes together and ``serve.py`` runs them.
"""
