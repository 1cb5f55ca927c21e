//! The client of a request, as far as it is known before authentication.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use postern_core::email::EmailAddress;

#[derive(Clone, Debug)]
pub(crate) struct ClientContext {
    /// The id of the request, for the audit log.
    pub(crate) request_id: Arc<str>,
    /// The client's address, for the attempt limits and, as its network, for the audit trail. Never
    /// logged.
    pub(crate) address: Option<IpAddr>,
    pub(crate) locale: Option<Arc<str>>,
    /// What the flow has found out for the audit trail. Clones share it.
    pub(crate) details: Arc<RequestDetails>,
}

/// Details of a request that its response does not show and its audit events have. Each is set once.
#[derive(Debug, Default)]
pub(crate) struct RequestDetails {
    pub(crate) email: OnceLock<EmailAddress>,
    /// The reason of the outcome that the response hides, such as `throttled`.
    pub(crate) reason: OnceLock<&'static str>,
}

// === impl ClientContext ===

impl ClientContext {
    pub(crate) fn new(request_id: Arc<str>, address: Option<IpAddr>) -> Self {
        Self {
            request_id,
            address,
            locale: None,
            details: Arc::default(),
        }
    }

    /// Returns the client of a person with the first of these languages, if it is valid.
    pub(crate) fn speaking(&self, languages: Option<&str>) -> Self {
        let locale = languages.and_then(preferred_locale);
        Self {
            locale: locale.or_else(|| self.locale.clone()),
            ..self.clone()
        }
    }
}

/// Returns the first language tag of `Accept-Language` (RFC 9110 section 12.5.4), which browsers
/// order by preference, if it has the form that the notification service accepts.
fn preferred_locale(header: &str) -> Option<Arc<str>> {
    let tag = header.split([',', ';']).next()?.trim();
    let is_subtag = |(index, text): (usize, &str)| match index {
        0 => matches!(text.len(), 2..=3) && text.bytes().all(|byte| byte.is_ascii_alphabetic()),
        _ => matches!(text.len(), 2..=8) && text.bytes().all(|byte| byte.is_ascii_alphanumeric()),
    };
    let is_valid = tag.len() <= 35 && tag.split('-').enumerate().all(is_subtag);
    is_valid.then(|| tag.into())
}

// === impl RequestDetails ===

impl RequestDetails {
    /// Sets the e-mail address that the request names. Of several calls the first one counts.
    pub(crate) fn set_email(&self, email: &EmailAddress) {
        self.email.get_or_init(|| email.clone());
    }
}
