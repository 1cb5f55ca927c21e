//! Mistakes in `[listen.tls]` and `[acme]`, and in the files that they name.

use super::*;
use crate::check_files;

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

#[test]
fn contradictory_tls_setting_is_rejected() {
    let pair = "certificate = \"a\"\nkey = \"b\"";
    let acme = "[acme]\naccept_terms = true\nstore = \"s\"";
    for [tls, expected] in rows(
        r#"
        PAIR |
        | certificate and key are required
        key = "b" | certificate and key are required
        PAIR\nclient_auth = "optional" | require client_ca
        PAIR\nclient_certificates = [{ uri = "u", service = "s" }] | require client_ca
        PAIR\nclient_ca = "c"\nclient_auth = "off" | client_auth is off, with a client_ca
        PAIR\nclient_ca = "c"\nclient_certificates = [{ service = "s" }] | exactly one of uri and dns
        PAIR\nclient_ca = "c"\nclient_certificates = [{ uri = "u", dns = "d", service = "s" }] | exactly one of uri and dns
        PAIR\nclient_ca = "c"\nclient_certificates = [{ uri = "ü", service = "s" }] | must be visible ASCII
        PAIR\nclient_ca = "c"\nclient_certificates = [{ uri = "u", service = "s" }, { uri = "u", service = "t" }] | u occurs twice
        PAIR\nmin_version = "1.1" | must be one of 1.2, 1.3
        acme = ["a.test"] | requires the table [acme]
        PAIR\nACME | no listener has tls.acme
        acme = ["a.test"]\nACME |
        acme = ["*.a.test"]\nACME | dns-01
        acme = ["192.0.2.1"]\nACME | must be a host name
        acme = ["localhost"]\nACME | must be a host name
        acme = ["../a.test"]\nACME | must be a host name
        acme = ["a.test"]\n[acme]\naccept_terms = false\nstore = "s" | agrees to the terms of service
        acme = ["a.test"]\nACME\ndirectory = "http://a.test/" | must be an https URL
        "#,
    ) {
        let tls = tls.replace("PAIR", pair).replace("ACME", acme);
        let found = mistakes(&tls, false);
        let is_expected = found.is_empty() == expected.is_empty() && found.contains(&expected);
        assert!(is_expected, "{tls}: {found}");
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
    for [tls, expected] in rows(
        r#"
        FIRST FURTHER SECOND |
        certificate = "$/first.pem"\nkey = "$/text" | p.toml:5: listen.0.tls.key:
        FIRST client_ca = "$/text" | p.toml:6: listen.0.tls.client_ca:
        FIRST client_ca = "$/ca.pem"\nclient_crl = "$/ca.pem" | p.toml:7: listen.0.tls.client_crl:
        certificate = "$/first.pem"\nkey = "$/second.key" | p.toml:3: listen.0.tls:
        FIRST FURTHER certificate = "$/text"\nkey = "$/second.key" | p.toml:7: listen.0.tls.certificates.0.certificate:
        FIRST FURTHER NAMELESS | contains no DNS name
        FIRST FURTHER SECOND client_ca = "$/ca.pem" | b.test is a name of two certificates with different client authentication
        "#,
    ) {
        let tls = ["first", "second", "nameless"]
            .iter()
            .fold(tls, |tls, name| {
                tls.replace(&name.to_uppercase(), &files.keys(name))
            })
            .replace("FURTHER", "[[listen.tls.certificates]]\n");
        let found = mistakes(&tls.replace('$', &folder), true);
        let is_expected = found.is_empty() == expected.is_empty() && found.contains(&expected);
        assert!(is_expected, "{tls}: {found}");
    }
}
