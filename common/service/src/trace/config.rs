//! The configuration table `[tracing]`.

use http::{HeaderName, HeaderValue};
use url::Url;

use postern_core::Secret;
use postern_core::config::{Env, secret};
use postern_core::decode::{Field, Object};
use postern_core::settings;

settings! {
    /// Export of OpenTelemetry spans. Read at start.
    #[derive(Clone, Debug, PartialEq)]
    pub struct TracingConfig(table, env: &Env) {
        /// The collector, such as `http://127.0.0.1:4318`; without a path `/v1/traces` is added.
        pub(super) endpoint: Url => read_endpoint,
        /// Fraction of the traces that start here; the decision of a caller is kept.
        pub(super) sample_ratio: f64 = 0.01 => |field| field.number(0.0..=1.0),
        /// Header fields of export requests, such as `authorization`: the variables of their values.
        pub(super) headers: Vec<(HeaderName, Secret)> = {} => |field| field.object(|headers| {
            Some(headers.entries(|name, field| read_header(name, field, env)))
        }),
    }
}

impl TracingConfig {
    /// Reads the optional table `[tracing]` of `root`.
    #[must_use]
    pub fn read_optional(root: &Object<'_>, env: &Env) -> Option<Self> {
        root.declare("tracing", module_path!(), &[], "none");
        root.section("tracing", |table| Self::read(table, env))
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
    let value = secret(field, env)?;
    let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
        return field.fail("invalid_format", "the key must be a header field name");
    };
    if HeaderValue::from_str(value.expose()).is_err() {
        return field.reject("invalid_format", "does not name a header field value");
    }
    Some((name, value))
}
