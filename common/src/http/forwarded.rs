use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
pub struct TrustedProxies {
    networks: Arc<[Network]>,
    /// Requests with `X-Forwarded-For` from addresses that are not listed.
    unlisted: Arc<AtomicU64>,
}

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
        let (most, offset) = if address.is_ipv4() {
            (32, 96)
        } else {
            (128, 0)
        };
        let prefix = prefix.unwrap_or(most);
        (prefix <= most).then(|| Self {
            address: bits(address),
            prefix: prefix + offset,
        })
    }

    /// Reads a field that holds one.
    pub fn read(field: Field<'_>) -> Option<Self> {
        Self::parse(field.string()?)
            .or_else(|| field.fail("invalid_format", "must be a network such as 10.0.0.0/8"))
    }

    /// Whether all of it is this machine.
    fn is_loopback(self) -> bool {
        let within = |outer: Self| self.prefix >= outer.prefix && outer.covers(self.address);
        ["127.0.0.0/8", "::1"]
            .into_iter()
            .filter_map(Self::parse)
            .any(within)
    }

    fn contains(self, address: IpAddr) -> bool {
        self.covers(bits(address))
    }

    fn covers(self, address: u128) -> bool {
        let differing = 128_u32.saturating_sub(self.prefix);
        let mask = u128::MAX.checked_shl(differing).unwrap_or(0);
        (address ^ self.address) & mask == 0
    }
}

// === impl TrustedProxies ===

impl TrustedProxies {
    /// Reads the key `trusted_proxies`. Default: this machine's own addresses, for a gateway beside
    /// the service; where `listen` is reached from other machines there is none.
    #[must_use]
    pub fn read(root: &Object<'_>, listen: SocketAddr) -> Self {
        if !root.has("trusted_proxies") && !listen.ip().is_loopback() {
            let why = "trusted_proxies is required where `listen` is reached from other machines: the addresses of the \
                       gateways, such as [\"10.0.0.0/8\"]. Without them all clients would count as one";
            root.fail("missing_field", why);
        }
        root.optional("trusted_proxies", |field| field.array(Network::read))
            .map_or_else(Self::default, Self::from)
    }

    /// The address of the client. Every trusted proxy appends the address that it saw to
    /// `X-Forwarded-For`; the first from the right that is no trusted proxy's is the client's. What
    /// precedes it was written by the client.
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

    /// Whether an address is a trusted proxy's.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.networks
            .iter()
            .any(|network| network.contains(address))
    }

    /// Whether only this machine is listed.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.networks.iter().all(|network| network.is_loopback())
    }

    /// A gateway that was forgotten, or a client that made the header up: told ever more rarely,
    /// and never its address.
    fn warn_of_unlisted(&self) {
        let requests = self.unlisted.fetch_add(1, Ordering::Relaxed) + 1;
        if requests.is_power_of_two() {
            tracing::warn!(
                requests,
                "X-Forwarded-For came from an address that trusted_proxies does not list: all clients of a gateway there \
                 count as one; list the addresses of the gateways"
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
    fn only_a_trusted_proxy_is_believed() {
        assert_eq!(of_("127.0.0.1:9", &["192.0.2.1"]), "192.0.2.1");
        assert_eq!(of_("[::1]:9", &["192.0.2.1"]), "192.0.2.1");
        assert_eq!(of_("192.0.2.9:9", &["198.51.100.1"]), "192.0.2.9");
        assert_eq!(
            of_("127.0.0.1:9", &["198.51.100.1, 192.0.2.1"]),
            "192.0.2.1"
        );
        assert_eq!(
            of_("127.0.0.1:9", &["198.51.100.1", "192.0.2.1, 10.1.2.3"]),
            "192.0.2.1"
        );
        assert_eq!(of_("127.0.0.1:9", &["nonsense"]), "127.0.0.1");
        assert_eq!(of_("127.0.0.1:9", &[]), "127.0.0.1");
    }

    #[test]
    fn gateway_that_is_not_listed_is_counted_for_the_warning() {
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
    fn networks_are_read() {
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
