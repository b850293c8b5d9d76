"""The embedded default: a broker and workers of one folder, started by `ditto-tasks up`."""
