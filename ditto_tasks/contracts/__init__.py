"""Contracts: what nodes take and give, the ports that providers implement, and the errors.

Import from the modules; they need pydantic and nothing else.
"""
