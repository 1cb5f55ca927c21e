//! The choice of a certificate by the server name of a handshake (SNI, RFC 6066 section 3).

use std::sync::Arc;

use postern_http::message::host::host_name;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::certificates::names::NameIndex;
use crate::certificates::slot::CertificateSlot;

#[derive(Debug)]
pub(super) struct CertificateSelector {
    slots: Vec<Arc<CertificateSlot>>,
    /// Positions in `slots`.
    by_name: NameIndex<usize>,
}

impl CertificateSelector {
    /// Builds the index. `names` are the names of each slot; of several with a name, the first is
    /// used.
    pub(super) fn new(slots: Vec<Arc<CertificateSlot>>, names: &[Vec<String>]) -> Self {
        let mut by_name = NameIndex::default();
        for (at, names) in names.iter().enumerate().rev() {
            for name in names {
                by_name.insert(name, at);
            }
        }
        Self { slots, by_name }
    }

    /// Returns the position of the certificate for the host of a request, in lower case.
    pub(super) fn closest(&self, host: &str) -> Option<usize> {
        self.by_name.closest(host).copied()
    }

    /// Returns the position of the certificate for a handshake: that of the requested name, or else
    /// the default certificate.
    pub(super) fn select(&self, server_name: Option<&str>) -> usize {
        let named = server_name.and_then(|name| self.by_name.get(&host_name(name)));
        named.copied().unwrap_or_default()
    }
}

impl ResolvesServerCert for CertificateSelector {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.slots[self.select(hello.server_name())].current()
    }
}
