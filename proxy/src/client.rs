//! Which address a request comes from, where other proxies stand in front.

use std::net::{IpAddr, Ipv6Addr};

/// A range of addresses, such as `10.0.0.0/8` or `2001:db8::/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    base: u128,
    mask: u128,
}

/// IPv4 as IPv6 sees it (RFC 4291 section 2.5.5.2), so that both are compared alike.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl Network {
    /// Reads an address with an optional prefix length.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text
            .split_once('/')
            .map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr = address.parse().ok()?;
        let own = if address.is_ipv4() { 32 } else { 128 };
        let prefix: u32 = prefix.map_or(Some(own), |prefix| {
            prefix.parse().ok().filter(|prefix| *prefix <= own)
        })?;
        let mask = u128::MAX.checked_shl(own - prefix).unwrap_or(0);
        Some(Self {
            base: bits(address) & mask,
            mask,
        })
    }

    /// Whether the address lies within.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        bits(address) & self.mask == self.base
    }
}

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
pub fn address<'v>(
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
    fn networks_are_ranges() {
        let network = Network::parse("10.1.0.0/16").expect("a network");
        assert!(network.contains(ip("10.1.255.1")) && !network.contains(ip("10.2.0.1")));
        assert!(network.contains(ip("::ffff:10.1.2.3")) && !network.contains(ip("::1")));
        assert!(Network::parse("::/0").expect("all").contains(ip("1.2.3.4")));
        assert!(
            Network::parse("0.0.0.0/0")
                .expect("all of IPv4")
                .contains(ip("1.2.3.4"))
        );
        assert!(
            !Network::parse("0.0.0.0/0")
                .expect("all of IPv4")
                .contains(ip("2001:db8::1"))
        );
        assert!(
            Network::parse("2001:db8::/32")
                .expect("a network")
                .contains(ip("2001:db8:1::1"))
        );
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "::/129",
            "10.0.0.0/x",
            "host",
        ] {
            assert_eq!(Network::parse(text), None, "{text}");
        }
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
