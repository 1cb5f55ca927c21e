use std::time::Duration;

use super::*;
use crate::tests::rows;

const NOW: Timestamp = Timestamp(1_700_000_000_000);

/// Returns a key for `partner-x` with the scope `read`, and its entry.
fn created(seed: u8, lifetime: Option<Duration>) -> (String, String) {
    let new = NewApiKey {
        name: "partner-x".to_owned(),
        scopes: vec!["read".to_owned()],
        lifetime,
    };
    let created = create(&new, &[seed; 38], NOW).expect("valid");
    (created.key.expose().to_owned(), created.entry)
}

fn keys(text: &str) -> Result<ApiKeys, String> {
    let parsed = ApiKeys::parse(Path::new("keys.toml"), text);
    parsed.map_err(|exit| exit.message().to_owned())
}

#[test]
fn other_keys_are_rejected() {
    let (key, entry) = created(1, None);
    let keys = keys(&entry).expect("valid");
    let (unknown, _) = created(2, None);
    let (id, secret) = (&key[3..15], &key[16..]);
    let wrong_secret = format!("pk_{id}_{}", &unknown[16..]);
    for wrong in [
        unknown.as_str(),
        &wrong_secret,
        &key[..58],
        &format!("{key}A"),
        &format!("{key}="),
        &format!("PK_{id}_{secret}"),
        &format!("pk_{id}-{secret}"),
        &format!("pk_{}_{secret}", id.replace('0', "G")),
        &format!("pk_{id}_{}", secret.replacen('A', "+", 1)),
        &format!("pk_{id}_{}\u{e9}", &secret[..41]),
        &format!("pk_\u{1f600}{id}"),
        "pk_",
        "pk_010101010101_",
        "",
    ] {
        let refusal = keys.verify(wrong, NOW).map_err(|problem| problem.code());
        assert_eq!(refusal.err(), Some(Code::InvalidApiKey), "{wrong}");
    }
}

#[test]
fn key_expires() {
    let (key, entry) = created(1, Some(Duration::from_secs(60)));
    let keys = keys(&entry).expect("valid");
    let verify = |seconds| keys.verify(&key, NOW.plus(Duration::from_secs(seconds)));
    assert!(verify(59).is_ok());
    for seconds in [60, 61] {
        let refusal = verify(seconds).map_err(|problem| problem.code());
        assert_eq!(refusal.err(), Some(Code::InvalidApiKey));
    }
}

#[test]
fn mistakes_of_the_file_are_reported() {
    let (_, entry) = created(1, Some(Duration::from_secs(60)));
    for [from, to, wrong] in rows(
        r#"
        id = "01 | id = "0 1 | key.0.id: must be an id of visible
        name = "partner-x"\n | | key.0.name: is required
        partner-x | partner x | key.0.name: must be a name of visible
        ["read"] | ["a b"] | key.0.scopes.0: must be a scope of visible
        sha256 | sha | key.0.sha256: is required
        expires_at = "2 | expires_at = "x | key.0.expires_at: must be an RFC 3339
        [[key]] | [[keys]] | keys: is not a known field
        "#,
    ) {
        let said = keys(&entry.replace(&from, &to)).expect_err(&wrong);
        assert!(said.contains(&wrong), "{said}");
    }
    let said = keys(&format!("{entry}{entry}")).expect_err("the same id");
    let holds = said.contains("a key with this id is listed before");
    assert!(holds, "{said}");
    let other_id = entry.replace("id = \"01", "id = \"02");
    let said = keys(&format!("{entry}{other_id}")).expect_err("the same key");
    let holds = said.contains("a key with this digest is listed before");
    assert!(holds, "{said}");
    let digest = entry.split("sha256 = \"").nth(1).expect("a digest");
    let digest = &digest[..64];
    for (digit, count) in [("0", 64), ("f", 64), ("0", 62), ("x", 64)] {
        let placeholder = entry.replace(digest, &digit.repeat(count));
        let said = keys(&placeholder).expect_err("a placeholder");
        let holds = said.contains("must be the SHA-256 digest of a key");
        assert!(holds, "{said}");
    }
}

#[test]
fn name_that_the_file_cannot_contain_is_rejected() {
    let long = "x".repeat(129);
    for name in ["", "a b", "a\"b", "a\\b", "a\nb", "caf\u{e9}", &long] {
        let new = NewApiKey {
            name: name.to_owned(),
            scopes: Vec::new(),
            lifetime: None,
        };
        let exit = create(&new, &[1; 38], NOW).expect_err("must be rejected");
        assert_eq!(exit.status(), 64, "{name}");
    }
}

#[test]
fn api_key_is_recognised_in_authorization() {
    let keys = "Bearer pk_x|bearer  pk_x|Token\tpk_x|pk_x|Bearer,pk_x|Bearer \"pk_x\"|\
        Bearer token=pk_x|Basic cGtfeA==|basic  dXNlcjpwa194";
    for value in keys.split('|') {
        assert!(has_api_key(value.as_bytes()), "{value}");
    }
    let others =
        "Bearer eyJ|Bearer eyJ.pk_x.pk_|Bearer cGtfeA==|Basic cGs=|Basic|Bearer x_pk_|Bearer|";
    for value in others.split('|') {
        assert!(!has_api_key(value.as_bytes()), "{value}");
    }
}

#[test]
fn file_that_others_may_write_is_rejected() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("keys.toml");
    std::fs::write(&path, "").expect("writes");
    for (mode, is_accepted) in [(0o600, true), (0o644, true), (0o646, false)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("sets");
        assert_eq!(ApiKeys::load(&path).is_ok(), is_accepted, "{mode:o}");
    }
}
