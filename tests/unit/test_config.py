"""The fleet file: what is accepted, and that whatever is not is said at once, with key path and line."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.config import (
    Admission,
    ConfigError,
    Dialect,
    EngineUrl,
    Problem,
    Role,
    Sizing,
    describe,
    load,
    parse,
)

EVERY_KEY = """\
model: my-model
slo: {ttft_s: 2.0, tpot_s: 0.05}
engines:
  - {id: p0, url: "http://10.0.0.1:8000", role: prefill}
  - {id: d0, url: "https://Engine-2.example/base/", role: decode, decode_concurrency: 128,
     kv_capacity_tokens: 400_000}
  - {id: b0, url: "http://[::1]:9", role: both, dialect: openai, prefill_concurrency: 3}
serving:
  host: "::"
  port: 0
  admission: open
  admission_margin: -0.5
  retention_limit: 10
  queue_capacity: 0
  queue_timeout_s: 1
  prefill_concurrency: 4
  decode_concurrency: 64
  request_timeout_s: 6e2
  prefill_timeout_s: 12.5
  first_token_timeout_s: 3
  stream_idle_timeout_s: 4
  max_request_bytes: 1_000_000
  max_response_bytes: 2000000
  max_attempts: 3
  continue_streams: true
  handoff_timeout_s: 20
  retry_share: 0.5
  retry_reserve: 0
  retry_backoff_s: 0.1
  graceful_timeout_s: 5
  head_timeout_s: 6
  body_timeout_s: 7
  idle_timeout_s: 8
  client_connection_limit: 9
  keepalive_s: 15
  journal_path: journal.jsonl
  control_token_env: TOKEN
engine:
  dialect: vllm
  sizing: exact
  api_key_env: KEY
  ca_file: ca.pem
  connect_timeout_s: 1
  idle_connection_s: 2
profiles:
  path: profiles.json
recovery:
  eject_after: 2
  liveness_interval_s: 0.5
  liveness_misses: 4
  probe_timeout_s: 3
  readmit_ramp_s: 5
  monitor_failure_limit: 6
  state_path: drains.json
"""
SHORT = """\
model: m
slo: {ttft_s: 2, tpot_s: 0.05}
engines:
  - {id: e, url: "http://h:1", role: both}
"""
ENVIRON = {"TOKEN": "secret", "KEY": "sk-1", "EMPTY": "", "SPLIT": "a\nb"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CA file in it."""
    folder = tmp_path_factory.mktemp("fleet")
    der = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not der:
        pytest.skip("the system has no CA certificates to copy one from")
    (folder / "ca.pem").write_text(ssl.DER_cert_to_PEM_cert(der[0]))
    return folder


def problems_of(text: str | bytes) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "fleet.yaml", ENVIRON)
    return caught.value.problems


def only_problem(text: str | bytes) -> Problem:
    problems = problems_of(text)
    assert len(problems) == 1, problems
    return problems[0]


def with_line(key: str, value: str) -> str:
    """SHORT with one more key; the value is on line 6."""
    section, _, name = key.rpartition(".")
    return f"{SHORT}{section}:\n  {name}: {value}\n"


def test_every_key_is_read(base: Path) -> None:
    config = parse(EVERY_KEY, "fleet.yaml", ENVIRON, base)
    assert (config.model, config.slo.ttft_s, config.slo.tpot_s) == ("my-model", 2.0, 0.05)
    p0, d0, b0 = config.engines
    assert (p0.url, p0.role) == (EngineUrl("http", "10.0.0.1", 8000), Role.PREFILL)
    assert (p0.prefill_concurrency, p0.decode_concurrency) == (4, 64)  # from serving
    assert (d0.url, d0.decode_concurrency) == (EngineUrl("https", "engine-2.example", 443, "/base"), 128)
    assert (p0.kv_capacity_tokens, d0.kv_capacity_tokens) == (None, 400_000)
    assert (b0.url, b0.dialect, b0.prefill_concurrency) == (EngineUrl("http", "::1", 9), Dialect.OPENAI, 3)
    serving, engine = config.serving, config.engine
    assert (serving.host, serving.port, serving.admission) == ("::", 0, Admission.OPEN)
    assert (serving.request_timeout_s, serving.max_request_bytes) == (600.0, 1_000_000)
    assert serving.journal_path == str(base / "journal.jsonl")
    assert (engine.sizing, engine.ca_file) == (Sizing.EXACT, str(base / "ca.pem"))
    assert (serving.control_token_env, engine.api_key_env) == ("TOKEN", "KEY")
    assert config.profiles.path == str(base / "profiles.json")
    assert config.recovery.state_path == str(base / "drains.json")
    written = {row.path.rpartition(".")[2] for row in describe()}
    assert all(f"{name}:" in EVERY_KEY for name in written), "this test must name every key"


def test_defaults_are_those_of_the_table() -> None:
    config = parse(SHORT, "fleet.yaml")
    for row in describe():
        section, _, name = row.path.rpartition(".")
        if row.default != "required" and section in ("serving", "engine", "profiles", "recovery"):
            value = getattr(getattr(config, section), name)
            assert yaml.safe_load("~" if row.default == "none" else row.default) == value
    engine = config.engines[0]
    assert (engine.dialect, engine.prefill_concurrency, engine.decode_concurrency) == (Dialect.VLLM, 8, 256)


def test_all_problems_are_reported_at_once_in_the_order_of_lines() -> None:
    text = """\
modle: m
slo: {ttft_s: true, tpot_s: 0}
engines:
  - {id: e, url: "ftp://h", role: both}
  - {id: e, url: "http://h", role: bth}
serving:
  port: "8000"
  max_attempts: 2.0
"""
    problems = problems_of(text)
    assert [(problem.line, problem.path) for problem in problems] == [
        (1, "modle"),
        (1, "model"),
        (2, "slo.ttft_s"),
        (2, "slo.tpot_s"),
        (4, "engines[0].url"),
        (5, "engines[1].role"),
        (5, "engines[1].id"),
        (7, "serving.port"),
        (8, "serving.max_attempts"),
    ]
    message = str(ConfigError("fleet.yaml", list(problems)))
    assert len(message.splitlines()) == len(problems)
    assert 'fleet.yaml:5: engines[1].role: saw "bth"; allowed: prefill, decode or both' in message


def test_an_unknown_key_names_the_one_it_was_meant_to_be() -> None:
    problem = only_problem(with_line("serving.queue_timeot_s", "1"))
    assert (problem.path, problem.line) == ("serving.queue_timeot_s", 6)
    # Before the list of all keys, behind which it would not be seen.
    assert str(problem).startswith(
        "serving.queue_timeot_s: saw an unknown key (did you mean queue_timeout_s?); allowed: host, port, "
    )
    assert "did you mean serving.port?" in only_problem(f"port: 1\n{SHORT}").seen
    assert "did you mean" not in str(only_problem(f"zzzzzz: 1\n{SHORT}"))


def test_a_key_with_its_value_right_behind_the_colon_is_told_of_the_space() -> None:
    problems = problems_of(SHORT + "serving: {port:8000}\n")
    assert "did you mean port: 8000, with a space?" in problems[0].seen


@pytest.mark.parametrize("path", [row.path for row in describe() if row.default == "required"])
def test_a_missing_required_key_is_named(path: str) -> None:
    section, _, name = path.rpartition(".")
    text = re.sub(rf"\b{name}: [^,}}\n]+,? ?", "", SHORT, count=1)
    problem = only_problem(text)
    assert (problem.path, problem.seen) == (path.replace("[]", "[0]"), "nothing")
    assert problem.line == {"": 1, "slo": 2, "engines[]": 4}[section] or not section


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("serving.host", ["5", "a b", "10.0.0.256", '"[::1]"', "-x", '"fe80::1%eth0"']),
        ("serving.port", ["-1", "65536", "80.0", "true", '"80"', "0x50", "010", "1:30", "[80]", "9" * 5000]),
        ("serving.admission", ["closed", "Open", "true", "5"]),
        ("serving.admission_margin", ["-1", "10.5", ".nan", ".inf", "-.inf", "no"]),
        ("serving.queue_timeout_s", ["0", "-1", "1e999", "true", "10s", "{}", "31536001", "2026-01-01"]),
        ("serving.retention_limit", ["0", "1.5", "1e3", "!!int x", "!mine 5"]),
        ("serving.max_request_bytes", ["0", "4MiB", "!!binary aGk="]),
        ("serving.max_attempts", ["0", "17"]),
        ("serving.continue_streams", ["1", '"true"', "maybe"]),
        ("serving.journal_path", ["/nowhere/at/all/j.jsonl", "/", '"a\\0b"', "5", "''", "x" * 300]),
        ("serving.control_token_env", ["UNSET", "EMPTY", "SPLIT", "sk-123", "5"]),
        ("engine.api_key_env", ["UNSET"]),
        ("engine.ca_file", ["/nowhere.pem", "/", "/dev/null"]),
        ("engine.sizing", ["guess"]),
        ("engine.dialect", ["sglang"]),
        ("profiles.path", ["5", "[]"]),
        ("recovery.eject_after", ["0"]),
        ("recovery.state_path", ["/", "/nowhere/at/all/s.json"]),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused_with_its_line(key: str, values: list[str]) -> None:
    for value in values:
        problem = only_problem(with_line(key, value))
        assert (problem.path, problem.line) == (key, 6), value
        assert problem.seen
        assert len(problem.seen) < 400
        assert problem.allowed


@pytest.mark.parametrize(
    "url",
    [
        "h:80", "ftp://h", "http://", "http://:80", "http://h:0", "http://h:65536", "http://h:", "http://h:8a",
        "http://h?x=1", "http://h/#f", "http://[::1", "http://[v1]", "http://1.2.3", "http://h/ x", "http://h/%zz",
        "http://h/\\x", "http://höst", "http://-h", "http://h\t", " http://h", "//h", "http://h/v1", "http://h/v1/",
    ],
)  # fmt: skip
def test_a_url_that_is_no_engine_address_is_refused(url: str) -> None:
    problem = only_problem(SHORT.replace('"http://h:1"', f"'{url}'"))
    assert (problem.path, problem.line) == ("engines[0].url", 4)


def test_a_secret_is_never_repeated() -> None:
    problem = only_problem(SHORT.replace("http://h:1", "http://user:hunter2@h:1"))
    assert "hunter2" not in str(problem)
    assert "sk-123" not in str(only_problem(with_line("serving.control_token_env", "sk-123")))


@pytest.mark.parametrize(
    ("engines", "path", "line"),
    [
        (["p prefill"], "engines", 3),
        (["d decode"], "engines", 3),
        (["p prefill", "b both"], "engines", 3),
        (["p prefill", "p decode"], "engines[1].id", 5),
    ],
)
def test_engines_that_contradict_each_other_are_refused(engines: list[str], path: str, line: int) -> None:
    lines = [
        f'  - {{id: {engine.split()[0]}, url: "http://h:{index + 1}", role: {engine.split()[1]}}}\n'
        for index, engine in enumerate(engines)
    ]
    problem = only_problem(SHORT[: SHORT.index("  - ")] + "".join(lines))
    assert (problem.path, problem.line) == (path, line)


def test_two_engines_at_one_address_are_refused_however_it_is_written() -> None:
    text = SHORT.replace("http://h:1", "http://H:80/") + '  - {id: f, url: "http://h", role: both}\n'
    problem = only_problem(text)
    assert (problem.path, problem.line) == ("engines[1].url", 5)
    assert "engines[0].url (line 4)" in problem.allowed


@pytest.mark.parametrize("how", ["its own", "inherited"])
def test_the_openai_dialect_has_role_both_only(how: str) -> None:
    roles = 'role: prefill}\n  - {id: f, url: "http://g", role: decode, dialect: vllm}'
    text = SHORT.replace("role: both}", roles)
    text = text.replace("id: e", "id: e, dialect: openai") if how == "its own" else text
    text += "engine: {dialect: openai}\n" if how == "inherited" else ""
    problem = only_problem(text)
    assert (problem.path, problem.line) == ("engines[0].role", 4)


@pytest.mark.parametrize("engines", ["[]", "", "null", "{}", "5", "p0"])
def test_a_fleet_without_engines_is_refused(engines: str) -> None:
    problem = only_problem(SHORT[: SHORT.index("engines")] + f"engines: {engines}\n")
    assert (problem.path, problem.line) == ("engines", 3)


@pytest.mark.parametrize("section", ["serving", "engine", "profiles", "recovery"])
def test_an_optional_section_may_be_left_empty_but_nothing_else_than_a_mapping(section: str) -> None:
    assert parse(f"{SHORT}{section}:\n", "fleet.yaml") == parse(SHORT, "fleet.yaml")
    for value in ("[]", "5", '""', "- a"):
        problem = only_problem(f"{SHORT}{section}:\n  {value}\n")
        assert (problem.path, problem.line) == (section, 6)


def test_a_duplicate_key_is_refused_with_both_lines() -> None:
    problem = only_problem(f"{SHORT}serving:\n  port: 1\n  port: 2\n")
    assert (problem.path, problem.line) == ("serving.port", 7)
    assert "line 6" in problem.allowed


def test_keys_that_are_no_text_are_refused() -> None:
    assert only_problem(f"{SHORT}serving: {{[a]: 1}}\n").path == "serving"
    assert only_problem(f"{SHORT}serving: {{8000: 1}}\n").path == "serving.8000"


def test_engines_can_share_settings_by_merge_key() -> None:
    text = (
        SHORT.replace("- {id", "- &e {id") + '  - {<<: *e, id: f, url: "http://h:2", decode_concurrency: 7}\n'
    )
    first, second = parse(text, "fleet.yaml").engines
    assert (second.id, second.role, second.decode_concurrency) == ("f", first.role, 7)
    assert problems_of(text.replace("*e", "5"))[0].path == "engines[1].<<"


def test_aliases_can_neither_multiply_nor_recurse() -> None:
    bomb = "x0: &x0 {}\n" + "".join(
        f"x{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 9)}]}}\n" for n in range(1, 31)
    )
    assert any("engines[0].id" in problem.path for problem in problems_of(f"{bomb}engines: [*x30]\n"))
    assert problems_of("&a {<<: *a, engines: [*a], slo: *a}\n")
    chain = "x0: &x0 {}\n" + "".join(f"x{n}: &x{n} {{<<: *x{n - 1}}}\n" for n in range(1, 900))
    assert any("32 deep" in problem.allowed for problem in problems_of(f"{chain}slo: *x899\n"))
    wide = "engines: [&e {" + ", ".join(f"k{n}: 1" for n in range(900)) + "}" + ", *e" * 5000 + "]\n"
    assert len(problems_of(wide)) <= 1001


@pytest.mark.parametrize(
    ("text", "line", "seen"),
    [
        (b"", 0, "an empty file"),
        (b"# nothing\n", 0, "an empty file"),
        (b"- a\n", 1, "a list of 1"),
        (b"model", 1, '"model"'),
        (b"model: m\nslo: \xff\n", 2, "the byte 0xff"),
        (b"model: m\nslo: \x07\n", 2, "the character '\\x07'"),
        (b"model: m\n\tslo: 1\n", 2, "a tab in the indentation"),
        (b"model: m\nslo: [1\n", 3, "broken YAML"),
        (b"model: m\nslo: *nowhere\n", 2, "broken YAML"),
        (b"model: m\n---\nmodel: n\n", 2, "broken YAML"),
        (b"model: m\nslo: !!python/object:os.system {}\n", 2, "tagged"),
        (b'model: "\\UFFFFFFFF"\n', 0, "broken YAML"),
        (b"%YAML " + b"9" * 5000 + b".1\n--- a\n", 0, "broken YAML"),
        (b"slo: " + b"[" * 5000, 1, "levels of nesting"),
        (b"#" * (1 << 20) + b"\n", 0, "a file of 1048577 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_usable_yaml_is_said_with_its_line(text: bytes, line: int, seen: str) -> None:
    assert any(problem.line == line and seen in problem.seen for problem in problems_of(text)), problems_of(
        text
    )


@pytest.mark.parametrize(
    ("text", "line", "seen", "allowed"),
    [
        ("model: m\nslo:\n\tttft_s: 2\n", 3, "a tab in the indentation", "spaces"),
        ("model: m\r\nslo:\r\n  ttft_s: 2\r\n\ttpot_s: 1\r\n", 4, "a tab in the indentation", "spaces"),
        ("model:\tm\n", 1, "a tab between words", "spaces"),
        ("model:m\nslo: {ttft_s: 2}\n", 1, "no space after the colon in 'model:m'", "'model: m'"),
        ("slo:\n  ttft_s:2\n  tpot_s: 1\n", 2, "no space after the colon in 'ttft_s:2'", "'ttft_s: 2'"),
        ("model: m\nslo\nengines: []\n", 2, "no colon in 'slo'", "KEY: VALUE"),
        ("model: my: model\n", 1, "a second colon", "quotes"),
        ('model: "m\nslo: {ttft_s: 2}\n', 1, "a quote that is not closed", "a second one"),
        ("model: 'it's'\n", 1, "text after a closing quote", "one pair of quotes"),
        ('model: "a\\m"\n', 1, "a backslash in double quotes", "single quotes"),
        ("model: @m\n", 1, "begins with '@'", "quotes"),
        ("model: *m\n", 1, "begins with *", "quotes"),
        ("slo: {ttft_s: 2\nengines: []\n", 2, "`{` is on line 1", "`}` at the end"),
        ("slo: {ttft_s: 2 tpot_s: 1}\n", 1, "neither `,` nor `}`", "`,` between entries"),
        ("engines: [{id: a}\nserving: {port: 1}\n", 2, "`[` is on line 1", "`]` at the end"),
        ("slo:\n    ttft_s: 2\n  tpot_s: 1\n", 3, "indented unlike", "indented alike"),
        ("slo:\n  ttft_s: 2\n    tpot_s: 1\n", 3, "indented deeper", "indented alike"),
        ("model: m\n---\nmodel: n\n", 2, "a second document", "one"),
        ("a: 1\n<<<<<<< HEAD\nb: 2\n=======\nb: 3\n>>>>>>> x\n", 2, "a merge conflict", "one version"),
    ],
)  # fmt: skip
def test_the_usual_mistakes_in_yaml_are_named_on_the_line_where_they_are_mended(
    text: str, line: int, seen: str, allowed: str
) -> None:
    problem = only_problem(text)
    assert (problem.line, seen in problem.seen, allowed in problem.allowed) == (line, True, True), problem
    # Advice on tabs where there are none would mislead.
    assert ("tab" in str(problem)) is ("\t" in text)


@given(st.text(alphabet=" \t\n\r\u2028:-{}[],'\"*&!|>%@`#\\ab<=.\ufeff", max_size=60))
def test_whatever_is_wrong_with_yaml_ends_in_problems_on_lines_that_there_are(text: str) -> None:
    for problem in problems_of(text):
        assert 0 <= problem.line <= len(re.split("\r\n|[\r\n\u2028]", text))


def test_a_file_may_start_with_a_byte_order_mark() -> None:
    assert parse(b"\xef\xbb\xbf" + SHORT.encode(), "fleet.yaml").model == "m"


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.yaml", Path("a\0b")):
        with pytest.raises(ConfigError) as caught:
            load(path)
        assert str(path) in str(caught.value)


def test_relative_paths_start_at_the_fleet_files_folder(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(f"{SHORT}serving: {{journal_path: j.jsonl}}\n")
    assert load(file).serving.journal_path == str(tmp_path / "j.jsonl")


def accepted_or_refused(text: str | bytes) -> None:
    try:
        parse(text, "fleet.yaml", ENVIRON)
    except ConfigError as error:
        refusal = error
    else:
        return
    assert refusal.problems
    assert str(refusal).encode()  # printable wherever it is shown
    assert all(problem.seen and problem.allowed and problem.line >= 0 for problem in refusal.problems)


@settings(deadline=None, max_examples=80)
@given(
    st.one_of(
        st.binary(max_size=200), st.text(max_size=200), st.text("[]{}:,-&*<!|>'\"\\%#? \n\tab0.", max_size=80)
    )
)
def test_whatever_the_bytes_only_a_config_error_is_raised(text: str | bytes) -> None:
    accepted_or_refused(text)


_INSERTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["&a ", "*a", "<<: ", "!!int ", "!x ", "\t", "\n", "---", "{", "[", ": ", "\\ud800", '"', "|", "~"]
    ),
)


@settings(deadline=None, max_examples=120)
@given(
    st.lists(st.tuples(st.integers(0, len(EVERY_KEY)), st.integers(0, 12), _INSERTS), min_size=1, max_size=4)
)
def test_whatever_is_changed_in_a_valid_file_only_a_config_error_is_raised(
    changes: list[tuple[int, int, str]],
) -> None:
    text = EVERY_KEY
    for at, drop, insert in changes:
        text = text[:at] + insert + text[at + drop :]
    accepted_or_refused(text)


_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@settings(deadline=None, max_examples=80)
@given(
    st.dictionaries(st.sampled_from(["model", "slo", "engines", "serving", "engine", "profiles"]), _VALUES)
)
def test_whatever_the_values_only_a_config_error_is_raised(tree: dict[str, object]) -> None:
    accepted_or_refused(yaml.safe_dump(tree))
