"""Tidemill's scheduler in virtual time: what a deployment would do, before there is one.

How long a step takes  ``base.py`` is the contract, ``step_table.py`` the one form of it.
    measured           ``calibrate.py`` measures the steps of ``grid.py`` by ``measure.py``, and what
                       the server adds by ``served.py``; ``fit.py`` makes curves of that, and
                       ``calibration.py`` a file.
    computed           ``analytic.py``, from data sheets (``profiles.py``) and a model's program
                       (``shapes.py``); ``analytic_error.py`` says how far that is off.
One engine             ``replica.py``, in leaps (``leaps.py``), plays the requests of ``jobs.py``.
Many                   ``cluster.py`` has a ``timeline.py``, ``routing.py``, and ``changes.py``.
A scenario on them     ``traffic.py`` sends it (``templates.py``: with what chats add), ``figures.py``
                       adds up what came of it. ``play.py`` is one playing, ``predict.py`` figures
                       with bands, which ``proof.py`` may narrow and ``report.py`` shows.
What it takes          ``sizing/``: the cheapest of many deployments.
"""
