"""What each technique of the engine buys: each is measured on and off (see ``ablations.py``)."""
