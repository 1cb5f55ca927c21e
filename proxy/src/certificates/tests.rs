//! Tests of names and certificates.

use std::sync::{Arc, LazyLock};

use http::HeaderMap;
use postern_core::Clock;
use postern_http::message::head::is_authority;
use proptest::collection::vec;
use proptest::prelude::*;

use super::client_auth::TlsClient;
use super::hosts::HostGuard;
use super::server_tls::ServerTls;
use crate::config::{CertificateConfig, CertificateSource, ClientAuthConfig, ListenerTlsConfig};
use crate::config::{HostPattern, MethodSet, PathPattern, RoutePattern};
use crate::routing::{RouteMatcher, RouteRequest};
use crate::telemetry::metrics::GatewayMetrics;

static POLICIES: LazyLock<(tempfile::TempDir, [Arc<ClientAuthConfig>; 2])> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let made = rcgen::generate_simple_self_signed(["ca.test".to_owned()]).expect("a certificate");
    let policies = [1, 2].map(|policy| {
        let ca = folder.path().join(format!("{policy}.pem"));
        std::fs::write(&ca, made.cert.pem()).expect("writes");
        Arc::new(ClientAuthConfig {
            ca,
            crl: None,
            required: true,
            principals: Vec::new(),
        })
    });
    (folder, policies)
});

static METRICS: LazyLock<GatewayMetrics> =
    LazyLock::new(|| GatewayMetrics::new().expect("metrics"));

/// Returns a listener for these names, each with a client authentication or, for 0, none.
fn listener(certified: &[(String, usize)]) -> Option<Arc<ServerTls>> {
    let certificates = certified.iter().enumerate();
    let certificates = certificates.map(|(at, (name, policy))| CertificateConfig {
        key_prefix: format!(".certificates.{at}"),
        source: CertificateSource::Acme(name.clone()),
        client_auth: policy.checked_sub(1).map(|at| Arc::clone(&POLICIES.1[at])),
    });
    let source = ListenerTlsConfig {
        certificates: certificates.collect(),
        requires_tls13: false,
        http2: true,
    };
    let metrics = Arc::clone(&METRICS.certificates);
    ServerTls::load(source, Clock::system(), metrics)
        .ok()
        .map(Arc::new)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    /// A request that a route accepts by a name with client authentication needs this
    /// authentication; 0 stands for none.
    #[test]
    fn route_of_a_protected_name_needs_its_certificate(
        certified in vec(("(\\*\\.)?[ab](\\.[ab]){0,2}", 0..3_usize), 1..6),
        hosts in vec("(\\*\\.)?[ab](\\.[ab]){0,2}", 1..4),
        authority in "(\\.?[abA]){1,5}\\.{0,2}(:80)?",
        passed in 0..6_usize,
    ) {
        let Some(listener) = listener(&certified) else {
            return Err(TestCaseError::reject("two certificates for a name"));
        };
        let parsed = hosts.iter().map(|host| HostPattern::parse(host).expect("a pattern"));
        let pattern = RoutePattern {
            hosts: parsed.collect(),
            path: PathPattern::parse("/a").expect("a path"),
            methods: MethodSet::ALL,
            headers: Vec::new(),
            queries: Vec::new(),
        };
        let request = RouteRequest {
            host: &authority,
            path: "/a",
            query: None,
            method: "GET",
            headers: &HeaderMap::new(),
        };
        let is_found = RouteMatcher::new(vec![pattern.clone()]).find(&request).is_some();
        if is_found && is_authority(authority.as_bytes()) {
            let at = passed.min(certified.len() - 1);
            let client = listener.client_authentication(&listener.current.load(), at);
            let client = client.map(|client| TlsClient::identify(client, None));
            let guard = HostGuard::new(vec![Arc::clone(&listener)]);
            let is_accepted =
                guard.is_none_or(|it| it.accepts(&authority, &pattern.hosts, client.as_ref()));
            let plain = authority.to_lowercase().replace(":80", "");
            let plain = plain.trim_end_matches('.').to_owned();
            let matching = hosts.iter().filter(|host| match host.strip_prefix('*') {
                Some(below) => plain.ends_with(below),
                None => plain == **host,
            });
            let policies = matching.chain([&plain]).filter_map(|name| {
                certified.iter().find(|(known, _)| known == name)
            });
            for (name, policy) in policies {
                let needs = *policy > 0 && *policy != certified[at].1;
                prop_assert!(!(needs && is_accepted), "{name} is accepted with {passed}");
            }
        }
    }
}
