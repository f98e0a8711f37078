"""The OpenAI API: its requests as sampling parameters, the engine's outputs as its answers."""
