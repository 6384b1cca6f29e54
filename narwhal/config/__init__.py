"""The fleet file: YAML in, one frozen and typed FleetConfig out, or every problem in it at once.

`model` holds the table of keys: each field of its dataclasses is a key, with its default, what is allowed and
what it is for. `kinds` says what a value may be, `document` keeps YAML's lines, `reader` brings the three
together.
"""

from narwhal.config.kinds import EngineUrl
from narwhal.config.model import (
    Admission,
    Dialect,
    EngineConfig,
    EngineDefaults,
    FleetConfig,
    ProfilesConfig,
    RecoveryConfig,
    Role,
    ServingConfig,
    Sizing,
    Slo,
)
from narwhal.config.problems import ConfigError, Problem
from narwhal.config.reader import load, parse
from narwhal.config.table import KeyRow, describe

__all__ = [
    "Admission",
    "ConfigError",
    "Dialect",
    "EngineConfig",
    "EngineDefaults",
    "EngineUrl",
    "FleetConfig",
    "KeyRow",
    "Problem",
    "ProfilesConfig",
    "RecoveryConfig",
    "Role",
    "ServingConfig",
    "Sizing",
    "Slo",
    "describe",
    "load",
    "parse",
]
