# SPDX-License-Identifier: Apache-2.0
"""The settings that plug-ins take from the environment: docs/plugins.md."""
import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Callable

DEAD_S = 60.0
SIOCGIFADDR = 0x8915


def _setting(name: str, otherwise: str) -> str:
    return os.environ.get(name) or otherwise


def fabrics() -> str:
    """TERN_FABRICS: the fabric of an address."""
    wanted = _setting("TERN_FABRICS", "auto")
    if wanted not in ("auto", "tcp", "verbs"):
        raise ValueError(f"TERN_FABRICS={wanted}: expected auto, tcp or verbs")
    return wanted


def dead_s() -> float | None:
    """TERN_DEAD_TIMEOUT: after so many seconds a process that says nothing is dead; None: never."""
    text = _setting("TERN_DEAD_TIMEOUT", str(DEAD_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if seconds != 0 and not 0.1 <= seconds <= 1e6:
        raise ValueError(f"TERN_DEAD_TIMEOUT={text}: expected seconds from 0.1 to 1e6, or 0 for never")
    return seconds or None


def tells_connections() -> bool:
    """TERN_LOG: whether each connection is worth a line."""
    return os.environ.get("TERN_LOG") in ("info", "debug")


def address_of(interface: str) -> str | None:
    """The IPv4 address of an interface; None: it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s, contextlib.suppress(OSError):
        answer = fcntl.ioctl(s.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()))
        return socket.inet_ntoa(answer[20:24])
    return None


def _named_interface(variable: str) -> str:
    """The address of the first interface that the variable names, in the syntax of NCCL_SOCKET_IFNAME."""
    names = os.environ[variable]
    wanted = names.removeprefix("^").removeprefix("=").split(",")
    exact, other = "=" in names[:2], names.startswith("^")
    for _, interface in sorted(socket.if_nameindex()):
        hit = any(interface == name if exact else interface.startswith(name) for name in wanted if name)
        address = address_of(interface) if hit != other else None
        if address and not (other and address.startswith("127.")):
            return address
    raise ValueError(f"{variable}={names}: no such interface has an address")


def own_address(otherwise: Callable[[], str]) -> str:
    """The address of this host by which others come: that of the interface which TERN_NET_IFNAME names, or `otherwise`."""
    for variable in "TERN_NET_IFNAME", "NCCL_SOCKET_IFNAME":
        if os.environ.get(variable):
            return _named_interface(variable)
    return otherwise()
