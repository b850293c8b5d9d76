"""The scheduler: `celery -A beat.app beat` sends the calls that `schedules` of ditto.yaml lists.

It runs nothing itself and knows no provider. Run two: one sends, the other stands by.
"""
