"""The network of a visitor: of an IPv6 address the /64, and headers of trusted proxies alone."""

from __future__ import annotations

import pytest

from chatmemory.access.networks import network_of

PROXIES = ["10.0.0.0/8", "fd00::/8", "unix"]


@pytest.mark.parametrize(
    ("remote", "forwarded", "network"),
    [
        ("203.0.113.7", "", "203.0.113.7"),
        ("203.0.113.7", "198.51.100.1", "203.0.113.7"),  # no proxy of ours
        ("10.1.2.3", "198.51.100.1", "198.51.100.1"),
        ("10.1.2.3", "6.6.6.6, 198.51.100.1", "198.51.100.1"),  # the client sent the first
        ("10.1.2.3", "198.51.100.1, 10.9.9.9", "198.51.100.1"),  # two proxies
        ("10.1.2.3", "", "10.1.2.3"),
        ("10.1.2.3", "nonsense", "10.1.2.3"),
        ("10.1.2.3", "198.51.100.1:4711", "198.51.100.1"),
        ("10.1.2.3", "[2001:db8:1:2:3::4]:4711", "2001:db8:1:2::/64"),
        ("fd00::1", "2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("", "198.51.100.1", "198.51.100.1"),  # a proxy at a UNIX socket
        ("", "", ""),
        ("2001:db8:1:2:3:4:5:6", "", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:ffff:ffff:ffff", "", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", "", "2001:db8:1:3::/64"),
        ("::ffff:203.0.113.7", "", "203.0.113.7"),
        ("fe80::1%eth0", "", "fe80::/64"),
    ],
)
def test_the_network_of_a_client(settings, remote, forwarded, network):
    settings.CHATMEMORY = {"TRUSTED_PROXIES": PROXIES}
    assert network_of(remote, forwarded) == network


@pytest.mark.parametrize("remote", ["", "10.1.2.3"])
def test_without_trusted_proxies_no_header_counts(settings, remote):
    settings.CHATMEMORY = {}
    assert network_of(remote, "198.51.100.1") == remote
