//! Which address a request comes from, where other proxies stand in front.

use std::net::{IpAddr, Ipv6Addr};

use crate::config::Network;

/// Whose connections and requests are counted together: an IPv4 address, or the /64 of an IPv6 one,
/// of which one client has all.
pub(crate) fn counted(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)))
        }
    }
}

/// The client behind `peer`: the last address of `X-Forwarded-For` that no trusted proxy wrote
/// about itself. What stands before that address is the client's own word and counts for nothing.
#[must_use]
pub(crate) fn address<'v>(
    peer: IpAddr,
    forwarded: impl DoubleEndedIterator<Item = &'v str>,
    trusted: &[Network],
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
    fn only_trusted_hops_are_believed() {
        let trusted = [Network::parse("10.0.0.0/8").expect("a network")];
        let of =
            |peer: &str, forwarded: &[&str]| address(ip(peer), forwarded.iter().copied(), &trusted);
        assert_eq!(
            of("1.2.3.4", &["9.9.9.9"]),
            ip("1.2.3.4"),
            "a stranger's word"
        );
        assert_eq!(of("10.0.0.1", &["9.9.9.9"]), ip("9.9.9.9"));
        assert_eq!(
            of("10.0.0.1", &["6.6.6.6, 9.9.9.9, 10.0.0.2"]),
            ip("9.9.9.9")
        );
        assert_eq!(of("10.0.0.1", &["6.6.6.6", "9.9.9.9"]), ip("9.9.9.9"));
        assert_eq!(of("10.0.0.1", &["nonsense"]), ip("10.0.0.1"));
        assert_eq!(of("10.0.0.1", &[]), ip("10.0.0.1"));
    }

    #[test]
    fn an_ipv6_network_is_one_client() {
        assert_eq!(
            counted(ip("2001:db8:1:2:3:4:5:6")),
            counted(ip("2001:db8:1:2::1"))
        );
        assert_ne!(
            counted(ip("2001:db8:1:2::1")),
            counted(ip("2001:db8:1:3::1"))
        );
        assert_ne!(counted(ip("10.0.0.1")), counted(ip("10.0.0.2")));
    }
}
