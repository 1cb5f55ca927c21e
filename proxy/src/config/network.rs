//! CIDR ranges of IP addresses.

use std::net::IpAddr;

/// A CIDR range of IP addresses, such as `10.0.0.0/8` or `2001:db8::/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork {
    base: u128,
    mask: u128,
}

/// Returns the bits of an address, IPv4 mapped to IPv6 (RFC 4291 section 2.5.5.2).
fn mapped_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl IpNetwork {
    /// Parses an address with an optional prefix length.
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
            base: mapped_bits(address) & mask,
            mask,
        })
    }

    /// Returns whether the range contains the address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        mapped_bits(address) & self.mask == self.base
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn cidr_range_contains_its_addresses() {
        let network = IpNetwork::parse("10.1.0.0/16").expect("a network");
        assert!(network.contains(ip("10.1.255.1")) && !network.contains(ip("10.2.0.1")));
        assert!(network.contains(ip("::ffff:10.1.2.3")) && !network.contains(ip("::1")));
        assert!(
            IpNetwork::parse("::/0")
                .expect("any address")
                .contains(ip("1.2.3.4"))
        );
        assert!(
            IpNetwork::parse("0.0.0.0/0")
                .expect("all of IPv4")
                .contains(ip("1.2.3.4"))
        );
        assert!(
            !IpNetwork::parse("0.0.0.0/0")
                .expect("all of IPv4")
                .contains(ip("2001:db8::1"))
        );
        assert!(
            IpNetwork::parse("2001:db8::/32")
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
            assert_eq!(IpNetwork::parse(text), None, "{text}");
        }
    }
}
