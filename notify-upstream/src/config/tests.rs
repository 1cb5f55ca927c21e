use postern_common::config;

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
fn shipped_file_is_valid() {
    let shipped = include_str!("../../../conf/notify.toml");
    let config = read(shipped).expect("conf/notify.toml is valid");
    assert_eq!(config.listen.port(), 8502);
    assert!(!config.providers.is_empty());
}

#[test]
fn empty_file_yields_all_defaults() {
    let config = read("").expect("a valid configuration");
    assert_eq!(config.database, "sqlite://var/notify.db");
    assert_eq!(
        Channel::ALL.map(|channel| *config.queue.permits.get(channel)),
        [64; 3]
    );
    assert_eq!(config.unverified_addresses, PerChannel::default());
    assert_eq!(
        read("unverified_addresses = ['push']")
            .expect("a valid configuration")
            .unverified_addresses,
        PerChannel::from_fn(|channel| channel == Channel::Push)
    );
}

#[test]
fn all_errors_are_reported_with_their_lines() {
    let refused = read(
        "listne = '127.0.0.1:1'\n[queue]\nretention = '1d'\nbodies = '1MiB'\n[[provider]]\nname = 'smtp'\nchannel = 'email'\nkind = 'smtp'\n\
         host = 'mail.example'\ntls = 'none'\nfrom = 'nobody'\nusername = 'u'\npassword_env = 'NOT_THERE'\n",
    )
    .expect_err("invalid configuration");
    for part in [
        "notify.toml:1: listne: is not a known field; did you mean `listen`?",
        "notify.toml:3: queue.retention: must be at least 40d",
        "notify.toml:4: queue.bodies: must be at least 2MiB",
        "notify.toml:10: provider.0.tls: `none` is allowed only",
        "notify.toml:11: provider.0.from: must be an e-mail address",
        "notify.toml:13: provider.0.password_env: the environment has no NOT_THERE",
    ] {
        assert!(refused.contains(part), "{part} in\n{refused}");
    }
}
