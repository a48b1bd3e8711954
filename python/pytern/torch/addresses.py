# SPDX-License-Identifier: Apache-2.0
"""The address at which a rank of PyTorch listens: docs/plugins.md."""
import contextlib
import os
import socket
from pathlib import Path

from .. import _settings


def _source_to(host: str) -> str | None:
    """The address of the interface by which this host reaches another one. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s, contextlib.suppress(OSError):
        s.connect((host, 9))
        return s.getsockname()[0]
    return None


def _outside() -> str | None:
    """The address of the interface of the default route, or else of the first one that is no loopback."""
    address = _source_to("192.0.2.1")  # RFC 5737: of no host
    if address:
        return address
    found = [_settings.address_of(interface) for _, interface in sorted(socket.if_nameindex())]
    return next((address for address in found if address and not address.startswith("127.")), None)


def _master_side() -> str:
    """The address of this host from which it reaches the master. A host that is the master itself reaches itself by the
    loopback, as its own name often resolves to 127.0.1.1: unless MASTER_ADDR says that all ranks are on one host, its
    address is the one that other hosts reach."""
    master = os.environ.get("MASTER_ADDR") or socket.gethostname()
    address = _source_to(master) or "127.0.0.1"
    if address.startswith("127.") and not master.startswith(("127.", "localhost")):
        return _outside() or address
    return address


def own_address() -> str:
    """The address of this host by which the other ranks come."""
    return _settings.own_address(_master_side)


def host() -> str:
    """The same for all processes of a host."""
    return f"{socket.gethostname()} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
