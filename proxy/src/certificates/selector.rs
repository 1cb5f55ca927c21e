//! The choice of a certificate by the server name of a handshake (SNI, RFC 6066 section 3).

use std::sync::Arc;

use postern_http::message::host::host_name;
use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::certificates::names::NameIndex;
use crate::certificates::slot::CertificateSlot;

/// The certificates of a listener by name.
#[derive(Debug)]
pub(super) struct CertificateSelector {
    slots: Vec<Arc<CertificateSlot>>,
    /// Positions in `slots`, in the order of the configuration.
    by_name: NameIndex<Vec<usize>>,
    strict_sni: bool,
}

impl CertificateSelector {
    /// Builds the index. `names` are the names of each slot.
    pub(super) fn new(
        slots: Vec<Arc<CertificateSlot>>,
        names: &[Vec<String>],
        strict_sni: bool,
    ) -> Self {
        let mut by_name = NameIndex::<Vec<usize>>::default();
        for (at, names) in names.iter().enumerate() {
            for name in names {
                by_name.entry(name).push(at);
            }
        }
        Self {
            slots,
            by_name,
            strict_sni,
        }
    }

    /// Returns the position of the first certificate for the host of a request, in lower case.
    pub(super) fn first_of(&self, host: &str) -> Option<usize> {
        self.by_name.closest(host)?.first().copied()
    }

    /// Returns the position of the certificate for a handshake: of those with the requested name,
    /// the first whose key fits the client's signature schemes; or else the default certificate,
    /// if the listener is not strict.
    pub(super) fn select(
        &self,
        server_name: Option<&str>,
        schemes: &[SignatureScheme],
    ) -> Option<usize> {
        let named = server_name.and_then(|name| self.by_name.get(&host_name(name)));
        let Some(named) = named else {
            return (!self.strict_sni).then_some(0);
        };
        let fits = |at: &&usize| {
            let current = self.slots[**at].current();
            current.is_some_and(|current| current.key.choose_scheme(schemes).is_some())
        };
        named.iter().find(fits).or(named.first()).copied()
    }
}

impl ResolvesServerCert for CertificateSelector {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let at = self.select(hello.server_name(), hello.signature_schemes())?;
        self.slots[at].current()
    }
}
