"""Which engine, in which configuration, for a case: advice by rules over dated, sourced facts."""
