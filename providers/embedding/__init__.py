"""Embeddings: what turns texts into vectors, and what holds for all of them.

Nothing is exported here, so that no driver is imported unasked.
"""
