"""docker-compose.yml names only what the code has: commands, capabilities, modules and variables."""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import Context

from ditto_tasks.cli import main
from ditto_tasks.config import ENVIRONMENT, load_config
from ditto_tasks.contracts.catalog import CAPABILITIES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}


def command_lines() -> list[list[str]]:
    """List what our own services run: their commands and their health checks."""
    commands = [service["command"] for service in OURS.values()]
    checks = [service["healthcheck"]["test"][1:] for service in OURS.values()]
    return commands + checks


def environment(service: dict[str, Any]) -> dict[str, str]:
    """Fill the defaults in, as Compose does when nothing is set outside."""
    variables: dict[str, str] = service.get("environment", {})
    return {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for name, value in variables.items()}


def test_every_capability_has_a_worker_service() -> None:
    served = [line[2] for line in command_lines() if line[:2] == ["ditto-tasks", "worker"]]

    assert sorted(served) == sorted(CAPABILITIES)


def test_every_command_is_one_of_ours() -> None:
    assert {line[0] for line in command_lines()} == {"ditto-tasks", "celery"}
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert "ditto-tasks" in scripts


def test_every_subcommand_is_one_of_the_command_line() -> None:
    subcommands = main.list_commands(Context(main))

    for line in command_lines():
        if line[0] == "ditto-tasks":
            assert line[1] in subcommands


def test_every_celery_app_is_a_module() -> None:
    modules = [line[line.index("-A") + 1] for line in command_lines() if line[0] == "celery"]

    assert modules == ["beat.app"]
    assert all(find_spec(module) for module in modules)


@pytest.mark.parametrize("name", OURS)
def test_the_variables_of_a_service_are_read_and_accepted(name: str) -> None:
    variables = environment(OURS[name])

    assert set(variables) <= set(ENVIRONMENT)
    assert load_config(None, variables).result_url == "redis://broker:6379/0"


def test_every_variable_of_ours_that_it_takes_from_outside_is_read() -> None:
    outside = re.findall(r"\$\{(DITTO_\w+)", TEXT)

    assert outside
    assert set(outside) <= set(ENVIRONMENT)


def test_the_image_sets_variables_that_are_read() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()

    assert set(re.findall(r"\b(DITTO_\w+)=", dockerfile)) <= set(ENVIRONMENT)


def test_the_image_holds_every_package_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = re.findall(r"^COPY (\w+) \1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)

    assert sorted(copied) == sorted(packages)


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_a_health_check_and_waits_for_healthy_ones(name: str) -> None:
    service = SERVICES[name]

    assert service["healthcheck"]["test"]
    for needed, how in service.get("depends_on", {}).items():
        assert needed in SERVICES
        assert how == {"condition": "service_healthy"}


def test_the_broker_evicts_nothing_and_outlives_a_restart() -> None:
    command = SERVICES["broker"]["command"]

    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"
    assert command[command.index("--appendonly") + 1] == "yes"
    assert "broker-data:/data" in SERVICES["broker"]["volumes"]


def test_every_named_volume_is_declared_and_used() -> None:
    mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]

    assert {name for name in mounted if not name.startswith(".")} == set(COMPOSE["volumes"])


def test_foreign_images_have_a_tag_and_ports_open_to_this_machine_only() -> None:
    for service in SERVICES.values():
        if "build" not in service:
            assert ":" in service["image"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_two_beats_run_and_keep_no_file() -> None:
    assert sum("beat.app" in line for line in command_lines()) == 1
    assert SERVICES["beat"]["deploy"] == {"replicas": 2}
    assert not {"-s", "--schedule", "--pidfile"} & set(SERVICES["beat"]["command"])
