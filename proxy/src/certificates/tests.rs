//! Tests of names and certificates.

use http::HeaderMap;
use proptest::collection::vec;
use proptest::prelude::*;

use super::hosts::{demanding_names, is_passed};
use super::leaf::Leaf;
use super::names::NameIndex;
use crate::config::{HostPattern, MethodSet, PathPattern, RoutePattern};
use crate::message::head::is_authority;
use crate::message::host::host_name;
use crate::routing::{RouteMatcher, RouteRequest};

#[test]
fn wildcard_matches_one_label() {
    let mut index = NameIndex::<u8>::default();
    for (name, value) in [
        ("*.example.com", 1),
        ("a.example.com", 2),
        ("example.com.", 3),
    ] {
        *index.entry(name) = value;
    }
    for (host, expected) in [
        ("b.example.com", Some(1)),
        ("a.example.com", Some(2)),
        ("example.com", Some(3)),
        ("a.b.example.com", None),
        (".example.com", None),
        ("com", None),
        ("", None),
        ("*.example.com", Some(1)),
    ] {
        assert_eq!(index.get(host).copied(), expected, "{host}");
        let in_request = expected.or((host == "a.b.example.com").then_some(1));
        let in_request = in_request.or((host == ".example.com").then_some(1));
        assert_eq!(index.closest(host).copied(), in_request, "{host}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// A request that a route accepts by a name with client authentication needs this
    /// authentication; 0 stands for none.
    #[test]
    fn route_of_a_protected_name_needs_its_certificate(
        certified in vec(("(\\*\\.)?[ab](\\.[ab]){0,2}", 0..3_u8), 0..6),
        hosts in vec("(\\*\\.)?[ab](\\.[ab]){0,2}", 1..4),
        authority in "(\\.?[abA]){1,5}\\.{0,2}(:80)?",
        passed in 0..3_u8,
    ) {
        let mut names = NameIndex::<u8>::default();
        for (name, policy) in &certified {
            *names.entry(name) = *policy;
        }
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
            let some = |policy: u8| Some(policy).filter(|policy| *policy > 0);
            let host = host_name(&authority);
            let is_accepted = demanding_names(&host, &pattern.hosts).all(|name| {
                let demanded = names.closest(&name).and_then(|policy| some(*policy));
                is_passed(demanded.into_iter(), some(passed))
            });
            let plain = authority.to_lowercase().replace(":80", "");
            let plain = plain.trim_end_matches('.').to_owned();
            let matching = hosts.iter().filter(|host| match host.strip_prefix('*') {
                Some(below) => plain.ends_with(below),
                None => plain == **host,
            });
            // Of equal names, the last one is in the index.
            let policies = matching.chain([&plain]).filter_map(|name| {
                certified.iter().rev().find(|(known, _)| known == name)
            });
            for (name, policy) in policies {
                let needs = *policy > 0 && *policy != passed;
                prop_assert!(!(needs && is_accepted), "{name} is accepted with {passed}");
            }
        }
    }
}

#[test]
fn leaf_has_its_names_in_lower_case() {
    let names = ["A.example.test", "*.example.test"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let leaf = Leaf::read(made.cert.der()).expect("well-formed");
    assert_eq!(leaf.names, ["a.example.test", "*.example.test"]);
    assert!(leaf.not_before < leaf.not_after);
}
