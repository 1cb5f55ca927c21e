//! The key of a request for consistent hashing.

use std::borrow::Cow;
use std::net::IpAddr;

use http::HeaderName;
use pingora::http::RequestHeader;
use postern_core::token::Caller;
use postern_http::message::headers::is_same_folded;
use url::form_urlencoded;

use crate::config::{ConsistentKey, LoadBalancing};
use crate::upstream::UpstreamPool;

impl UpstreamPool {
    /// Returns the key of a request for [`Self::pick`]; empty unless the upstream uses consistent
    /// hashing. A request without the configured value is hashed by its client address.
    pub(crate) fn hash_key<'r>(
        &self,
        request: &'r RequestHeader,
        caller: Option<&Caller>,
        client: Option<IpAddr>,
    ) -> Cow<'r, [u8]> {
        if let LoadBalancing::Consistent(key) = &self.config.load_balancing {
            key_of(key, request, caller, client)
        } else {
            Cow::Borrowed(&[])
        }
    }
}

fn key_of<'r>(
    key: &ConsistentKey,
    request: &'r RequestHeader,
    caller: Option<&Caller>,
    client: Option<IpAddr>,
) -> Cow<'r, [u8]> {
    let found = match key {
        ConsistentKey::Header(name) => {
            let is_named = |field: &&HeaderName| is_same_folded(field.as_str(), name.as_str());
            let value = request.headers.keys().find(is_named);
            let value = value.and_then(|name| request.headers.get(name));
            value.map(|value| Cow::Borrowed(value.as_bytes()))
        }
        ConsistentKey::Query(name) => query_value(request, name),
        ConsistentKey::Principal => caller.map(|caller| {
            let identity = [caller.issuer().as_bytes(), caller.subject().as_bytes()];
            Cow::Owned(identity.join(&0))
        }),
        ConsistentKey::ClientAddress => None,
    };
    found.unwrap_or_else(|| {
        let address = client.map(|address| address.to_canonical().to_string());
        Cow::Owned(address.unwrap_or_default().into_bytes())
    })
}

/// Returns the first value of a query parameter, as upstreams decode it.
fn query_value<'r>(request: &'r RequestHeader, name: &str) -> Option<Cow<'r, [u8]>> {
    let target = request.raw_path();
    let query = target.splitn(2, |byte| *byte == b'?').nth(1)?;
    let (_, value) = form_urlencoded::parse(query).find(|(found, _)| found == name)?;
    Some(match value {
        Cow::Borrowed(value) => Cow::Borrowed(value.as_bytes()),
        Cow::Owned(value) => Cow::Owned(value.into_bytes()),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use postern_core::token::Service;

    use super::*;

    #[test]
    fn key_is_taken_from_the_configured_part_of_the_request() {
        let mut request =
            RequestHeader::build("GET", b"/a?b=1&us%65r=2%20+&user=3&c", None).expect("a head");
        request.append_header("X_User", "ada").expect("a value");
        request.append_header("X_User", "eve").expect("a value");
        let caller = Caller::Service(Arc::new(Service {
            issuer: "https://issuer".into(),
            subject: "s-1".into(),
            service_id: "auth".into(),
            scopes: Arc::default(),
            expires_at: 0,
        }));
        let client = Some("::ffff:10.0.0.1".parse().expect("an address"));
        let header = |name| ConsistentKey::Header(HeaderName::from_static(name));
        let query = |name: &str| ConsistentKey::Query(name.to_owned());
        for (key, caller, expected) in [
            (header("x-user"), None, &b"ada"[..]),
            (header("x-other"), None, b"10.0.0.1"),
            (query("user"), None, b"2  "),
            (query("c"), None, b""),
            (query("d"), None, b"10.0.0.1"),
            (
                ConsistentKey::Principal,
                Some(&caller),
                b"https://issuer\0s-1",
            ),
            (ConsistentKey::Principal, None, b"10.0.0.1"),
            (ConsistentKey::ClientAddress, Some(&caller), b"10.0.0.1"),
        ] {
            let found = key_of(&key, &request, caller, client);
            assert_eq!(found, expected, "{key:?}");
        }
    }
}
