"""Models to measure on: the catalogue's, and ones of random weights in shapes that it lacks."""
