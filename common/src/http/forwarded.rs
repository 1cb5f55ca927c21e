//! The address of the client behind trusted proxies.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;

use super::Peer;
use crate::decode::{Field, Object};

/// An IP network, such as `10.0.0.0/8` or `::1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: u128,
    prefix: u32,
}

/// Proxies whose `X-Forwarded-For` is trusted.
#[derive(Clone, Debug)]
pub struct TrustedProxies {
    networks: Arc<[Network]>,
    /// Number of requests with `X-Forwarded-For` from addresses that are not listed.
    unlisted: Arc<AtomicU64>,
}

// === impl Network ===

impl Network {
    /// Parses an address or a network. Returns `None` for other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let (max_prefix, offset) = if address.is_ipv4() {
            (32, 96)
        } else {
            (128, 0)
        };
        let prefix = prefix.unwrap_or(max_prefix);
        (prefix <= max_prefix).then(|| Self {
            address: ipv6_bits(address),
            prefix: prefix + offset,
        })
    }

    /// Reads a configuration field with a network.
    pub fn read(field: Field<'_>) -> Option<Self> {
        Self::parse(field.string()?)
            .or_else(|| field.fail("invalid_format", "must be a network such as 10.0.0.0/8"))
    }

    /// Returns whether the whole network is within the loopback addresses.
    fn is_loopback(self) -> bool {
        let within = |outer: Self| self.prefix >= outer.prefix && outer.covers(self.address);
        ["127.0.0.0/8", "::1"]
            .into_iter()
            .filter_map(Self::parse)
            .any(within)
    }

    fn contains(self, address: IpAddr) -> bool {
        self.covers(ipv6_bits(address))
    }

    fn covers(self, address: u128) -> bool {
        let differing = 128_u32.saturating_sub(self.prefix);
        let mask = u128::MAX.checked_shl(differing).unwrap_or(0);
        (address ^ self.address) & mask == 0
    }
}

// === impl TrustedProxies ===

impl TrustedProxies {
    /// Reads the key `trusted_proxies`. The default is the loopback addresses, for a gateway on the
    /// same host. The key is required if `listen` is not a loopback address.
    #[must_use]
    pub fn read(root: &Object<'_>, listen: SocketAddr) -> Self {
        if !root.has("trusted_proxies") && !listen.ip().is_loopback() {
            let detail = "trusted_proxies is required if `listen` is not a loopback address: the addresses of the \
                       gateways, such as [\"10.0.0.0/8\"]. Without them all clients would count as one";
            root.fail("missing_field", detail);
        }
        root.optional("trusted_proxies", |field| field.array(Network::read))
            .map_or_else(Self::default, Self::from)
    }

    /// Returns the client's address, or `None` if the peer has no IP address.
    ///
    /// A peer that is not a trusted proxy is the client itself. Each trusted proxy appends the
    /// address of its own peer to `X-Forwarded-For`, so the client's address is the rightmost entry
    /// that is not a trusted proxy, or the leftmost entry if all are. Entries to its left may be
    /// written by the client and are ignored. A malformed entry ends the search at the address to
    /// its right, or at the peer.
    #[must_use]
    pub fn client_address(&self, peer: Peer, headers: &HeaderMap) -> Option<IpAddr> {
        let mut address = peer.0?.ip().to_canonical();
        if !self.contains(address) && headers.contains_key("x-forwarded-for") {
            self.warn_of_unlisted();
        }
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
            let Ok(next) = value.trim().parse::<IpAddr>() else {
                break;
            };
            address = next.to_canonical();
        }
        Some(address)
    }

    /// Returns whether `address` belongs to a trusted proxy.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.networks
            .iter()
            .any(|network| network.contains(address))
    }

    /// Returns whether only loopback addresses are listed.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.networks.iter().all(|network| network.is_loopback())
    }

    /// Logs requests with `X-Forwarded-For` from an unlisted address, which is an unlisted gateway
    /// or a client that forges the header. Logged at every power of two, without the address.
    fn warn_of_unlisted(&self) {
        let requests = self.unlisted.fetch_add(1, Ordering::Relaxed) + 1;
        if requests.is_power_of_two() {
            tracing::warn!(
                requests,
                "X-Forwarded-For ignored from an address that is not in trusted_proxies; \
                 if it is a gateway, its clients share one rate limit until it is added"
            );
        }
    }
}

impl From<Vec<Network>> for TrustedProxies {
    fn from(networks: Vec<Network>) -> Self {
        Self {
            networks: networks.into(),
            unlisted: Arc::default(),
        }
    }
}

impl Default for TrustedProxies {
    fn default() -> Self {
        Self::from(
            ["127.0.0.0/8", "::1"]
                .into_iter()
                .filter_map(Network::parse)
                .collect::<Vec<_>>(),
        )
    }
}

/// Returns the bits of the address as IPv6, with IPv4 mapped into it, so that both are compared
/// alike.
fn ipv6_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client_address_of(peer: &str, forwarded: &[&'static str]) -> String {
        let trusted = ["127.0.0.0/8", "::1", "10.1.0.0/16"]
            .map(|text| Network::parse(text).expect("network"));
        let headers = forwarded
            .iter()
            .map(|value| {
                (
                    "x-forwarded-for".parse().expect("a name"),
                    value.parse().expect("a value"),
                )
            })
            .collect();
        let peer = Peer(Some(peer.parse().expect("an address")));
        TrustedProxies::from(trusted.to_vec())
            .client_address(peer, &headers)
            .expect("a peer")
            .to_string()
    }

    #[test]
    fn forwarded_address_of_untrusted_peer_is_ignored() {
        assert_eq!(
            client_address_of("127.0.0.1:9", &["192.0.2.1"]),
            "192.0.2.1"
        );
        assert_eq!(client_address_of("[::1]:9", &["192.0.2.1"]), "192.0.2.1");
        assert_eq!(
            client_address_of("192.0.2.9:9", &["198.51.100.1"]),
            "192.0.2.9"
        );
        assert_eq!(
            client_address_of("127.0.0.1:9", &["198.51.100.1, 192.0.2.1"]),
            "192.0.2.1"
        );
        assert_eq!(
            client_address_of("127.0.0.1:9", &["198.51.100.1", "192.0.2.1, 10.1.2.3"]),
            "192.0.2.1"
        );
        assert_eq!(client_address_of("127.0.0.1:9", &["nonsense"]), "127.0.0.1");
        assert_eq!(client_address_of("127.0.0.1:9", &[]), "127.0.0.1");
    }

    #[test]
    fn unlisted_gateway_is_counted_for_the_warning() {
        let proxies = TrustedProxies::default();
        let forwarded = [(
            "x-forwarded-for".parse().expect("a name"),
            "192.0.2.1".parse().expect("a value"),
        )];
        let forwarded: HeaderMap = forwarded.into_iter().collect();
        for (peer, headers, expected) in [
            ("127.0.0.1:1", &forwarded, 0),
            ("[::ffff:127.0.0.1]:1", &forwarded, 0),
            ("10.2.0.1:1", &HeaderMap::new(), 0),
            ("10.2.0.1:1", &forwarded, 1),
        ] {
            let _ = proxies.client_address(Peer(Some(peer.parse().expect("an address"))), headers);
            assert_eq!(proxies.unlisted.load(Ordering::Relaxed), expected, "{peer}");
        }
    }

    #[test]
    fn networks_are_parsed() {
        assert_eq!(Network::parse("10.0.0.0/33"), None);
        assert_eq!(Network::parse("x"), None);
        assert!(
            Network::parse("::/0")
                .expect("network")
                .contains("192.0.2.1".parse().expect("address"))
        );
        let is_loopback = |text| Network::parse(text).expect("network").is_loopback();
        assert!(
            ["127.0.0.0/8", "127.0.0.1", "127.1.0.0/16", "::1"]
                .into_iter()
                .all(is_loopback)
        );
        assert!(
            !["126.0.0.0/7", "0.0.0.0/0", "::/0", "::1/127", "10.0.0.1"]
                .into_iter()
                .any(is_loopback)
        );
    }
}
