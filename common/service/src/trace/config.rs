//! The configuration table `[tracing]`.

use http::{HeaderName, HeaderValue};
use url::Url;

use postern_core::Secret;
use postern_core::config::Env;
use postern_core::decode::{Field, Object};

/// `[tracing]`: export of OpenTelemetry spans.
#[derive(Clone, Debug, PartialEq)]
pub struct TracingConfig {
    /// The URL to which spans are posted as OTLP in protobuf; if it has no path, `/v1/traces` is
    /// added.
    pub(super) endpoint: Url,
    /// The sampled fraction of traces that start here; default 0.01. The decision of a caller is
    /// kept.
    pub(super) sample_ratio: f64,
    /// Header fields of export requests, such as the authorization of a hosted collector.
    pub(super) headers: Vec<(HeaderName, Secret)>,
}

// === impl TracingConfig ===

impl TracingConfig {
    /// Reads the optional table `[tracing]` of `root`.
    #[must_use]
    pub fn read_optional(root: &Object<'_>, env: &Env) -> Option<Self> {
        root.section("tracing", |table| Self::read(table, env))
    }

    fn read(table: &Object<'_>, env: &Env) -> Option<Self> {
        let sample_ratio = table.or("sample_ratio", 0.01, |field| field.number(0.0..=1.0));
        let headers = table.section("headers", |headers| {
            Some(headers.entries(|name, field| read_header(name, field, env)))
        });
        let endpoint = table.required("endpoint", read_endpoint);
        Some(Self {
            endpoint: endpoint?,
            sample_ratio,
            headers: headers.unwrap_or_default(),
        })
    }
}

fn read_endpoint(field: Field<'_>) -> Option<Url> {
    let mut url = field.url()?;
    if url.query().is_some() || url.fragment().is_some() {
        return field.fail("invalid_format", "must be a URL without a query");
    }
    if url.path() == "/" {
        url.set_path("/v1/traces");
    }
    Some(url)
}

/// Reads a header field whose value is the name of an environment variable.
fn read_header(name: &str, field: Field<'_>, env: &Env) -> Option<(HeaderName, Secret)> {
    let variable = field.text(1..=255)?;
    let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
        return field.fail("invalid_format", "the key must be a header field name");
    };
    let value = match env.required_secret(&variable) {
        Ok(value) => value,
        Err(detail) => return field.reject("invalid_secret", detail),
    };
    if HeaderValue::from_str(value.expose()).is_err() {
        let detail = format!("{variable} is not a header field value");
        return field.reject("invalid_format", detail);
    }
    Some((name, value))
}
