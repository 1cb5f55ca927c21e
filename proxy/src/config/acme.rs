//! `[acme]`: certificates from an ACME server.

use std::path::PathBuf;

use postern_core::decode::Object;
use postern_core::settings;
use url::Url;

use crate::config::{ListenerConfig, file_path};

settings! {
    /// The ACME server that issues the certificates of `listen.tls.acme`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AcmeConfig(table) {
        /// Directory of the server; https.
        pub directory: Url = { Url::parse(LETS_ENCRYPT).ok() } ("Let's Encrypt") => |field| {
            let url = field.url()?;
            match url.scheme() {
                "https" => Some(url),
                _ => field.fail(
                    "invalid_format",
                    "must be an https URL (RFC 8555 section 6.1)",
                ),
            }
        },
        /// Agreement to the terms of service of the server.
        pub accept_terms: bool => |field| match field.is_true() {
            true => Some(true),
            false => field.fail(
                "invalid_choice",
                "must be true: the account agrees to the terms of service of the ACME server",
            ),
        },
        /// Folder of account, certificates and challenges, 0700; replicas share it.
        pub store: PathBuf => file_path,
        /// Certificate authorities of the server's own certificate, PEM.
        pub ca: Option<PathBuf> = None ("system") => file_path,
    }
}

const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// Records an ACME server without names of listeners, and names without a server.
pub(super) fn check(root: &Object<'_>, listen: &[ListenerConfig]) {
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
}
