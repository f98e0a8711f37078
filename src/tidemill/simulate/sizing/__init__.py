"""The cheapest deployment that meets an SLO, found by simulation: ``tidemill size``."""
