use super::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use postern_core::config::parse;
use postern_core::exit::Exit;
use postern_core::testing::DeclaredSettings;
use std::path::Path;

const POOLS: [(&str, &str); 6] = [
    ("IDP_ACTOR_POOL_ID", "us-west-2_actors"),
    ("IDP_ACTOR_CLIENT_ID", "actor-client"),
    ("IDP_SERVICE_POOL_ID", "us-west-2_services"),
    ("IDP_SERVICE_CLIENT_ID", "service-client"),
    ("IDP_SERVICE_ACCOUNT_USERNAME", "auth"),
    ("IDP_SERVICE_ACCOUNT_PASSWORD", "sesame"),
];

fn read(text: &str, more: &[(&str, &str)]) -> Result<Config, Exit> {
    let env: Env = POOLS.iter().chain(more).copied().collect();
    parse("auth.toml", text, |root| Config::read(root, &env))
}

#[test]
fn service_account_is_required() {
    let env: Env = POOLS[..4].iter().copied().collect();
    let exit = parse("auth.toml", "", |root| Config::read(root, &env));
    let exit = exit.expect_err("no service account");
    let variable = "IDP_SERVICE_ACCOUNT_USERNAME";
    assert!(exit.message().contains(variable), "{exit}");
}

#[test]
fn trusted_proxies_are_required_on_public_addresses() {
    let exit =
        read("listen = [{ address = '0.0.0.0:8501' }]\n", &[]).expect_err("no trusted proxies");
    assert!(
        exit.message().contains("trusted_proxies is required"),
        "{exit}"
    );
    let trusted = "listen = [{ address = '0.0.0.0:8501' }]\ntrusted_proxies = ['10.0.0.0/8']\n";
    let trusted = read(trusted, &[]).expect("a config").trusted_proxies;
    assert!(trusted.contains("10.1.2.3".parse().expect("an address")) && !trusted.is_loopback());
    assert!(read("listen = [{ address = '[::1]:8501' }]\n", &[]).is_ok());
}

#[test]
fn store_urls_of_the_environment_have_precedence() {
    let stores = [
        ("AUTH_DATABASE", "postgres://db/postern"),
        ("AUTH_CACHE", "redis://cache:6379"),
    ];
    let config = read("database = 'sqlite://var/other.db'", &stores).expect("config");
    assert_eq!(
        (config.database.as_str(), config.cache.as_str()),
        ("postgres://db/postern", "redis://cache:6379")
    );
}

#[test]
fn plain_http_urls_are_rejected_except_loopback() {
    let exit = read(
        "[social]\nissuer = 'http://login.example'\nui = 'http://[::1]:1/'\n",
        &[],
    )
    .expect_err("http");
    assert!(
        exit.message()
            .contains("social.issuer: must be an https URL"),
        "{}",
        exit.message()
    );
    assert!(!exit.message().contains("social.ui"));
}

fn social(text: &str) -> SocialConfig {
    let key = STANDARD.encode(crate::crypto::random::bytes::<32>());
    let variables = [
        ("SOCIAL_OAUTH2_CLIENT_ID", "c"),
        ("SOCIAL_OAUTH2_CLIENT_SECRET", "s"),
        ("SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", key.as_str()),
    ];
    let text = format!("[social]\nui = 'http://127.0.0.1:8500/'\n{text}");
    read(&text, &variables)
        .expect("a config")
        .social
        .expect("on")
}

#[test]
fn authority_of_google_applies_to_google_alone() {
    let google = social("");
    let settings = &google.providers[0].settings;
    assert_eq!(
        settings.authoritative_domains,
        ["gmail.com", "googlemail.com"]
    );
    assert!(google.providers[0].is_google() && google.warnings().is_empty());
    let other = social("issuer = 'https://login.example'");
    let provider = &other.providers[0];
    assert!(provider.settings.authoritative_domains.is_empty() && !provider.is_google());
    assert!(other.warnings().is_empty());
    let text =
        "issuer = 'https://login.example'\nauthoritative_domains = ['login.example', 'Gmail.com']";
    let warnings = social(text).warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("Gmail.com"), "{warnings:?}");
}

#[test]
fn providers_are_read_side_by_side() {
    let apple = "[[social.provider]]\nname = 'apple'\nissuer = 'https://appleid.apple.com'\nclient_id = 'web'\n\
                 client_secret_env = 'SOCIAL_OAUTH2_CLIENT_SECRET'\n";
    let both = social(&format!(
        "redirect_uri = 'https://gateway.example/x'\n{apple}"
    ));
    let [google, apple_read] = &both.providers[..] else {
        panic!("{both:?}");
    };
    assert_eq!((&*google.name, &*apple_read.name), ("google", "apple"));
    let settings = &apple_read.settings;
    assert_eq!(settings.redirect_uri, google.settings.redirect_uri);
    assert!(settings.parameters.is_empty());
    assert!(settings.nonce && settings.pkce && both.warnings().is_empty());
    // Without the variables, the first one is the default.
    let key = STANDARD.encode(crate::crypto::random::bytes::<32>());
    let variables = [
        ("SOCIAL_OAUTH2_CLIENT_SECRET", "s"),
        ("SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", key.as_str()),
    ];
    let head = "[social]\nui = 'http://127.0.0.1:8500/'\n";
    let alone = read(&format!("{head}{apple}"), &variables).expect("a config");
    assert_eq!(alone.social.expect("on").providers[0].name, "apple");
    let loose = apple.to_owned() + "nonce = false\npkce = false\n";
    let loose = read(&format!("{head}{loose}"), &variables).expect("a config");
    let warnings = loose.social.expect("on").warnings();
    assert!(warnings[0].contains("RFC 9700"), "{warnings:?}");
    for (entries, mistake) in [
        (
            format!("{apple}{apple}"),
            "has the name or the issuer of apple",
        ),
        (apple.replace("https:", "http:"), "must be an https URL"),
        (apple.replace("_SECRET'", "_OTHER'"), "is not set"),
        (apple.replace("name = 'apple'\n", ""), "name: is required"),
    ] {
        let exit = read(&format!("{head}{entries}"), &variables).expect_err("rejected");
        assert!(exit.message().contains(mistake), "{exit}");
    }
}

#[test]
fn sample_key_is_rejected() {
    let sample = STANDARD.encode([1; 32]);
    let social = [
        ("SOCIAL_OAUTH2_CLIENT_ID", "c"),
        ("SOCIAL_OAUTH2_CLIENT_SECRET", "s"),
        ("SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", sample.as_str()),
    ];
    let exit = read("[social]\nui = 'http://127.0.0.1:8500/'\n", &social).expect_err("rejected");
    assert!(
        exit.message().contains("is a sample or was typed by hand"),
        "{}",
        exit.message()
    );
}

#[test]
fn every_key_is_in_the_reference_and_in_the_schema() {
    let key = STANDARD.encode(crate::crypto::random::bytes::<32>());
    let secrets = [
        ("SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", &*key),
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
    ];
    let env: Env = POOLS.iter().chain(&secrets).copied().collect();
    let read = |root: &Object<'_>| Config::read(root, &env);
    let settings = DeclaredSettings::record("", read);
    settings.assert_documented("auth.toml");
    settings.assert_shipped("auth.toml", read);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("auth.schema.json");
    settings.assert_schema("Postern authentication service configuration", &path);
}
