//! IP networks, and the address of a client behind proxies.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use url::{Host, Url};

use crate::decode::Field;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// A CIDR range of IP addresses, such as `10.0.0.0/8` or `2001:db8::/32`. An IPv4-mapped IPv6
/// address (RFC 4291 section 2.5.5.2) is the IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpNetwork(IpNet);

/// A set of networks, such as the proxies whose `X-Forwarded-For` is trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IpNetworks(Box<[IpNetwork]>);

/// The client as trusted proxies report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedClient {
    /// The address of the client or, if it is unknown, of the proxy that does not report it.
    pub address: IpAddr,
    /// Whether the address is that of the client: no proxy reported an unknown or malformed one.
    pub is_known: bool,
}

/// Returns whether secrets may be sent to a URL: HTTPS, or HTTP on a loopback host.
#[must_use]
pub fn is_https_or_loopback(url: &Url) -> bool {
    let is_loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && is_loopback)
}

/// Reads the body of a response; `None` if it is larger than `max_bytes`.
pub async fn read_body(
    mut response: reqwest::Response,
    max_bytes: usize,
) -> reqwest::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > max_bytes {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

// === impl IpNetwork ===

impl IpNetwork {
    /// Parses an address with an optional prefix length. Returns `None` for other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let address = || text.parse::<IpAddr>().map(IpNet::from);
        let network = text.parse().or_else(|_| address());
        Some(Self(network.ok()?.trunc()).canonical())
    }

    /// Reads a configuration field with a network.
    pub fn read(field: Field<'_>) -> Option<Self> {
        Self::parse(field.typed("network").string()?)
            .or_else(|| field.fail("invalid_format", "must be a network such as 10.0.0.0/8"))
    }

    /// Returns the network of an address, with at most 32 bits for IPv4 and 128 for IPv6.
    #[must_use]
    pub fn of(address: IpAddr, ipv4_bits: u8, ipv6_bits: u8) -> Self {
        let address = address.to_canonical();
        let bits = match address {
            IpAddr::V4(_) => ipv4_bits,
            IpAddr::V6(_) => ipv6_bits,
        };
        Self(IpNet::new(address, bits).map_or(address.into(), |network| network.trunc()))
    }

    /// Returns the first address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.0.addr()
    }

    /// Returns the first address after the network; `None` after the last one.
    #[must_use]
    pub fn address_after(&self) -> Option<IpAddr> {
        match self.0.broadcast() {
            IpAddr::V4(last) => Some(u32::from(last).checked_add(1).map(Ipv4Addr::from)?.into()),
            IpAddr::V6(last) => Some(u128::from(last).checked_add(1).map(Ipv6Addr::from)?.into()),
        }
    }

    /// Returns whether the network contains the address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.0, address.to_canonical()) {
            (IpNet::V6(network), IpAddr::V4(address)) => {
                network.contains(&address.to_ipv6_mapped())
            }
            (network, address) => network.contains(&address),
        }
    }

    /// Returns whether all addresses are loopback addresses.
    fn is_loopback(&self) -> bool {
        self.0.network().is_loopback() && self.0.broadcast().is_loopback()
    }

    fn canonical(self) -> Self {
        match (self.0.addr().to_canonical(), self.0.prefix_len()) {
            (IpAddr::V4(address), bits @ 96..=128) if matches!(self.0, IpNet::V6(_)) => {
                Self::of(address.into(), bits - 96, bits)
            }
            _ => self,
        }
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl IpNetworks ===

impl IpNetworks {
    /// Returns the loopback addresses.
    #[must_use]
    pub fn loopback() -> Self {
        let networks = ["127.0.0.0/8", "::1"].into_iter();
        networks.filter_map(IpNetwork::parse).collect()
    }

    /// Returns whether one of the networks contains the address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }

    /// Returns whether all addresses are loopback addresses.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.0.iter().all(IpNetwork::is_loopback)
    }

    /// Returns the address of the client whose request came from `peer`, if these are the networks
    /// of trusted proxies.
    ///
    /// A peer that is not a trusted proxy is the client itself. Each trusted proxy appends the
    /// address of its own peer to `X-Forwarded-For`, so the client's address is the rightmost entry
    /// that is not a trusted proxy, or the leftmost entry if all are. Entries to its left may be
    /// written by the client and are ignored. An entry may have a port, as some balancers write it,
    /// and all forms of a node of RFC 7239 section 6. A malformed or unknown one ends the search at
    /// the address to its right, or at the peer.
    #[must_use]
    pub fn client_address(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        self.forwarded_client(peer, headers).address
    }

    /// Returns the client as [`Self::client_address`] does, and whether it is known.
    #[must_use]
    pub fn forwarded_client(&self, peer: IpAddr, headers: &HeaderMap) -> ForwardedClient {
        let values = headers.get_all(FORWARDED_FOR).iter().rev();
        let entries = values.flat_map(|value| value.as_bytes().rsplit(|byte| *byte == b','));
        let parse = |entry: &[u8]| {
            let entry = std::str::from_utf8(entry).ok()?.trim();
            let unquoted = entry.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
            let text = unquoted.unwrap_or(entry);
            // An IPv6 address without brackets is no node, and the usual form here.
            text.parse().ok().or_else(|| parse_node(text))
        };
        let mut client = ForwardedClient {
            address: peer.to_canonical(),
            is_known: true,
        };
        for entry in entries {
            if !self.contains(client.address) {
                break;
            }
            let Some(next) = parse(entry) else {
                client.is_known = false;
                break;
            };
            client.address = next.to_canonical();
        }
        client
    }
}

impl FromIterator<IpNetwork> for IpNetworks {
    fn from_iter<I: IntoIterator<Item = IpNetwork>>(networks: I) -> Self {
        Self(networks.into_iter().collect())
    }
}

/// Parses a node of forwarding fields (RFC 7239 section 6) that is an address: with an optional port,
/// which may be obfuscated, and brackets around IPv6.
fn parse_node(text: &str) -> Option<IpAddr> {
    let (host, port) = match text.rfind(']') {
        Some(end) => text.split_at(end + 1),
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let is_port = match port.strip_prefix(':') {
        Some(port) => is_obfuscated(port) || port.parse::<u16>().is_ok(),
        None => port.is_empty(),
    };
    let bracketed = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let address = match bracketed {
        Some(host) => host.parse().map(IpAddr::V6).ok(),
        None => host.parse().map(IpAddr::V4).ok(),
    };
    address.filter(|_| is_port)
}

/// Returns whether the text is an obfuscated identifier: `_` and letters, digits, `.`, `_`, `-`.
fn is_obfuscated(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    text.len() > 1 && text.starts_with('_') && text.bytes().all(allowed)
}

/// Returns the key of an address in limits per client: an IPv4 address, or the /64 network of an
/// IPv6 address, which usually belongs to a single client.
#[must_use]
pub fn client_limit_key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::from((address.to_bits() & (u128::MAX << 64)).to_be_bytes()),
        address @ IpAddr::V4(_) => address,
    }
}

/// Returns [`client_limit_key`] as a number.
#[must_use]
pub fn client_limit_bits(address: IpAddr) -> u128 {
    match client_limit_key(address) {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn network(text: &str) -> IpNetwork {
        IpNetwork::parse(text).expect("a network")
    }

    #[test]
    fn network_contains_its_addresses() {
        for (text, inside, outside) in [
            ("10.1.0.0/16", "10.1.255.1", "10.2.0.1"),
            ("10.1.2.3/16", "::ffff:10.1.2.3", "::1"),
            ("::ffff:10.0.0.0/104", "10.1.2.3", "11.0.0.0"),
            ("0.0.0.0/0", "1.2.3.4", "2001:db8::1"),
            ("2001:db8::/32", "2001:db8:1::1", "2001:db9::1"),
            ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
        ] {
            assert!(network(text).contains(ip(inside)), "{text} {inside}");
            assert!(!network(text).contains(ip(outside)), "{text} {outside}");
        }
        assert!(network("::/0").contains(ip("192.0.2.1")));
        for text in "|x|10.0.0.0/33|10.0.0/8|::/129|10.0.0.0/x|host".split('|') {
            assert_eq!(IpNetwork::parse(text), None, "{text}");
        }
    }

    #[test]
    fn loopback_networks_contain_loopback_addresses_only() {
        for text in ["127.0.0.0/8", "127.0.0.1", "127.1.0.0/16", "::1"] {
            assert!(network(text).is_loopback(), "{text}");
        }
        for text in ["126.0.0.0/7", "0.0.0.0/0", "::/0", "::1/127", "10.0.0.1"] {
            assert!(!network(text).is_loopback(), "{text}");
        }
    }

    #[test]
    fn forwarded_address_of_untrusted_peer_is_ignored() {
        let trusted = ["127.0.0.0/8", "::1", "10.1.0.0/16"].map(network);
        let trusted = IpNetworks::from_iter(trusted);
        for (peer, forwarded, client) in [
            ("127.0.0.1", &["192.0.2.1"][..], "192.0.2.1"),
            ("::1", &["192.0.2.1"], "192.0.2.1"),
            ("::ffff:127.0.0.1", &["::ffff:192.0.2.1"], "192.0.2.1"),
            ("192.0.2.9", &["198.51.100.1"], "192.0.2.9"),
            ("127.0.0.1", &["198.51.100.1, 192.0.2.1"], "192.0.2.1"),
            ("::1", &["6.6.6.6", "192.0.2.1, 10.1.2.3"], "192.0.2.1"),
            ("127.0.0.1", &["10.1.0.1, 10.1.2.3"], "10.1.0.1"),
            ("127.0.0.1", &["nonsense"], "127.0.0.1"),
            ("127.0.0.1", &["192.0.2.1:4711"], "192.0.2.1"),
            ("127.0.0.1", &["192.0.2.1:_x"], "192.0.2.1"),
            ("127.0.0.1", &["[2001:db8::1]:4711"], "2001:db8::1"),
            ("127.0.0.1", &["\"[2001:db8::1]:4711\""], "2001:db8::1"),
            ("127.0.0.1", &["[2001:db8::1]"], "2001:db8::1"),
            ("127.0.0.1", &["2001:db8::1"], "2001:db8::1"),
            ("::1", &["6.6.6.6, 192.0.2.1:80,10.1.2.3:443"], "192.0.2.1"),
            ("127.0.0.1", &["[2001:db8::1]:_x"], "2001:db8::1"),
            ("127.0.0.1", &["[2001:db8::1"], "127.0.0.1"),
            ("127.0.0.1", &["[192.0.2.1]"], "127.0.0.1"),
            ("127.0.0.1", &["192.0.2.1:_"], "127.0.0.1"),
            ("127.0.0.1", &["unknown:80"], "127.0.0.1"),
            ("127.0.0.1", &["192.0.2.1:99999"], "127.0.0.1"),
            ("127.0.0.1", &["192.0.2.1:"], "127.0.0.1"),
            ("127.0.0.1", &["192.0.2.1, unknown"], "127.0.0.1"),
            ("127.0.0.1", &["192.0.2.1, _hidden:80"], "127.0.0.1"),
            ("127.0.0.1", &["192.0.2.1, x, 10.1.2.3"], "10.1.2.3"),
            // Not the forged first line, if the second one cannot be read.
            ("127.0.0.1", &["6.6.6.6", "\u{e9}, 192.0.2.1"], "192.0.2.1"),
            ("127.0.0.1", &["6.6.6.6", "192.0.2.1, \u{e9}"], "127.0.0.1"),
            ("127.0.0.1", &[], "127.0.0.1"),
        ] {
            let values = forwarded.iter().map(|value| {
                let value = http::HeaderValue::from_bytes(value.as_bytes());
                (FORWARDED_FOR, value.expect("a value"))
            });
            let headers = values.collect();
            let found = trusted.client_address(ip(peer), &headers);
            assert_eq!(found, ip(client), "{peer} {forwarded:?}");
        }
    }

    #[test]
    fn ipv6_network_is_one_client() {
        let is_same = |left: &str, right: &str| {
            let is_same_key = client_limit_key(ip(left)) == client_limit_key(ip(right));
            let is_same_number = client_limit_bits(ip(left)) == client_limit_bits(ip(right));
            assert_eq!(is_same_key, is_same_number, "{left} {right}");
            is_same_key
        };
        assert!(is_same("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::1"));
        assert!(is_same("::ffff:10.0.0.1", "10.0.0.1"));
        assert!(!is_same("2001:db8:1:2::1", "2001:db8:1:3::1"));
        assert!(!is_same("10.0.0.1", "10.0.0.2"));
    }
}
