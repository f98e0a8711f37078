"""Tidemill's scheduler in virtual time: what a deployment would do, before there is one.

How long a step takes (``base.py``: the contract; ``step_table.py``: the one form of it):
  measured     ``calibrate.py`` measures the steps of ``grid.py`` with ``measure.py``, and what the
               server adds with ``served.py``; ``fit.py`` makes curves of that, ``calibration.py``
               a file.
  computed     ``analytic.py``, from data sheets (``profiles.py``) and a model's program
               (``shapes.py``); ``analytic_error.py`` says how far that is off.
Playing requests:
  one engine   ``replica.py`` plays ``jobs.py``, in leaps (``leaps.py``) where steps are alike.
  many         ``cluster.py``, with a ``timeline.py``, ``routing.py``, and ``changes.py``.
  a scenario   ``traffic.py`` sends it (``templates.py``: with what chats add to it).
What came of it: ``figures.py`` adds it up, ``play.py`` is one playing, ``predict.py`` makes figures
with bands, which ``proof.py`` may narrow, and ``report.py`` shows them. ``sizing/`` finds the
cheapest of many deployments.
"""
