use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderMap;

use super::Peer;
use crate::decode::{Field, Object};

/// A network, such as `10.0.0.0/8` or `::1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: u128,
    prefix: u32,
}

/// The proxies whose `X-Forwarded-For` is believed.
#[derive(Clone, Debug)]
pub struct TrustedProxies(Arc<[Network]>);

// === impl Network ===

impl Network {
    /// `None` when the text is no address or network.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let (most, offset) = if address.is_ipv4() { (32, 96) } else { (128, 0) };
        let prefix = prefix.unwrap_or(most);
        (prefix <= most).then(|| Self { address: bits(address), prefix: prefix + offset })
    }

    /// Reads a field that holds one.
    pub fn read(field: Field<'_>) -> Option<Self> {
        Self::parse(field.string()?)
            .or_else(|| field.fail("invalid_format", "must be a network such as 10.0.0.0/8"))
    }

    fn contains(self, address: IpAddr) -> bool {
        let differing = 128_u32.saturating_sub(self.prefix);
        let mask = u128::MAX.checked_shl(differing).unwrap_or(0);
        (bits(address) ^ self.address) & mask == 0
    }
}

// === impl TrustedProxies ===

impl TrustedProxies {
    /// Reads the key `trusted_proxies`. Default: this machine's own addresses, for a gateway beside the service.
    #[must_use]
    pub fn read(root: &Object<'_>) -> Self {
        root.optional("trusted_proxies", |field| field.array(Network::read))
            .map_or_else(Self::default, Self::from)
    }

    /// The address of the client. Every trusted proxy appends the address that it saw to `X-Forwarded-For`; the first
    /// from the right that is no trusted proxy's is the client's. What precedes it was written by the client.
    #[must_use]
    pub fn client_address(&self, peer: Peer, headers: &HeaderMap) -> Option<IpAddr> {
        let mut address = peer.0?.ip().to_canonical();
        let values: Vec<&str> = headers
            .get_all("x-forwarded-for")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .collect();
        for value in values.iter().rev() {
            if !self.contains(address) {
                break;
            }
            let Ok(next) = value.trim().parse::<IpAddr>() else { break };
            address = next.to_canonical();
        }
        Some(address)
    }

    /// Whether an address is a trusted proxy's.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }
}

impl From<Vec<Network>> for TrustedProxies {
    fn from(networks: Vec<Network>) -> Self {
        Self(networks.into())
    }
}

impl Default for TrustedProxies {
    fn default() -> Self {
        Self(["127.0.0.0/8", "::1"].into_iter().filter_map(Network::parse).collect())
    }
}

/// IPv4 as IPv4-mapped IPv6, so that one comparison serves both.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_(peer: &str, forwarded: &[&'static str]) -> String {
        let trusted =
            ["127.0.0.0/8", "::1", "10.1.0.0/16"].map(|text| Network::parse(text).expect("network"));
        let headers = forwarded
            .iter()
            .map(|value| ("x-forwarded-for".parse().expect("a name"), value.parse().expect("a value")))
            .collect();
        let peer = Peer(Some(peer.parse().expect("an address")));
        TrustedProxies::from(trusted.to_vec()).client_address(peer, &headers).expect("a peer").to_string()
    }

    #[test]
    fn only_a_trusted_proxy_is_believed() {
        assert_eq!(of_("127.0.0.1:9", &["192.0.2.1"]), "192.0.2.1");
        assert_eq!(of_("[::1]:9", &["192.0.2.1"]), "192.0.2.1");
        assert_eq!(of_("192.0.2.9:9", &["198.51.100.1"]), "192.0.2.9");
        assert_eq!(of_("127.0.0.1:9", &["198.51.100.1, 192.0.2.1"]), "192.0.2.1");
        assert_eq!(of_("127.0.0.1:9", &["198.51.100.1", "192.0.2.1, 10.1.2.3"]), "192.0.2.1");
        assert_eq!(of_("127.0.0.1:9", &["nonsense"]), "127.0.0.1");
        assert_eq!(of_("127.0.0.1:9", &[]), "127.0.0.1");
    }

    #[test]
    fn networks_are_read() {
        assert_eq!(Network::parse("10.0.0.0/33"), None);
        assert_eq!(Network::parse("x"), None);
        assert!(Network::parse("::/0").expect("network").contains("192.0.2.1".parse().expect("address")));
    }
}
