"""The network address for which the requests of visitors are counted."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from chatmemory.conf import settings

UNIX = "unix"
"""In TRUSTED_PROXIES: a proxy that connects by a UNIX socket, which has no address."""

IPV6_BITS = 64
"""Of an IPv6 address: a provider assigns at least a /64 to each customer."""

BLOCK_BITS = 48
"""Of an IPv6 address: one customer can get a whole /48."""


def network_of(remote: str, forwarded: str = "") -> str:
    """Return the network of a client, from its connection and its `X-Forwarded-For`.

    It is an IPv4 address or the /64 of an IPv6 address; empty if it is unknown. The header counts
    only from TRUSTED_PROXIES: the client's address is the last one in it that is no proxy.
    """
    trusted = tuple(settings.TRUSTED_PROXIES)
    address = _parse_address(remote)
    is_proxy = UNIX in trusted if address is None else _is_trusted(address, trusted)
    # From the right: each proxy appends the address of its client, which may have sent the rest.
    for part in reversed(forwarded.split(",")):
        if not is_proxy:
            break
        named = _parse_address(part.strip())
        if named is None:
            break
        address = named
        is_proxy = _is_trusted(address, trusted)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, IPV6_BITS), strict=False))
    return "" if address is None else str(address)


def block_of(network: str) -> str:
    """Return the /48 of an IPv6 network of `network_of`; all others are their own block."""
    if not network.endswith(f"/{IPV6_BITS}"):
        return network
    return str(IPv6Network(network).supernet(new_prefix=BLOCK_BITS))


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address, also with brackets or a port, as some proxies write it."""
    bare = text.partition("]")[0].removeprefix("[") if text.startswith("[") else text
    if bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        found = ip_address(bare.partition("%")[0])
    except ValueError:
        return None
    return (isinstance(found, IPv6Address) and found.ipv4_mapped) or found


def _is_trusted(address: IPv4Address | IPv6Address, trusted: tuple[str, ...]) -> bool:
    return any(address in network for network in networks_of(trusted))


@lru_cache(maxsize=8)
def networks_of(trusted: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    """Return the networks of TRUSTED_PROXIES. Raises ValueError for any other entry."""
    return tuple(ip_network(each) for each in trusted if each != UNIX)
