use std::path::Path;

use postern_core::config;
use postern_core::testing::{ConfigurationReference, IDENTITY_TABLES, assert_schema_written};

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

/// Every key of `notify.toml` but those of `[identity]`. `FOLDER` is replaced by a folder with the
/// files.
const EVERY_KEY: &str = r#"
database = "postgres://db/notify"
database_connections = 10
cache = "memory:"
actor_service = "http://127.0.0.1:8504"
trusted_proxies = ["10.0.0.0/8"]
public_url = "https://gateway.example"
users_may_address_anyone = false
users_may_send_urgent = false
unverified_addresses = ["push"]
user_quota = 600
service_quota = 60000
[[listen]]
address = "127.0.0.1:8502"
[admin]
address = "127.0.0.1:8511"
hosts = ["metrics.internal"]
token_env = "POSTERN_ADMIN_TOKEN"
[log]
format = "json"
filter = "info"
[access]
readers = ["support"]
[templates]
folder = "conf/templates"
default_locale = "en"
[queue]
connections = 6
email_permits = 64
sms_permits = 64
push_permits = 64
bodies = "16MiB"
retention = "90d"
[[provider]]
name = "smtp"
channel = "email"
kind = "smtp"
weight = 2
concurrency = 8
rate = 10
host = "mail.example"
port = 587
tls = "starttls"
ca_file = "FOLDER/ca.pem"
username = "u"
password_env = "NOTIFY_SMTP_PASSWORD"
from = "postern@example.com"
from_name = "Postern"
return_path = "bounces@example.com"
hello = "mail.example.com"
[[provider]]
name = "twilio"
channel = "sms"
kind = "twilio"
account = "AC00000000000000000000000000000000"
auth_token_env = "NOTIFY_SMTP_PASSWORD"
from = "+14155550100"
base = "https://api.twilio.com"
[[provider]]
name = "twilio-service"
channel = "sms"
kind = "twilio"
account = "AC00000000000000000000000000000000"
auth_token_env = "NOTIFY_SMTP_PASSWORD"
messaging_service = "MG00000000000000000000000000000000"
[[provider]]
name = "http"
channel = "sms"
kind = "http"
url = "https://sms.example/send"
authorization_env = "NOTIFY_SMTP_PASSWORD"
body = '{"id": {{ id }}}'
[[provider]]
name = "fcm"
channel = "push"
kind = "fcm"
account_file = "FOLDER/account.json"
[[provider]]
name = "web-push"
channel = "push"
kind = "web-push"
private_key_env = "VAPID_KEY"
contact = "mailto:ops@example.com"
[[provider]]
name = "file"
channel = "push"
kind = "file"
folder = "var/push"
[webhooks.twilio]
auth_token_env = "NOTIFY_SMTP_PASSWORD"
[webhooks.sns]
topics = ["arn:aws:sns:us-west-2:123456789012:mail-events"]
[webhooks.sendgrid]
public_key = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEaxfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpZP40Li/hp/m47n60p8D54WK84zV2sxXs7LtkBoN79R9Q=="
[webhooks.mailgun]
signing_key_env = "NOTIFY_SMTP_PASSWORD"
[webhooks.standard]
secret_env = "WEBHOOK_SECRET"
[tracing]
endpoint = "http://127.0.0.1:4318"
sample_ratio = 0.1
headers = { authorization = "NOTIFY_SMTP_PASSWORD" }
"#;

#[test]
fn every_key_is_in_the_reference_and_in_the_schema() {
    let folder = tempfile::tempdir().expect("a folder");
    let account = r#"{"project_id": "p", "client_email": "a@b.example", "private_key": "k",
        "token_uri": "https://oauth2.example/token"}"#;
    std::fs::write(folder.path().join("account.json"), account).expect("written");
    std::fs::write(folder.path().join("ca.pem"), "x").expect("written");
    let sample = EVERY_KEY.replace("FOLDER", &folder.path().display().to_string());
    let variables = [
        ("IDP_ACTOR_POOL_ID", "us-west-2_a"),
        ("IDP_ACTOR_CLIENT_ID", "a"),
        ("IDP_SERVICE_POOL_ID", "us-west-2_s"),
        ("IDP_SERVICE_CLIENT_ID", "s"),
        ("IDP_ACTOR_CLIENT_SECRET", "x"),
        ("IDP_SERVICE_CLIENT_SECRET", "x"),
        ("IDP_SERVICE_ACCOUNT_USERNAME", "u"),
        ("IDP_SERVICE_ACCOUNT_PASSWORD", "x"),
        ("NOTIFY_SMTP_PASSWORD", "x"),
        ("POSTERN_ADMIN_TOKEN", "0123456789abcdef0123456789abcdef"),
        ("VAPID_KEY", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE"),
        ("WEBHOOK_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
    ];
    let reference = ConfigurationReference {
        sample: &format!("{sample}{IDENTITY_TABLES}"),
        document: include_str!("../../../docs/reference/configuration.md"),
        sections: &[
            "## Log",
            "## All processes",
            "## Notifications: `notify.toml`",
        ],
    };
    let accepted = reference.assert_complete(|root| Config::read(root, &Env::from(variables)));
    let schema = reference.schema("Postern notification service configuration", &accepted);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("notify.schema.json");
    assert_schema_written(&path, &schema);
}
