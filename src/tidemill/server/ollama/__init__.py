"""Ollama's API: its requests as prompts, the engine's outputs as its objects."""
