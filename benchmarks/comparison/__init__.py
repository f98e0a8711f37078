"""Tidemill against its peers: what is measured, how rounds are run, how they are reported."""
