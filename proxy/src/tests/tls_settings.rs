//! Mistakes in `[listen.tls]` and `[acme]`, and in the files that they name.

use postern_core::config::parse;

use super::certificate_folder::CertificateFolder;
use super::env;
use crate::{Config, check_files};

/// Returns what is wrong with these lines of `[listen.tls]`, or nothing.
fn mistakes(tls: &str, files: bool) -> String {
    let text = format!(
        "[[listen]]\naddress = \"127.0.0.1:1\"\n[listen.tls]\n{tls}\n[upstream.a]\naddresses = [\"127.0.0.1:2\"]\n"
    );
    let read = parse("p.toml", &text, |root| {
        let config = Config::read(root, &env())?;
        if files {
            check_files(root, &config);
        }
        Some(config)
    });
    read.err()
        .map(|exit| exit.message().to_owned())
        .unwrap_or_default()
}

/// Asserts that these lines have this mistake, or none if it is empty.
#[track_caller]
fn assert_mistake(tls: &str, expected: &str) {
    let found = mistakes(tls, false);
    let is_expected = match expected {
        "" => found.is_empty(),
        expected => found.contains(expected),
    };
    assert!(is_expected, "{tls}: {found}");
}

#[test]
fn contradictory_tls_setting_is_rejected() {
    let pair = "certificate = \"a\"\nkey = \"b\"\n";
    let principal = "client_certificates = [{ uri = \"u\", service = \"s\" }]\n";
    for (tls, expected) in [
        (pair.to_owned(), ""),
        (String::new(), "certificate and key are required"),
        ("key = \"b\"".to_owned(), "certificate and key are required"),
        (
            "names = [\"a.test\"]".to_owned(),
            "names requires certificate",
        ),
        (
            format!("{pair}client_auth = \"optional\""),
            "require client_ca",
        ),
        (format!("{pair}{principal}"), "require client_ca"),
        (
            format!("{pair}client_ca = \"c\"\nclient_auth = \"off\""),
            "client_auth is off, with a client_ca",
        ),
        (
            format!("{pair}client_ca = \"c\"\nclient_certificates = [{{ service = \"s\" }}]"),
            "exactly one of uri, dns, email and common_name",
        ),
        (
            format!(
                "{pair}client_ca = \"c\"\nclient_certificates = [{{ uri = \"u\", dns = \"d\", service = \"s\" }}]"
            ),
            "exactly one of uri, dns, email and common_name",
        ),
        (
            format!(
                "{pair}client_ca = \"c\"\nclient_certificates = [{{ uri = \"ü\", service = \"s\" }}]"
            ),
            "must be visible ASCII",
        ),
    ] {
        assert_mistake(&tls, expected);
    }
}

#[test]
fn unknown_or_contradictory_protocol_is_rejected() {
    let pair = "certificate = \"a\"\nkey = \"b\"\n";
    for (tls, expected) in [
        (
            format!(
                "{pair}client_ca = \"c\"\nclient_certificates = [{{ uri = \"u\", service = \"s\" }}, {{ uri = \"u\", \
                 service = \"t\" }}]"
            ),
            "u occurs twice",
        ),
        (
            format!("{pair}min_version = \"1.1\""),
            "must be one of 1.2, 1.3",
        ),
        (
            format!("{pair}ciphers = \"old\""),
            "must be one of intermediate, modern",
        ),
        (
            format!("{pair}min_version = \"1.2\"\nciphers = \"modern\""),
            "modern is for min_version",
        ),
        (
            format!("{pair}min_version = \"1.3\"\nciphers = \"modern\""),
            "",
        ),
        (
            format!("{pair}names = [\"*.*.test\"]"),
            "must be a host name",
        ),
        (format!("{pair}names = []"), "must not be empty"),
        (
            "acme = [\"a.test\"]".to_owned(),
            "requires the table [acme]",
        ),
        (
            format!("{pair}[acme]\naccept_terms = true\nstore = \"s\""),
            "no listener has tls.acme",
        ),
    ] {
        assert_mistake(&tls, expected);
    }
}

#[test]
fn name_or_account_that_acme_cannot_use_is_rejected() {
    let acme = "[acme]\naccept_terms = true\nstore = \"s\"\n";
    for (tls, expected) in [
        (format!("acme = [\"a.test\"]\n{acme}"), ""),
        (format!("acme = [\"*.a.test\"]\n{acme}"), "dns-01"),
        (
            format!("acme = [\"192.0.2.1\"]\n{acme}"),
            "must be a host name",
        ),
        (
            format!("acme = [\"localhost\"]\n{acme}"),
            "must be a host name",
        ),
        (
            format!("acme = [\"../a.test\"]\n{acme}"),
            "must be a host name",
        ),
        (
            format!("acme = [\"a.test\"]\n{}", acme.replace("true", "false")),
            "agrees to the terms of service",
        ),
        (
            format!("acme = [\"a.test\"]\n{acme}directory = \"http://a.test/\""),
            "must be an https URL",
        ),
        (
            format!("acme = [\"a.test\"]\n{acme}challenge = \"http-01\""),
            "requires a listener without TLS",
        ),
        (
            format!("acme = [\"a.test\"]\n{acme}contact = [\"ops@a.test\"]"),
            "must be a URL such as mailto:",
        ),
    ] {
        assert_mistake(&tls, expected);
    }
}

#[test]
fn unusable_tls_file_is_reported_at_its_key() {
    let files = CertificateFolder::new();
    files.issue("first", &["a.test", "b.test"]);
    files.issue("second", &["b.test"]);
    files.issue("nameless", &[]);
    files.write("text", "no PEM");
    let folder = files.folder().display().to_string();
    let (first, second) = (files.keys("first"), files.keys("second"));
    let entry = |lines: &str| format!("{first}[[listen.tls.certificates]]\n{lines}");
    for (tls, expected) in [
        (entry(&second), ""),
        (
            first.replace("first.key", "text"),
            "p.toml:5: listen.0.tls.key:",
        ),
        (
            format!("{first}client_ca = \"$/text\""),
            "p.toml:6: listen.0.tls.client_ca:",
        ),
        (
            format!("{first}client_ca = \"$/ca.pem\"\nclient_crl = \"$/ca.pem\""),
            "p.toml:7: listen.0.tls.client_crl:",
        ),
        (
            first.replace("first.key", "second.key"),
            "p.toml:3: listen.0.tls:",
        ),
        (
            entry(&second.replace("second.pem", "text")),
            "p.toml:7: listen.0.tls.certificates.0.certificate:",
        ),
        (entry(&files.keys("nameless")), "contains no DNS name"),
        (
            entry(&format!("{second}client_ca = \"$/ca.pem\"")),
            "b.test is a name of two certificates with different client authentication",
        ),
    ] {
        let found = mistakes(&tls.replace('$', &folder), true);
        let is_expected = match expected {
            "" => found.is_empty(),
            expected => found.contains(expected),
        };
        assert!(is_expected, "{tls}: {found}");
    }
}
