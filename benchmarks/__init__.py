"""Benchmarks: each script holds us against the plain tool and exits 1 when a goal is missed."""
