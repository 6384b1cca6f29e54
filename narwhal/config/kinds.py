"""What a key's value may be: one small class per kind, each saying in words what it allows."""

from __future__ import annotations

import ipaddress
import math
import os
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from narwhal.config.document import Scalar

YEAR_S = 365 * 86400


class Unfit(Exception):
    """The value is not allowed. `seen` and `allowed` replace what would be said of it, where given."""

    def __init__(self, *, seen: str | None = None, allowed: str | None = None) -> None:
        self.seen = seen
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a file's meaning rests on beside its text."""

    environ: Mapping[str, str]
    base: Path  # relative paths in the file start here


class Kind(ABC):
    """One kind of value."""

    allowed: str

    @abstractmethod
    def read(self, value: Scalar, around: Surroundings) -> Any:
        """The value as the configuration holds it. Raises Unfit."""


class Number(Kind):
    """A finite number; a whole one will do."""

    def __init__(self, *, above: float, most: float, unit: str = "") -> None:
        self._above = above
        self._most = most
        self.allowed = f"a number{unit} greater than {above:g}, at most {most:.10g}"

    def read(self, value: Scalar, around: Surroundings) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Unfit
        if not (math.isfinite(value) and self._above < value <= self._most):
            raise Unfit
        return float(value)


class Integer(Kind):
    """A whole number. `8.0` is none, and neither is a Boolean."""

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self.allowed = f"a whole number from {least} to {most}"

    def read(self, value: Scalar, around: Surroundings) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self._least <= value <= self._most:
            raise Unfit
        return value


class Boolean(Kind):
    """Yes or no."""

    allowed = "true or false"

    def read(self, value: Scalar, around: Surroundings) -> bool:
        if not isinstance(value, bool):
            raise Unfit
        return value


class Text(Kind):
    """Printable text that a pattern matches whole."""

    def __init__(self, pattern: str, allowed: str) -> None:
        self._pattern = re.compile(pattern)
        self.allowed = allowed

    def read(self, value: Scalar, around: Surroundings) -> str:
        if isinstance(value, str) and self._pattern.fullmatch(value) and value.isprintable():
            return value
        if isinstance(value, bool | int | float):
            raise Unfit(allowed=f"{self.allowed} (YAML takes this for another type: put it in quotes)")
        raise Unfit


class OneOf(Kind):
    """A member of an enumeration, by its value."""

    def __init__(self, members: type[StrEnum]) -> None:
        self._members = members
        *others, last = members
        self.allowed = f"{', '.join(others)} or {last}"

    def read(self, value: Scalar, around: Surroundings) -> StrEnum:
        if isinstance(value, str) and value in list(self._members):
            return self._members(value)
        raise Unfit


_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")


def is_host(text: str) -> bool:
    """Whether this is an IPv4 or IPv6 address (no brackets, no zone) or a DNS name in ASCII."""
    if ":" in text or not text.strip("0123456789."):
        try:
            return "%" not in text and bool(ipaddress.ip_address(text))
        except ValueError:
            return False
    return len(text) <= 253 and bool(_NAME.fullmatch(text))


class Host(Kind):
    """A host to listen on."""

    allowed = 'an IP address or host name, such as 127.0.0.1, "::" or localhost'

    def read(self, value: Scalar, around: Surroundings) -> str:
        if isinstance(value, str) and is_host(value):
            return value
        raise Unfit


@dataclass(frozen=True, slots=True)
class EngineUrl:
    """Where an engine is. `path` is what precedes `/v1/...`: empty, or with a leading slash and no trailing
    one."""

    scheme: str
    host: str  # in lower case; an IPv6 address without brackets
    port: int
    path: str = ""

    @property
    def authority(self) -> str:
        """Host and port as in a URL and a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


_URL = re.compile(
    r"(?P<scheme>https?)://(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<host>[^\[\]:/?#@\s]+))"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>(?:/(?:[\w.~!$&'()*+,;=:@-]|%[0-9a-f]{2})*)*)",
    re.IGNORECASE | re.ASCII,
)
_PORTS = {"http": 80, "https": 443}


class Url(Kind):
    """An engine's base URL."""

    allowed = "http:// or https://, a host, perhaps a port and a base path; no credentials, query or fragment"

    def read(self, value: Scalar, around: Surroundings) -> EngineUrl:
        if not isinstance(value, str):
            raise Unfit
        if "@" in value:  # never repeat a password
            raise Unfit(seen="a URL with credentials", allowed=f"{self.allowed} (see engine.api_key_env)")
        match = _URL.fullmatch(value)
        if match is None:
            raise Unfit
        scheme = match["scheme"].lower()
        host = (match["v6"] or match["host"]).lower()
        port = int(match["port"]) if match["port"] else _PORTS[scheme]
        if not is_host(host) or (match["v6"] is None) != (":" not in host) or not 1 <= port <= 65535:
            raise Unfit
        path = match["path"].rstrip("/")
        if path.endswith("/v1"):
            raise Unfit(allowed="the URL without /v1, which the router adds itself")
        return EngineUrl(scheme, host, port, path)


class EnvironmentVariable(Kind):
    """The name of an environment variable that holds a secret, so that the file holds none. Kept as a
    name."""

    allowed = "the name of an environment variable that is set"
    _name = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

    def read(self, value: Scalar, around: Surroundings) -> str:
        if not isinstance(value, str):
            raise Unfit
        if not self._name.fullmatch(value):  # more likely the secret itself than a name: don't repeat it
            raise Unfit(seen="what can't be the name of a variable")
        secret = around.environ.get(value)
        if not secret:
            state = "not set" if secret is None else "empty"
            raise Unfit(seen=f"{value}, which is {state} in the environment")
        if not (secret.isascii() and secret.isprintable() and " " not in secret):
            raise Unfit(
                seen=f"{value}, whose value can't go into an HTTP header",
                allowed="a variable whose value is printable ASCII without spaces",
            )
        return value


class FilePath(Kind):
    """A file's path: text, made absolute. What has to be there is the subclasses' to say."""

    allowed = "the path of a file"

    def read(self, value: Scalar, around: Surroundings) -> str:
        if not isinstance(value, str) or not value or not value.isprintable():
            raise Unfit
        path = around.base.absolute() / value
        try:
            self.check(path)
        except OSError as error:
            raise Unfit(seen=f'"{value}" ({error.strerror or error})') from None
        return str(path)

    def check(self, path: Path) -> None:
        """Raise Unfit or OSError when the file will not do."""


class NewFile(FilePath):
    """A file that will be appended to: its folder must be there."""

    allowed = "the path of a file in a folder that exists and can be written to"

    def check(self, path: Path) -> None:
        if path.is_dir():
            raise Unfit(seen=f'"{path}", which is a folder')
        if not path.parent.is_dir():
            raise Unfit(seen=f'"{path}", whose folder does not exist')
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise Unfit(seen=f'"{path}", which can\'t be written to')


class CaFile(FilePath):
    """A file of CA certificates."""

    allowed = "the path of a readable file of PEM certificates"

    def check(self, path: Path) -> None:
        if not path.is_file():
            raise Unfit(seen=f'"{path}", which is no file')
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
        except ssl.SSLError:
            raise Unfit(seen=f'"{path}", which holds no certificate') from None


SECONDS = Number(above=0, most=YEAR_S, unit=" of seconds")
SEATS = Integer(1, 1_000_000)
BYTES = Integer(1, 1 << 40)
