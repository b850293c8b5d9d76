"""Providers: stores, searches and models that implement the ports of `ditto_tasks.contracts`.

Nothing is exported here, so that no driver is imported unasked.
"""
