//! The address of the client behind trusted proxies.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;

use super::Peer;
use postern_core::decode::Object;
use postern_core::network::{IpNetwork, IpNetworks};
use postern_core::settings;

/// Proxies whose `X-Forwarded-For` is trusted.
#[derive(Clone, Debug)]
pub struct TrustedProxies {
    networks: Arc<IpNetworks>,
    /// Number of requests with `X-Forwarded-For` from addresses that are not listed.
    unlisted: Arc<AtomicU64>,
}

settings! {
    fn read_key(root) -> Option<TrustedProxies> {
        /// Gateways and other proxies whose `X-Forwarded-For` names the client; a service requires it
        /// if `listen` is not loopback.
        trusted_proxies = None ("loopback")
            => |field| field.array(IpNetwork::read).map(TrustedProxies::from),
    } => trusted_proxies
}

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
        Self::read_optional(root)
    }

    /// Reads the key `trusted_proxies`, which is not required.
    #[must_use]
    pub fn read_optional(root: &Object<'_>) -> Self {
        read_key(root).flatten().unwrap_or_default()
    }

    /// Returns the client's address (see [`IpNetworks::client_address`]), or `None` if the peer has
    /// no IP address.
    #[must_use]
    pub fn client_address(&self, peer: Peer, headers: &HeaderMap) -> Option<IpAddr> {
        let peer = peer.0?.ip();
        if !self.contains(peer) && headers.contains_key("x-forwarded-for") {
            self.warn_of_unlisted();
        }
        Some(self.networks.client_address(peer, headers))
    }

    /// Returns whether `address` belongs to a trusted proxy.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.networks.contains(address)
    }

    /// Returns whether only loopback addresses are listed.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.networks.is_loopback()
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

impl From<Vec<IpNetwork>> for TrustedProxies {
    fn from(networks: Vec<IpNetwork>) -> Self {
        networks.into_iter().collect::<IpNetworks>().into()
    }
}

impl From<IpNetworks> for TrustedProxies {
    fn from(networks: IpNetworks) -> Self {
        let (networks, unlisted) = (networks.into(), Arc::default());
        Self { networks, unlisted }
    }
}

impl Default for TrustedProxies {
    fn default() -> Self {
        IpNetworks::loopback().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
