//! The address of the client, also behind trusted proxies.

use std::net::{IpAddr, Ipv6Addr};

use crate::config::IpNetwork;

/// Returns the key of an address in rate and connection limits: an IPv4 address, or the /64 network
/// of an IPv6 address, which usually belongs to a single client.
pub(crate) fn client_limit_key(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)))
        }
    }
}

/// Returns the address of the client whose request came from `peer`.
///
/// A peer that is not a trusted proxy is the client itself. Otherwise the entries of
/// `X-Forwarded-For` are read from the last one: the result is the first address that is not a
/// trusted proxy. Entries to its left may be set by the client and are ignored. If all addresses
/// are trusted, the result is the leftmost entry. A malformed entry ends the search at the address
/// to its right, or at `peer`.
#[must_use]
pub(crate) fn resolve_client_address<'v>(
    peer: IpAddr,
    forwarded: impl DoubleEndedIterator<Item = &'v str>,
    trusted: &[IpNetwork],
) -> IpAddr {
    let is_trusted = |address: IpAddr| trusted.iter().any(|network| network.contains(address));
    let mut client = peer;
    for hop in forwarded.rev().flat_map(|value| value.rsplit(',')) {
        if !is_trusted(client) {
            break;
        }
        match hop.trim().parse::<IpAddr>() {
            Ok(address) => client = address.to_canonical(),
            Err(_) => break,
        }
    }
    client
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn forwarded_address_of_untrusted_peer_is_ignored() {
        let trusted = [IpNetwork::parse("10.0.0.0/8").expect("a network")];
        let resolve = |peer: &str, forwarded: &[&str]| {
            resolve_client_address(ip(peer), forwarded.iter().copied(), &trusted)
        };
        assert_eq!(
            resolve("1.2.3.4", &["9.9.9.9"]),
            ip("1.2.3.4"),
            "untrusted peer"
        );
        assert_eq!(resolve("10.0.0.1", &["9.9.9.9"]), ip("9.9.9.9"));
        assert_eq!(
            resolve("10.0.0.1", &["6.6.6.6, 9.9.9.9, 10.0.0.2"]),
            ip("9.9.9.9")
        );
        assert_eq!(resolve("10.0.0.1", &["6.6.6.6", "9.9.9.9"]), ip("9.9.9.9"));
        assert_eq!(resolve("10.0.0.1", &["nonsense"]), ip("10.0.0.1"));
        assert_eq!(resolve("10.0.0.1", &[]), ip("10.0.0.1"));
    }

    #[test]
    fn ipv6_network_is_one_client() {
        assert_eq!(
            client_limit_key(ip("2001:db8:1:2:3:4:5:6")),
            client_limit_key(ip("2001:db8:1:2::1"))
        );
        assert_ne!(
            client_limit_key(ip("2001:db8:1:2::1")),
            client_limit_key(ip("2001:db8:1:3::1"))
        );
        assert_ne!(
            client_limit_key(ip("10.0.0.1")),
            client_limit_key(ip("10.0.0.2"))
        );
    }
}
