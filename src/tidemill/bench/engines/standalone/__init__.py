"""Servers that run by path in the interpreter of an engine, and import nothing of Tidemill.

In a folder of their own: Python looks for modules beside such a program first.
"""
