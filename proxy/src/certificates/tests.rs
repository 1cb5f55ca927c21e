//! Tests of names and certificates.

use super::leaf::Leaf;
use super::names::{NameIndex, host_name};

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
    }
}

#[test]
fn host_name_is_without_port_case_and_final_dot() {
    for (authority, expected) in [
        ("Example.COM", "example.com"),
        ("example.com:8443", "example.com"),
        ("example.com.:8443", "example.com"),
        ("[::1]:8443", "[::1]:8443"),
        ("", ""),
    ] {
        assert_eq!(host_name(authority), expected, "{authority}");
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
