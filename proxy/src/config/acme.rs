//! `[acme]`: certificates from an ACME server.

use std::path::PathBuf;

use postern_core::decode::Object;
use url::Url;

use crate::config::ListenerConfig;

/// `[acme]`: the ACME server that issues the certificates of `listen.tls.acme`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeConfig {
    /// The directory of the server; default Let's Encrypt.
    pub directory: Url,
    /// The store directory, which replicas share.
    pub store: PathBuf,
    /// Certificate authorities of the server's own certificate; default those of the system.
    pub ca: Option<PathBuf>,
}

/// The directory of Let's Encrypt.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

impl AcmeConfig {
    fn read(section: &Object<'_>) -> Option<Self> {
        let directory = section.or("directory", Url::parse(LETS_ENCRYPT).ok(), |field| {
            let url = field.url()?;
            match url.scheme() {
                "https" => Some(Some(url)),
                _ => field.fail(
                    "invalid_format",
                    "must be an https URL (RFC 8555 section 6.1)",
                ),
            }
        });
        let terms = section.required("accept_terms", |field| match field.is_true() {
            true => Some(()),
            false => field.fail(
                "invalid_choice",
                "must be true: the account agrees to the terms of service of the ACME server",
            ),
        });
        let store = section.required("store", |field| field.text(1..=4096));
        let ca = section.optional("ca", |field| field.text(1..=4096));
        terms?;
        Some(Self {
            directory: directory?,
            store: store?.into(),
            ca: ca.map(PathBuf::from),
        })
    }
}

/// Reads the table `[acme]`, which names of listeners require.
pub(super) fn read(root: &Object<'_>, listen: &[ListenerConfig]) -> Option<AcmeConfig> {
    let acme = root.section("acme", AcmeConfig::read);
    let mut names = listen
        .iter()
        .filter_map(|listener| listener.tls.as_ref())
        .flat_map(|tls| tls.acme_domains());
    let is_used = names.next().is_some();
    match (root.has("acme"), is_used) {
        (false, true) => root.fail(
            "missing_field",
            "acme: listen.tls.acme requires the table [acme]",
        ),
        (true, false) => root.fail("conflicting_fields", "acme: no listener has tls.acme"),
        (true, true) | (false, false) => {}
    }
    acme
}
