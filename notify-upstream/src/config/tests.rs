use std::path::Path;

use postern_core::config;
use postern_core::testing::DeclaredSettings;

use super::*;

fn env() -> Env {
    Env::from([
        ("IDP_ACTOR_POOL_ID", "us-west-2_actor"),
        ("IDP_ACTOR_CLIENT_ID", "a"),
        ("IDP_SERVICE_POOL_ID", "us-west-2_service"),
        ("IDP_SERVICE_CLIENT_ID", "s"),
        ("NOTIFY_SMTP_PASSWORD", "hunter2"),
    ])
}

fn read(text: &str) -> Result<Config, String> {
    config::parse("notify.toml", text, |root| Config::read(root, &env()))
        .map_err(|exit| exit.message().to_owned())
}

#[test]
fn a_missing_secret_hides_no_other_key() {
    let refused = read(
        "[[provider]]\nname = 'sms'\nchannel = 'sms'\nkind = 'http'\nurl = 'https://sms.example'\nauthorization_env = 'NOT_THERE'\n\
         body = '{}'\n",
    );
    let refused = refused.expect_err("no secret");
    let last = refused.lines().next_back();
    assert_eq!(last, refused.lines().next(), "one line");
    assert!(
        refused.ends_with("the variable NOT_THERE is not set"),
        "{refused}"
    );
}

/// Providers of each kind, on which their keys depend.
const FORMS: &str = r#"
[[provider]]
kind = "smtp"
username = "u"
[[provider]]
kind = "twilio"
[[provider]]
kind = "http"
[[provider]]
kind = "fcm"
[[provider]]
kind = "web-push"
[[provider]]
kind = "file"
"#;

#[test]
fn every_key_is_in_the_reference_and_in_the_schema() {
    let read = |root: &Object<'_>| Config::read(root, &env());
    let settings = DeclaredSettings::record(FORMS, read);
    settings.assert_documented("notify.toml");
    settings.assert_shipped("notify.toml", read);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("notify.schema.json");
    settings.assert_schema("Postern notification service configuration", &path);
}
