//! The client of a request, as far as it is known before authentication.

use std::net::IpAddr;
use std::sync::Arc;

/// Request id and address of a client.
#[derive(Clone, Debug)]
pub(crate) struct ClientContext {
    /// The id of the request, for the audit log.
    pub(crate) request_id: Arc<str>,
    /// The client's address, for the attempt limits. Never logged.
    pub(crate) address: Option<IpAddr>,
}
