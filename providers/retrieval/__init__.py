"""Retrieval: searches that ask stores, and how the answers of several become one.

Nothing is exported here, so that no driver is imported unasked.
"""
