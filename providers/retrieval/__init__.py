"""Searches, and what they are put together of: registry, vector, text, hybrid, rerank, bridges.

Each is a `RetrievalSearchProvider`, or makes one, and knows no database; the ports are those of
`ditto_tasks.contracts.retrieval`.
"""
