"""The configuration: what a file and an environment may say, and what is said of one that is wrong."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ditto_tasks.config import ENVIRONMENT, DittoConfig, find_config, load_config
from ditto_tasks.config.reference import ANY_KEY, EACH_ITEM, SETTINGS, Setting, markdown_table
from ditto_tasks.config.yaml_reader import read_yaml
from ditto_tasks.contracts.catalog import CAPABILITIES
from ditto_tasks.contracts.errors import ConfigError
from ditto_tasks.queues import DEFAULT_PREFIX

ROOT = Path(__file__).parents[2]
SECRET = "hunter2"


class Loader:
    """Loads texts as files, with an empty environment."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ditto.yaml"

    def __call__(self, text: str, environ: dict[str, str] | None = None) -> DittoConfig:
        self.path.write_text(text, encoding="utf-8")
        return load_config(self.path, environ or {})

    def refusal(self, text: str) -> str:
        with pytest.raises(ConfigError) as caught:
            self(text)
        return str(caught.value).replace(str(self.path), "FILE")


@pytest.fixture
def load(tmp_path: Path) -> Loader:
    return Loader(tmp_path)


def environment_refusal(**environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(None, environ)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return str(caught.value)


class TestDefaults:
    def test_without_a_file_and_an_environment_they_hold(self) -> None:
        config = load_config(None, {})

        assert config.path is None
        assert config.runtime.timeout == 30.0
        assert (config.workers.memory.concurrency, config.workers.memory.pool) == (8, "threads")
        assert config.workers.memory.queues == {}
        assert (config.workers.memory.query_limit, config.workers.memory.search_limit) == (None, None)
        assert config.transport.prefix == DEFAULT_PREFIX
        assert config.transport.max_pending is None
        assert (config.transport.result_expires, config.transport.visibility_timeout) == (86_400.0, 3600.0)
        assert config.transport.max_body_bytes == 1_048_576
        assert config.schedules == ()
        assert (config.broker_url, config.result_url, config.memory_store_url) == (None, None, None)
        assert (config.environment, config.workspace) == ("development", Path.cwd())

    def test_a_config_that_is_constructed_has_them_too(self) -> None:
        assert DittoConfig() == load_config(None, {})

    def test_the_checked_in_file_says_nothing_else(self) -> None:
        config = load_config(ROOT / "ditto.yaml", {})

        assert dataclasses.replace(config, path=None) == load_config(None, {})

    @pytest.mark.parametrize("capability", CAPABILITIES)
    def test_every_capability_has_its_section(self, capability: str) -> None:
        config = load_config(None, {})

        assert config.worker(capability) is getattr(config.workers, capability)

    def test_an_unknown_capability_has_none(self) -> None:
        with pytest.raises(ConfigError, match="'memry': there are infer, memory"):
            load_config(None, {}).worker("memry")


class TestFile:
    def test_milliseconds_become_seconds(self, load: Loader) -> None:
        config = load("runtime: {timeoutMs: 1500}\nworkers: {context: {cache: {ttlMs: 250}}}")

        assert config.runtime.timeout == 1.5
        assert config.workers.context.cache.ttl == 0.25

    def test_whole_floats_are_integers(self, load: Loader) -> None:
        config = load("runtime: {timeoutMs: 2e3, maxTurns: 4.0}")

        assert config.runtime.timeout == 2.0
        assert repr(config.runtime.max_turns) == "4"

    def test_keys_with_dashes_are_read(self, load: Loader) -> None:
        strategies = load(
            "workers: {infer: {strategies: {long-cot: {rounds: 9}, self-consistency: {candidates: 5}}}}"
        ).workers.infer.strategies

        assert (strategies.long_cot.rounds, strategies.self_consistency.candidates) == (9, 5)

    def test_providers_are_read_by_name(self, load: Loader) -> None:
        text = "shared: {providers: {glm: {maxTokensField: max_tokens, options: {thinking: [1, null]}}}}"

        provider = load(text).shared.providers["glm"]

        assert (provider.max_tokens_field, provider.options) == ("max_tokens", {"thinking": [1, None]})

    def test_its_path_is_kept(self, load: Loader) -> None:
        assert load("runtime: {}").path == load.path

    def test_a_byte_order_mark_is_no_mistake(self, load: Loader) -> None:
        load("\ufeffruntime: {}")

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("010", 10),
            ("1_000", "1_000"),
            ("1:30", "1:30"),
            ("on", "on"),
            ("yes", "yes"),
            ("2025-01-01", "2025-01-01"),
            ("0x1F", 31),
            ("0o17", 15),
            ("-3", -3),
            ("1e3", 1000.0),
            (".5", 0.5),
            ("TRUE", True),
            ("~", None),
            ("''", ""),
            ("'12'", "12"),
        ],
    )
    def test_scalars_are_those_of_yaml_1_2(self, text: str, value: Any) -> None:
        read = read_yaml(f"a: {text}".encode(), "FILE").data["a"]

        assert (read, type(read)) == (value, type(value))

    @given(
        st.dictionaries(
            st.text(st.characters(codec="utf-8", categories=("L", "N"))).map(lambda key: f"k{key}"),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("ab \n:#'"),
                lambda inner: (
                    st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3)
                ),
                max_leaves=8,
            ),
            min_size=1,
            max_size=4,
        )
    )
    def test_what_a_yaml_writer_writes_is_read_back(self, data: dict[str, Any]) -> None:
        content = yaml.safe_dump(data, allow_unicode=True).encode()

        assert read_yaml(content, "FILE").data == yaml.safe_load(content)

    @given(st.binary(max_size=60) | st.text("ab:-?[]{}&*!|>'\"#%@` \n\t1.~<", max_size=40).map(str.encode))
    def test_whatever_a_file_holds_is_read_or_refused(self, content: bytes) -> None:
        try:
            read_yaml(content, "FILE")
        except ConfigError as error:
            assert str(error).startswith("FILE:")  # noqa: PT017  # most contents raise, some do not


class TestFrozen:
    def test_nothing_can_be_assigned(self) -> None:
        config = load_config(None, {})

        with pytest.raises(dataclasses.FrozenInstanceError):
            config.environment = "test"  # type: ignore[misc]
        with pytest.raises(ValidationError, match="frozen"):
            config.runtime.timeout = 1.0  # type: ignore[misc]
        with pytest.raises(TypeError):
            config.workers.memory.queues["MEMORY.GET"] = "x"  # type: ignore[index]

    def test_a_later_change_of_the_environment_does_not_show(self) -> None:
        environ = {"DITTO_BROKER_URL": "redis://one/0"}
        config = load_config(None, environ)

        environ["DITTO_BROKER_URL"] = "redis://two/0"

        assert config.broker_url == "redis://one/0"


REFUSED = [
    # what the file is
    ("", "FILE: must be a mapping of settings, not empty"),
    ("# only a comment\n", "FILE: must be a mapping of settings, not empty"),
    ("null", "FILE: must be a mapping of settings, not empty"),
    ("- runtime", "FILE: must be a mapping of settings, not a list"),
    ("runtime", "FILE: must be a mapping of settings, not 'runtime'"),
    ("a: 1\n---\nb: 2", "FILE:2: is not YAML"),
    ("runtime: [", "FILE:1: is not YAML"),
    ("runtime:\n\ttimeoutMs: 1", "FILE:2: is not YAML"),
    ("runtime: \x07", "FILE: is not YAML"),
    ("a: " + "[" * 5000, "FILE: is nested too deeply"),
    # what is read nowhere
    ("runtime: &a {}\nshared: *a", "FILE:1: anchors and aliases are not read"),
    ("runtime: {}\nshared: *a", "FILE:2: anchors and aliases are not read"),
    ("runtime:\n  <<: {timeoutMs: 1}", "FILE:2: merge keys are not read"),
    ("runtime: !!map {}", "FILE:1: tags are not read"),
    ("runtime: !!python/object/apply:os.getcwd []", "FILE:1: tags are not read"),
    ("runtime: {}\nruntime: {}", "FILE:2: runtime stands here a second time, after line 1"),
    ("runtime:\n  react: {}\n  'react': {}", "FILE:3: runtime.react stands here a second time, after line 2"),
    ("1: {}", "FILE:1: a key must be a string"),
    ("true: {}", "FILE:1: a key must be a string"),
    ("? [a]\n: 1", "FILE:1: a key must be a string"),
    # unknown keys
    ("runtimes: {}", "FILE:1: runtimes is no setting: did you mean runtime?"),
    ("runtime:\n  timeout_ms: 1", "FILE:2: runtime.timeout_ms is no setting: did you mean timeoutMs?"),
    ("runtime:\n  timeout: 1", "FILE:2: runtime.timeout is no setting: did you mean timeoutMs?"),
    ("transport:\n  xyz: 1", "known here are prefix, maxPending, resultExpires"),
    ("workers: {memory: {globalLimit: 2}}", "workers.memory.globalLimit is no setting"),
    ("workers: {infer: {generation: {topq: 1}}}", "did you mean topP?"),
    (
        "shared: {providers: {a: {option: {}}}}",
        "shared.providers.a.option is no setting: did you mean options?",
    ),
    ("__proto__: {}", "FILE:1: __proto__ is no setting"),
    ("constructor: {}", "FILE:1: constructor is no setting"),
    ("runtime: {prototype: 1}", "FILE:1: runtime.prototype is no setting"),
    ("runtime: {model_config: 1}", "FILE:1: runtime.model_config is no setting"),
    # sections and their absence
    ("runtime:", "FILE:1: runtime is empty"),
    ("workers:\n  memory:\n", "FILE:2: workers.memory is empty"),
    ("workers: {memory: {queryLimit: null}}", "workers.memory.queryLimit is empty"),
    ("workers: {memory: {queues: ~}}", "workers.memory.queues is empty"),
    ("schedules:", "FILE:1: schedules is empty"),
    ("runtime: 3", "runtime must be a mapping of settings, not 3"),
    ("workers: {memory: []}", "workers.memory must be a mapping of settings, not a list"),
    # numbers
    ("runtime: {timeoutMs: true}", "must be an integer of milliseconds in 1..2147483647, not true"),
    ("runtime: {timeoutMs: '30'}", "in 1..2147483647, not '30'"),
    ("runtime: {timeoutMs: 30s}", "in 1..2147483647, not '30s'"),
    ("runtime: {timeoutMs: 1.5}", "in 1..2147483647, not 1.5"),
    ("runtime: {timeoutMs: 0}", "in 1..2147483647, not 0"),
    ("runtime: {timeoutMs: 2147483648}", "in 1..2147483647, not 2147483648"),
    ("runtime: {timeoutMs: .nan}", "in 1..2147483647, not nan"),
    ("runtime: {timeoutMs: .inf}", "in 1..2147483647, not inf"),
    ("runtime: {timeoutMs: [1]}", "in 1..2147483647, not a list"),
    ("runtime: {maxTurns: -1}", "must be an integer of at least 1, not -1"),
    ("runtime: {maxTurns: 9007199254740992}", "must be an integer of at least 1"),
    ("runtime: {maxTurns: " + "9" * 5000 + "}", "FILE:1: the number has too many digits"),
    ("runtime: {react: {maxActionCalls: -1}}", "must be an integer of at least 0, not -1"),
    ("workers: {memory: {queryLimit: 10001}}", "must be an integer in 1..10000, not 10001"),
    ("workers: {memory: {concurrency: 0}}", "must be an integer in 1..1024, not 0"),
    ("workers: {infer: {generation: {temperature: 2.1}}}", "must be a number in 0..2, not 2.1"),
    ("workers: {infer: {generation: {topP: false}}}", "must be a number in 0..1, not false"),
    ("transport: {resultExpires: .5}", "must be a number of seconds in 1..31536000, not 0.5"),
    ("transport: {maxBodyBytes: 1}", "must be an integer of bytes in 1024..536870912, not 1"),
    # strings, choices, lists
    (
        "workers: {memory: {pool: fibers}}",
        "must be one of `threads`, `prefork`, `solo`, `gevent`, not 'fibers'",
    ),
    ("workers: {infer: {generation: {stop: END}}}", "must be a list of non-empty strings, not 'END'"),
    ("workers: {infer: {generation: {stop: ['']}}}", "workers.infer.generation.stop[0]"),
    ("workers: {context: {cache: {keyPrefix: ''}}}", "must be a non-empty string, not ''"),
    ("transport: {prefix: a b}", "transport.prefix must be a queue name"),
    ("transport: {prefix: 7}", "transport.prefix must be a non-empty string, not 7"),
    ("schedules: {}", "schedules must be a list, not a mapping"),
    # queues and providers
    (
        "workers:\n  memory:\n    queues:\n      MEMORY.SERCH: q",
        "FILE:4: workers.memory.queues.MEMORY.SERCH is no",
    ),
    ("workers: {memory: {queues: {INFER.X: q}}}", "is no node of memory"),
    ("workers: {memory: {queues: {memory: q}}}", "must be a node's name"),
    ("workers: {memory: {queues: {MEMORY.GET: 'a,b'}}}", "must be a queue name"),
    ("workers: {memory: {queues: {MEMORY.GET: ''}}}", "workers.memory.queues.MEMORY.GET"),
    ("workers: {memory: {queues: [MEMORY.GET]}}", "must be a mapping of strings to strings, not a list"),
    ("shared: {providers: {Open-AI: {}}}", "shared.providers.Open-AI is no provider's name"),
    ("shared: {providers: {a: {options: [1]}}}", "must be a JSON object, not a list"),
    ("shared: {providers: {a: {options: {x: .nan}}}}", "shared.providers.a.options is not JSON"),
    # schedules
    ("schedules:\n  - MEMORY.GET", "FILE:2: schedules[0] must be a mapping of settings"),
    ("schedules:\n  - {task: X.Y, every: 1}", "FILE:2: schedules[0].name is missing"),
    ("schedules: [{name: a, task: X.Y}]", "schedules[0] needs either 'every' or 'cron'"),
    ("schedules: [{name: a, task: X.Y, every: 1, cron: '* * * * *'}]", "and not both"),
    (
        "schedules: [{name: a, task: X.Y, every: 0}]",
        "must be a number of seconds in 0.01..31536000, not 0",
    ),
    (
        "schedules: [{name: a, task: X.Y, every: 1, timezone: UTC}]",
        "schedules[0].timezone goes with 'cron' only",
    ),
    ("schedules: [{name: a, task: X, every: 1}]", "schedules[0].task must be a node's name"),
    ("schedules: [{name: a, task: MEMORY.GOT, every: 1}]", "schedules[0].task is no node of the catalogue"),
    ("schedules: [{name: a, task: MEMORY.GET, every: 1}]", "is not what MEMORY.GET takes: input: needs"),
    ("schedules: [{name: a, task: X.Y, cron: '* * * *'}]", "must have five fields"),
    ("schedules: [{name: a, task: X.Y, cron: '60 * * * *'}]", "schedules[0].cron is no cron expression"),
    ("schedules: [{name: a, task: X.Y, cron: '* * * * 7'}]", "schedules[0].cron is no cron expression"),
    ("schedules: [{name: a, task: X.Y, cron: '*/0 * * * *'}]", "schedules[0].cron is no cron expression"),
    ("schedules: [{name: a, task: X.Y, cron: '0 0 31 2 *'}]", "schedules[0].cron is no cron expression"),
    ("schedules: [{name: a, task: X.Y, cron: '* * * * *', timezone: Mars}]", "must be an IANA time zone"),
    ("schedules: [{name: a, task: X.Y, cron: '* * * * *', timezone: ../x}]", "must be an IANA time zone"),
    ("schedules: [{name: a, task: X.Y, cron: '* * * * *', timezone: America}]", "must be an IANA time zone"),
    (
        "schedules: [{name: a, task: X.Y, every: 1, jitter: 90000}]",
        "schedules[0].jitter must be a number of seconds in 0..86400, not 90000",
    ),
    ("schedules: [{name: a, task: X.Y, every: 1, jitter: -1}]", "in 0..86400, not -1"),
    (
        "schedules: [{name: a, task: X.Y, every: 1, misfire: run}]",
        "schedules[0].misfire must be one of `skip`, `run-once`, not 'run'",
    ),
    ("schedules: [{name: a, task: reindex, every: 1}]", "schedules[0].target is missing"),
    (
        "schedules:\n  - {name: a, task: reindex, every: 1, target: kb, input: {}}",
        "FILE:2: schedules[0].input is not for this task: give 'target' and 'mode' instead",
    ),
    (
        "schedules: [{name: a, task: X.Y, every: 1, target: kb}]",
        "schedules[0].target is not for this task: it goes with 'task: reindex'",
    ),
    ("schedules: [{name: a, task: X.Y, every: 1, mode: full}]", "schedules[0].mode is not for this task"),
    (
        "schedules: [{name: a, task: X.Y, every: 1}]\ntransport: {idempotencyExpires: 60}",
        "FILE:2: transport.idempotencyExpires must be at least 3600 where there are schedules",
    ),
    (
        "schedules:\n  - {name: a, task: X.Y, every: 1}\n  - {name: a, task: X.Y, every: 2}",
        "FILE:3: schedules[1].name is taken",
    ),
]


class TestRefusals:
    @pytest.mark.parametrize(("text", "message"), REFUSED, ids=[message[:60] for _, message in REFUSED])
    def test_a_file_that_is_wrong_is_refused_with_the_reason(
        self, load: Loader, text: str, message: str
    ) -> None:
        assert message in load.refusal(text)

    def test_a_missing_file_is_named_with_the_remedy(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"absent\.yaml: there is no such file: create it"):
            load_config(tmp_path / "absent.yaml", {})

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot be read"):
            load_config(tmp_path, {})

    def test_a_file_that_is_not_utf_8_is_refused(self, load: Loader) -> None:
        load.path.write_bytes(b"runtime: \xff")

        with pytest.raises(ConfigError, match="is not UTF-8 at byte 9"):
            load_config(load.path, {})

    def test_all_mistakes_are_reported_in_the_order_of_the_file(self, load: Loader) -> None:
        refusal = load.refusal("transport:\n  prefix: 1\nruntime:\n  maxTurns: x\n  maxTurn: 2\n")

        assert [line.split()[0] for line in refusal.splitlines()] == ["FILE:2:", "FILE:4:", "FILE:5:"]


class TestSchedules:
    def test_both_rhythms_are_read(self, load: Loader) -> None:
        often, nightly = load(
            "schedules:\n"
            "  - {name: often, task: MEMORY.QUERY, input: {limit: 3}, every: 0.5}\n"
            "  - {name: nightly, task: REPORT.DAILY, cron: '0  3 * * mon-fri', timezone: Asia/Tokyo}\n"
        ).schedules

        assert (often.every, often.cron, often.input, often.timezone) == (0.5, None, {"limit": 3}, "UTC")
        assert (nightly.every, nightly.cron) == (None, "0 3 * * mon-fri")
        assert (nightly.input, nightly.timezone) == ({}, "Asia/Tokyo")
        assert (str(often.rule), str(nightly.rule)) == ("every 0.5 s", "0 3 * * mon-fri Asia/Tokyo")
        assert (often.jitter, often.misfire) == (0.0, "skip")

    def test_reindex_stands_for_a_node_with_a_target(self, load: Loader) -> None:
        (schedule,) = load(
            "schedules: [{name: kb, task: reindex, target: kb, mode: full, every: 60, jitter: 5,"
            " misfire: run-once}]"
        ).schedules

        assert (schedule.task, schedule.target, schedule.mode) == ("reindex", "kb", "full")
        assert (schedule.jitter, schedule.misfire) == (5.0, "run-once")

    def test_a_short_memory_of_keys_is_fine_without_schedules(self, load: Loader) -> None:
        assert load("transport: {idempotencyExpires: 60}").transport.idempotency_expires == 60


class TestEnvironment:
    def test_addresses_are_taken_from_it(self) -> None:
        config = load_config(
            None,
            {
                "DITTO_BROKER_URL": "amqp://u:p@rabbit//",
                "DITTO_RESULT_URL": "redis://cache:6379/1",
                "DITTO_WORKER_MEMORY_STORE_URL": "sqlite:///memory.db",
                "DITTO_RUNTIME_ENV": "production",
                "DITTO_RUNTIME_WORKSPACE": "/srv/ditto",
            },
        )

        assert (config.broker_url, config.result_url) == ("amqp://u:p@rabbit//", "redis://cache:6379/1")
        assert config.memory_store_url == "sqlite:///memory.db"
        assert (config.environment, config.workspace) == ("production", Path("/srv/ditto"))

    def test_that_of_the_process_is_read_when_none_is_given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DITTO_BROKER_URL", "redis://here/0")

        assert load_config(None).broker_url == "redis://here/0"
        assert load_config(None, {}).broker_url is None

    @pytest.mark.parametrize(
        "url",
        [
            "redis://localhost",
            "redis://:p%40ss@h:6379/0",
            "rediss://h/1?ssl_cert_reqs=required",
            "redis+socket:///run/redis.sock?virtual_host=2",
            "unix:///run/redis.sock",
            "redis://[::1]:6379/0",
            "sentinel://a:26379;sentinel://b:26379/0?master=m",
        ],
    )
    def test_a_redis_broker_keeps_the_results_too(self, url: str) -> None:
        config = load_config(None, {"DITTO_BROKER_URL": url})

        assert config.broker_url == config.result_url == url

    @pytest.mark.parametrize(
        "url",
        ["amqp://h", "amqps://u:p@h:5671/v", "amqp://a;amqp://b"],
    )
    def test_another_broker_does_not(self, url: str) -> None:
        config = load_config(None, {"DITTO_BROKER_URL": url})

        assert (config.broker_url, config.result_url) == (url, None)

    def test_origins_that_may_be_reached_are_a_list_in_one_spelling(self) -> None:
        listed = " https://API.example.com:443/ ,http://[::0001]:8080,, * "

        config = load_config(None, {"DITTO_SHARED_SANDBOX_ALLOW_NETWORK": listed})

        assert config.allow_network == ("https://api.example.com", "http://[::1]:8080", "*")

    @pytest.mark.parametrize(
        "listed", [SECRET, f"https://u:{SECRET}@h", f"https://h/{SECRET}", f"*,{SECRET}"]
    )
    def test_what_is_no_origin_is_refused_and_not_shown(self, listed: str) -> None:
        refusal = environment_refusal(DITTO_SHARED_SANDBOX_ALLOW_NETWORK=listed)

        assert refusal.startswith("DITTO_SHARED_SANDBOX_ALLOW_NETWORK must be a comma list of origins")
        assert SECRET not in refusal

    def test_empty_variables_count_as_not_set(self) -> None:
        assert load_config(None, dict.fromkeys(ENVIRONMENT, "")) == load_config(None, {})

    def test_a_relative_workspace_becomes_absolute(self) -> None:
        assert load_config(None, {"DITTO_RUNTIME_WORKSPACE": "data"}).workspace == Path.cwd() / "data"

    def test_foreign_variables_are_left_alone(self) -> None:
        assert load_config(None, {"DITTO_SOMETHING": "x", "PATH": "/bin"}) == load_config(None, {})

    @pytest.mark.parametrize(
        "url",
        [
            f"{SECRET}",
            f"http://u:{SECRET}@h",
            f"redis://u:{SECRET}@",
            f"redis://u:{SECRET}/x@h:6379/0",
            f"redis://u:#{SECRET}@h",
            f"redis://h:{SECRET}/0",
            f"redis://h:99999/0?password={SECRET}",
            f"redis://h/{SECRET}",
            f"redis://h/0\n{SECRET}",
            f"redis://h/0 {SECRET}",
            f"redis://[{SECRET}/0",
            f"unix://?password={SECRET}",
            f"amqp://a;http://u:{SECRET}@b",
            f"sentinel://a:1;b:{SECRET}",
            f"REDIS//{SECRET}",
        ],
    )
    @pytest.mark.parametrize("name", ["DITTO_BROKER_URL", "DITTO_RESULT_URL"])
    def test_an_address_that_is_wrong_is_refused_and_not_shown(self, name: str, url: str) -> None:
        refusal = environment_refusal(**{name: url})

        assert refusal.startswith(name)
        assert SECRET not in refusal

    @pytest.mark.parametrize("url", [SECRET, f"://{SECRET}", f"sqlite:{SECRET}", f"sqlite:///a\n{SECRET}"])
    def test_a_store_that_is_no_url_is_refused_and_not_shown(self, url: str) -> None:
        refusal = environment_refusal(DITTO_WORKER_MEMORY_STORE_URL=url)

        assert refusal.startswith("DITTO_WORKER_MEMORY_STORE_URL must be a URL")
        assert SECRET not in refusal

    @given(st.text(st.characters(codec="utf-8", exclude_characters="\0")))
    def test_no_value_ever_shows_in_a_message(self, noise: str) -> None:
        for name in ENVIRONMENT:
            try:
                load_config(None, {name: f"{noise}{SECRET}{noise}"})
            except ConfigError as error:
                assert name in str(error)  # noqa: PT017  # not every variable is checked
                assert SECRET not in str(error)  # noqa: PT017

    def test_an_unknown_environment_is_refused(self) -> None:
        refusal = environment_refusal(DITTO_RUNTIME_ENV=SECRET)

        assert refusal == "DITTO_RUNTIME_ENV must be one of development, test, production"

    @pytest.mark.parametrize(
        ("name", "remedy"),
        [
            ("DITTO_ENV", "DITTO_RUNTIME_ENV"),
            ("DITTO_MODEL", "DITTO_WORKER_INFER_MODEL"),
            ("DITTO_PROVIDERS", "DITTO_SHARED_PROVIDERS"),
            ("DITTO_PROVIDER_GLM_API_KEY", "DITTO_SHARED_PROVIDER_"),
            ("DITTO_PROVIDER_GLM_OPTIONS", "shared.providers.<name>.options"),
            ("DITTO_SHARED_PROVIDER_GLM_OPTIONS", "shared.providers.<name>.options"),
            ("DITTO_ALLOW_NETWORK", "DITTO_SHARED_SANDBOX_ALLOW_"),
            ("DITTO_WORKER_TOKEN", "DITTO_TRANSPORT_HTTP_WORKER_TOKEN"),
            ("DITTO_TIMEOUT_MS", "runtime.timeoutMs"),
        ],
    )
    def test_names_of_former_times_are_refused_with_the_new_place(self, name: str, remedy: str) -> None:
        refusal = environment_refusal(**{name: SECRET})

        assert refusal.startswith(f"{name} is not read any more")
        assert remedy in refusal
        assert SECRET not in refusal

    def test_credentials_stay_out_of_the_repr(self) -> None:
        url = f"redis://:{SECRET}@h/0"
        names = ("DITTO_BROKER_URL", "DITTO_RESULT_URL", "DITTO_WORKER_MEMORY_STORE_URL")

        assert SECRET not in repr(load_config(None, dict.fromkeys(names, url)))


class TestFindConfig:
    def test_the_environment_names_the_file(self) -> None:
        assert find_config({"DITTO_CONFIG": "/etc/ditto.yaml"}) == Path("/etc/ditto.yaml")

    def test_else_it_is_ditto_yaml_if_that_is_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert find_config({}) is None

        (tmp_path / "ditto.yaml").touch()
        assert find_config({}) == Path("ditto.yaml")


def uncommented(text: str) -> str:
    """Switch the commented settings on: those whose name follows the `#` directly."""
    return re.sub(r"^( *)#(?=[^ \n])", r"\1", text, flags=re.MULTILINE)


def holds(data: Any, path: tuple[str, ...]) -> bool:
    if not path:
        return True
    step, *rest = path
    if step == EACH_ITEM:
        return any(holds(item, tuple(rest)) for item in data)
    if step == ANY_KEY:
        return any(holds(value, tuple(rest)) for value in data.values())
    return isinstance(data, dict) and step in data and holds(data[step], tuple(rest))


class TestDocumentation:
    text = (ROOT / "ditto.yaml").read_text()
    page = (ROOT / "docs" / "configuration.md").read_text()

    @pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
    def test_every_setting_stands_in_ditto_yaml(self, setting: Setting) -> None:
        assert holds(yaml.safe_load(uncommented(self.text)), setting.path)

    @pytest.mark.parametrize("setting", [s for s in SETTINGS if s.default], ids=lambda setting: setting.name)
    def test_a_setting_that_is_switched_on_stands_there_with_its_default(self, setting: Setting) -> None:
        data = yaml.safe_load(self.text)
        if holds(data, setting.path):
            for step in setting.path:
                data = data[step]
            assert str(data) == setting.default
        else:
            assert f"#{setting.path[-1]}:" in self.text

    def test_its_commented_settings_are_good_ones(self, load: Loader) -> None:
        config = load(uncommented(self.text))

        assert [schedule.name for schedule in config.schedules] == [
            "list-notes",
            "list-often",
            "reindex-notes",
        ]

    def test_every_setting_in_ditto_yaml_has_a_comment(self) -> None:
        lines = [line for line in self.text.splitlines() if re.match(r" *#?[\w-]+: +[^ #]", line)]

        bare = [line for line in lines if " # " not in line]
        assert len(lines) > 70
        assert bare == ["    #task: MEMORY.QUERY"]  # of the second example of a schedule

    def test_the_page_has_the_table_of_all_settings(self) -> None:
        assert markdown_table() in self.page, "paste what `python -m ditto_tasks.config` prints"

    @pytest.mark.parametrize("name", ENVIRONMENT)
    def test_every_variable_stands_on_the_page_and_in_the_example(self, name: str) -> None:
        assert f"| `{name}` |" in self.page
        assert re.search(rf"^#?{name}=", (ROOT / ".env.example").read_text(), re.MULTILINE)

    def test_the_example_has_no_other_variable(self, tmp_path: Path) -> None:
        lines = uncommented((ROOT / ".env.example").read_text()).splitlines()
        variables = dict(line.split("=", 1) for line in lines if line.startswith("DITTO_"))

        assert set(variables) == set(ENVIRONMENT)
        assert load_config(None, variables).environment == "production"
