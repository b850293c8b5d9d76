FROM python:3.11-slim

WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY ditto_tasks ditto_tasks
COPY providers providers
COPY workers workers
COPY beat beat
RUN pip install --no-cache-dir '.[embedded,http,mysql,postgres,qdrant]' && useradd --create-home ditto && install --directory --owner ditto /data

COPY ditto.yaml /etc/ditto/ditto.yaml
ENV DITTO_CONFIG=/etc/ditto/ditto.yaml \
    DITTO_RUNTIME_WORKSPACE=/data \
    PYTHONUNBUFFERED=1

USER ditto
WORKDIR /data
VOLUME /data
CMD ["ditto-tasks", "--help"]
