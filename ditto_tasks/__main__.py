"""`python -m ditto_tasks` and the console command `ditto-tasks`."""

from ditto_tasks.cli import main

if __name__ == "__main__":
    main()
