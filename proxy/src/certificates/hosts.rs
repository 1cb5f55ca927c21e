//! Hosts whose server name has client authentication.
//!
//! A client chooses the server name of the handshake and the host of each request independently. A
//! request for a host whose name has client authentication is answered only on a connection that
//! has passed it; on any other it is misdirected (RFC 9110 section 15.5.20). Otherwise a client
//! without a certificate could connect under another name, or through another listener; a browser
//! does the former when it coalesces HTTP/2 connections (RFC 9113 section 9.1.1).

use std::sync::Arc;

use crate::certificates::client_auth::TlsClient;
use crate::certificates::names::host_name;
use crate::certificates::server_tls::ServerTls;

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

    /// Returns whether a request for this authority may be answered on the connection of `client`,
    /// which is `None` without client authentication. A name that several listeners have, each with
    /// a client authentication of its own, accepts the clients of each.
    pub(crate) fn accepts(&self, authority: &str, client: Option<&TlsClient>) -> bool {
        let host = host_name(authority);
        let passed = client.map(|client| &client.policy);
        let mut is_protected = false;
        for listener in &self.0 {
            match listener.client_auth_of(&host) {
                None => {}
                Some(policy) if policy == passed => return true,
                Some(policy) => is_protected |= policy.is_some(),
            }
        }
        !is_protected
    }
}
