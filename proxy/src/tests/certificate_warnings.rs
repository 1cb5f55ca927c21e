//! Warnings of `check` about certificates and revocation lists.

use rcgen::{CertificateParams, date_time_ymd};

use super::client_certificates::write_crl;
use super::*;
use crate::certificate_warnings;

/// Noon of 2030-06-01.
const NOW: Timestamp = Timestamp(1_906_545_600_000);

fn valid(from: (i32, u8), until: (i32, u8)) -> impl FnOnce(&mut CertificateParams) {
    move |params| {
        params.not_before = date_time_ymd(from.0, from.1, 1);
        params.not_after = date_time_ymd(until.0, until.1, 20);
    }
}

/// Returns the warnings for a listener with these lines in `[listen.tls]`, without the folder.
fn warnings(files: &CertificateFolder, tls: &str) -> Vec<String> {
    let folder = files.folder().display().to_string();
    let tls = tls.replace('$', &folder);
    let config = read_tables(&format!("[listen.tls]\n{tls}")).expect("valid");
    let all = certificate_warnings(&config, NOW).into_iter();
    all.map(|text| text.replace(&folder, "$")).collect()
}

#[test]
fn certificate_outside_of_its_validity_is_reported() {
    let files = CertificateFolder::new();
    let key = "listen.0.tls.certificate: $/server.pem";
    let expires = "expires at 2030-06-20T00:00:00.000Z, in 18 days";
    let begins = "is not valid before 2030-07-01T00:00:00.000Z";
    for (from, until, expected) in [
        ((2030, 1), (2030, 7), ""),
        ((2030, 1), (2030, 6), expires),
        ((2030, 1), (2030, 5), "expired at 2030-05-20T00:00:00.000Z"),
        ((2030, 7), (2031, 5), begins),
    ] {
        files.issue_with("server", &["open.test"], valid(from, until));
        let found = warnings(&files, &files.keys("server")).concat();
        match expected {
            "" => assert_eq!(found, ""),
            expected => assert_eq!(found, format!("{key}: {expected}")),
        }
    }
}

/// The list is valid for some days from now, long before [`NOW`].
#[test]
fn expired_revocation_list_is_reported() {
    let files = CertificateFolder::new();
    files.issue_with("server", &["open.test"], valid((2030, 1), (2040, 1)));
    write_crl(&files, &[], 3);
    let tls = format!(
        "{}client_ca = \"$/ca.pem\"\nclient_crl = \"$/revoked.crl\"\nclient_auth = \"required\"\n",
        files.keys("server")
    );
    let found = warnings(&files, &tls);
    let expected = "listen.0.tls.client_crl: $/revoked.crl: expired at 20";
    let holds = found.len() == 1 && found[0].starts_with(expected);
    assert!(holds, "{found:?}");
}

#[test]
fn route_that_is_wider_than_a_protected_name_is_reported() {
    let files = CertificateFolder::new();
    files.issue("closed", &["closed.test", "*.closed.test"]);
    let found = |hosts: &str| {
        let keys = files.keys("closed");
        let route = route("r", "/", &format!("hosts = [{hosts}]\npolicy = \"public\""));
        let mut all = warnings(&files, &format!("{keys}client_ca = \"$/ca.pem\"\n{route}"));
        all.retain(|text| text.starts_with("route"));
        all
    };
    for [hosts, open, closed] in rows(
        r#"
        "closed.test", "*.closed.test" | |
        "a.b.closed.test", "*.b.closed.test" | |
        "open.test", "*.open.test" | |
        "*.test" | *.test | *.closed.test
        "closed.test", "open.test" | open.test | closed.test
        "*.closed.test", "*.open.test" | *.open.test | *.closed.test
        "#,
    ) {
        let text = format!(
            "route r: needs a client certificate for {closed}, but not for all hosts of {open}"
        );
        let expected = if open.is_empty() { "" } else { &text };
        assert_eq!(found(&hosts).concat(), expected, "{hosts}");
    }
}
