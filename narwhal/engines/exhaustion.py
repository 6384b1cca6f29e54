"""Whether it was for want of something of this machine's own that a connection could not be opened.

Such a failure says nothing of the engine that was to be connected to.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from typing import Any

_MEMORY = frozenset({errno.ENOBUFS, errno.ENOMEM})


def lacking(error: OSError, family: int, address: tuple[Any, ...]) -> str | None:
    """What was lacking to connect to `address`, and what to do about it; None if it was something else."""
    if error.errno == errno.EADDRNOTAVAIL and _has_route(family, address):
        return (
            "no local port is left for its address (EADDRNOTAVAIL): widen net.ipv4.ip_local_port_range "
            "with sysctl"
        )
    return lacking_files(error)


def lacking_files(error: OSError) -> str | None:
    """What was lacking to open a socket, and what to do about it; None if it was something else."""
    if isinstance(error, socket.gaierror):
        # A look-up that can't open its files may say anything. So see if they can be opened now.
        try:
            socket.socket().close()
        except OSError as shortage:
            error = shortage
        else:
            return None
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"this process has as many files open as it may, {limit} (EMFILE): raise its limit with "
            "`ulimit -n`, or LimitNOFILE of its systemd unit, and start it again"
        )
    if error.errno == errno.ENFILE:
        return "this machine has as many files open as it may (ENFILE): raise fs.file-max with sysctl"
    if error.errno in _MEMORY:
        return f"this machine has no memory left for sockets ({errno.errorcode[error.errno]})"
    return None


def in_words(error: OSError) -> str:
    """What happened, by its number, since event loops word it as they like. Look-ups have negative ones."""
    code = error.errno or 0
    return os.strerror(code) if code > 0 else error.strerror or str(error)


def _has_route(family: int, address: tuple[Any, ...]) -> bool:
    # An address that has no way there gets the same error as one for which all ports are taken. A datagram
    # socket needs the same way, and has ports of its own.
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
    except OSError:
        return False
    return True
