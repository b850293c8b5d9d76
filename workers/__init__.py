"""The Celery side: worker processes. Importing it starts nothing and exports nothing.

`celery -A workers.app worker` runs the workers that ditto.yaml describes; an application with stores of its
own builds its app with `workers.factory.create_worker_app`.
"""
