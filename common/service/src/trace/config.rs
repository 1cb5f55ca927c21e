//! The configuration table `[tracing]`.

use http::{HeaderName, HeaderValue};
use url::Url;

use postern_core::Secret;
use postern_core::config::Env;
use postern_core::decode::{Field, Object};

/// The protocol of the export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over HTTP, in binary protobuf.
    #[default]
    HttpProtobuf,
    /// OTLP over gRPC, without TLS.
    Grpc,
}

/// `[tracing]`: export of OpenTelemetry spans.
#[derive(Clone, Debug, PartialEq)]
pub struct TracingConfig {
    /// The collector. With [`Protocol::HttpProtobuf`] the URL to which spans are posted; if it has
    /// no path, `/v1/traces` is added.
    pub(super) endpoint: Url,
    /// The protocol; default [`Protocol::HttpProtobuf`].
    pub(super) protocol: Protocol,
    /// The sampled fraction of traces that start here; default 0.01. The decision of a caller is
    /// kept.
    pub(super) sample_ratio: f64,
    /// `service.instance.id`; default a random UUID for each start.
    pub(super) service_instance: Option<String>,
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
        let protocols = [
            ("http/protobuf", Protocol::HttpProtobuf),
            ("grpc", Protocol::Grpc),
        ];
        let protocol = table.or("protocol", Protocol::HttpProtobuf, |field| {
            match field.one_of(&protocols)? {
                Protocol::Grpc if !cfg!(feature = "otlp-grpc") => field.fail(
                    "invalid_choice",
                    "this program is built without the feature otlp-grpc; use http/protobuf",
                ),
                protocol @ (Protocol::HttpProtobuf | Protocol::Grpc) => Some(protocol),
            }
        });
        let sample_ratio = table.or("sample_ratio", 0.01, |field| field.number(0.0..=1.0));
        let service_instance = table.optional("service_instance", |field| field.text(1..=255));
        let headers = table.section("headers", |headers| {
            Some(headers.entries(|name, field| read_header(name, field, env)))
        });
        let endpoint = table.required("endpoint", |field| read_endpoint(field, protocol));
        Some(Self {
            endpoint: endpoint?,
            protocol,
            sample_ratio,
            service_instance,
            headers: headers.unwrap_or_default(),
        })
    }
}

fn read_endpoint(field: Field<'_>, protocol: Protocol) -> Option<Url> {
    let mut url = field.url()?;
    if protocol == Protocol::Grpc && url.scheme() != "http" {
        return field.fail(
            "invalid_format",
            "must be an http URL with protocol grpc; use http/protobuf for a collector with TLS",
        );
    }
    if url.query().is_some() || url.fragment().is_some() {
        return field.fail("invalid_format", "must be a URL without a query");
    }
    if protocol == Protocol::HttpProtobuf && url.path() == "/" {
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
    let Some(value) = env.secret(&variable) else {
        let detail = format!("the environment variable {variable} is not set");
        return field.reject("missing_field", detail);
    };
    if HeaderValue::from_str(value.expose()).is_err() {
        let detail = format!("{variable} is not a header field value");
        return field.reject("invalid_format", detail);
    }
    Some((name, value))
}
