"""Anthropic's Messages API: its requests as chats, the engine's outputs as its messages."""
