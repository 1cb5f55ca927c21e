//! Hosts whose server name has client authentication.
//!
//! A client chooses the server name of the handshake and the host of each request independently. A
//! request for a host whose name has client authentication is answered only on a connection that
//! has passed it; on any other it is misdirected (RFC 9110 section 15.5.20). Otherwise a client
//! without a certificate could connect under another name, or through another listener; a browser
//! does the former when it coalesces HTTP/2 connections (RFC 9113 section 9.1.1).
//!
//! The same holds for each host that a route accepts by such a name: `*.example.com` of a route
//! matches more hosts than that of a certificate.

use postern_http::message::host::host_name;
use std::borrow::Cow;
use std::sync::Arc;

use crate::certificates::client_auth::TlsClient;
use crate::certificates::server_tls::ServerTls;
use crate::config::HostPattern;

/// The TLS listeners of a gateway in which a name has client authentication.
#[derive(Debug)]
pub(crate) struct HostGuard(Vec<Arc<ServerTls>>);

impl HostGuard {
    /// Returns `None` if no listener has client authentication.
    pub(crate) fn new(listeners: Vec<Arc<ServerTls>>) -> Option<Self> {
        let is_needed = listeners
            .iter()
            .any(|listener| listener.authenticates_clients());
        is_needed.then_some(Self(listeners))
    }

    /// Returns whether a request for this authority, which a route with `hosts` takes, may be
    /// answered on the connection of `client`, which is `None` without client authentication.
    pub(crate) fn accepts(
        &self,
        authority: &str,
        hosts: &[HostPattern],
        client: Option<&TlsClient>,
    ) -> bool {
        let passed = client.map(|client| &client.policy);
        demanding_names(&host_name(authority), hosts).all(|name| {
            let listeners = self.0.iter();
            is_passed(
                listeners.filter_map(|listener| listener.client_auth_of(&name)),
                passed,
            )
        })
    }
}

/// Returns the names whose client authentication a request needs: its host, and the patterns of the
/// route that match it.
fn demanding_names<'n>(
    host: &'n str,
    hosts: &'n [HostPattern],
) -> impl Iterator<Item = Cow<'n, str>> {
    let matching = hosts.iter().filter(move |pattern| pattern.matches(host));
    let patterns = matching.map(|pattern| Cow::Owned(pattern.to_string()));
    std::iter::once(Cow::Borrowed(host)).chain(patterns)
}

/// Returns whether the connection has passed one of the client authentications that listeners have for
/// a name, if there is one.
fn is_passed<P: PartialEq>(demanded: impl Iterator<Item = P>, passed: Option<P>) -> bool {
    let mut demanded = demanded.peekable();
    demanded.peek().is_none() || passed.is_some_and(|passed| demanded.any(|it| it == passed))
}
