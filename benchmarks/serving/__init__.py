"""Servers compared over HTTP: how they are started, what they are asked, what came of it."""
