use super::*;
use crate::config::{Env, parse};
use crate::exit::Exit;

type Variables = [(&'static str, &'static str)];

const ENDPOINT: &str = "AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER";

const POOLS: [(&str, &str); 4] = [
    ("IDP_ACTOR_POOL_ID", "us-west-2_actors"),
    ("IDP_ACTOR_CLIENT_ID", "actor-client"),
    ("IDP_SERVICE_POOL_ID", "us-west-2_services"),
    ("IDP_SERVICE_CLIENT_ID", "service-client"),
];

fn read(text: &str, variables: &Variables) -> Result<IdentityConfig, Exit> {
    let env: Env = variables.iter().copied().collect();
    parse("conf/x.toml", text, |root| IdentityConfig::read(root, &env))
}

/// Returns the messages of a configuration with mistakes.
#[track_caller]
fn mistakes(text: &str, variables: &Variables) -> String {
    let exit = read(text, variables).expect_err("mistakes");
    exit.message().to_owned()
}

/// Amazon's developer guide publishes no example value; the expected one was computed with `openssl
/// dgst -sha256 -hmac`.
#[test]
fn secret_hash_is_hmac_sha_256_of_user_name_and_client_id() {
    let hash = secret_hash("ada@example.com", "1example23456789", "9example87654321");
    assert_eq!(hash, "A211bSmOq2KleGXO1vgSofGFAkO7h5hGvYGZT5U0VU8=");
}

#[test]
fn environment_variables_alone_are_sufficient() {
    let account = [
        ("IDP_SERVICE_ACCOUNT_USERNAME", "auth"),
        ("IDP_SERVICE_ACCOUNT_PASSWORD", "hunter2"),
    ];
    let secrets = [
        ("IDP_ACTOR_CLIENT_SECRET", "s1"),
        ("IDP_SERVICE_CLIENT_SECRET", "s2"),
    ];
    let config = read("", &[&POOLS[..], &account, &secrets].concat()).expect("complete");
    assert_eq!(config.region, "us-west-2");
    let pool = "https://cognito-idp.us-west-2.amazonaws.com/us-west-2_";
    assert_eq!(config.actor.issuer, format!("{pool}actors"));
    let jwks_url = format!("{pool}services/.well-known/jwks.json");
    assert_eq!(config.service.jwks_url.as_str(), jwks_url);
    let hash = secret_hash("ada", "actor-client", "s1");
    assert_eq!(config.actor.secret_hash("ada"), Some(hash));
    let account = config.service_account.as_ref().expect("an account");
    assert_eq!(account.username, "auth");
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn issuer_follows_endpoint_unless_the_file_names_it() {
    let text = "[identity.service]\nissuer = 'https://elsewhere.example/s'\n";
    let endpoint = (ENDPOINT, "http://127.0.0.1:9999/");
    let config = read(text, &[&POOLS[..], &[endpoint]].concat()).expect("complete");
    let issuer = "http://127.0.0.1:9999/us-west-2_actors";
    assert_eq!(config.actor.issuer, issuer);
    assert_eq!(config.service.issuer, "https://elsewhere.example/s");
    assert!(config.service_account.is_none() && config.actor.secret_hash("ada").is_none());
}

#[test]
fn pool_id_stands_for_both_issuers_of_its_partition() {
    for (region, domain) in [
        ("us-west-2", "amazonaws.com"),
        ("us-gov-west-1", "amazonaws.com"),
        ("cn-north-1", "amazonaws.com.cn"),
        ("eusc-de-east-1", "amazonaws.eu"),
        ("us-iso-east-1", "c2s.ic.gov"),
        ("us-isob-east-1", "sc2s.sgov.gov"),
        ("us-isof-south-1", "csp.hci.ic.gov"),
        ("eu-isoe-west-1", "cloud.adc-e.uk"),
    ] {
        let form = |host: &str| format!("https://{host}.{region}.{domain}/us-west-2_actors");
        let both = (form("cognito-idp"), form("issuer-cognito-idp"));
        let swapped = (both.1.clone(), both.0.clone());
        let other = "https://login.example.org".to_owned();
        let named = |issuer: &str| format!("[identity.actor]\nissuer = '{issuer}'\n");
        for (text, issuer, alias) in [
            (String::new(), &both.0, Some(&both.1)),
            (named(&both.0), &both.0, Some(&both.1)),
            (named(&both.1), &swapped.0, Some(&swapped.1)),
            (named(&other), &other, None),
        ] {
            let region = [("CLOUD_REGION", region)];
            let config = read(&text, &[&POOLS[..], &region].concat()).expect("complete");
            assert_eq!(
                (&config.actor.issuer, config.actor.issuer_alias.as_ref()),
                (issuer, alias)
            );
            let trusted = config.issuers();
            assert_eq!(trusted.len(), 2, "one for each pool");
            assert_eq!(trusted[0].rules.alias.as_ref(), alias);
        }
    }
}

#[test]
fn missing_variables_are_all_listed() {
    let missing = POOLS.iter().map(|(name, _)| *name);
    let missing = missing.chain(["IDP_SERVICE_ACCOUNT_PASSWORD"]);
    let expected = missing.map(|name| format!("conf/x.toml:1: the variable {name} is not set"));
    let said = mistakes("", &[("IDP_SERVICE_ACCOUNT_USERNAME", "auth")]);
    assert_eq!(said, expected.collect::<Vec<_>>().join("\n"));
}

#[test]
fn pool_is_optional_where_tokens_are_only_verified() {
    let trust = |text: &str, variables: &[(&str, &str)]| {
        let env: Env = variables.iter().copied().collect();
        let read = parse("conf/x.toml", text, |root| TrustConfig::read(root, &env));
        let issuers = |trust: TrustConfig| trust.issuers().into_iter().map(|it| it.issuer);
        let read = read.map(|trust| issuers(trust).collect::<Vec<_>>().join(" "));
        read.map_err(|exit| exit.message().to_owned())
    };
    let own = "[[identity.issuer]]\nkind = 'user'\nissuer = 'https://a.example'\nclients = ['a']\n";
    let pool = |id: &str| format!("https://cognito-idp.us-west-2.amazonaws.com/us-west-2_{id}");
    for (text, variables, expected) in [
        ("", &[][..], String::new()),
        (own, &[][..], "https://a.example".to_owned()),
        ("[identity]\nleeway = '1s'\n", &[][..], String::new()),
        // A secret alone names no pool: the environment may be that of all processes.
        ("", &[("IDP_ACTOR_CLIENT_SECRET", "s")][..], String::new()),
        ("", &POOLS[..2], pool("actors")),
        (own, &POOLS[2..], pool("services") + " https://a.example"),
        ("", &POOLS[..], pool("actors") + " " + &pool("services")),
    ] {
        assert_eq!(trust(text, variables), Ok(expected), "{text}{variables:?}");
    }
    let table = "[identity.actor]\nissuer = 'https://a.example'\n";
    for (text, variables, missing) in [
        ("", &POOLS[..1], "IDP_ACTOR_CLIENT_ID"),
        ("", &POOLS[3..], "IDP_SERVICE_POOL_ID"),
        (table, &POOLS[1..2], "IDP_ACTOR_POOL_ID"),
    ] {
        let said = trust(text, variables).expect_err(missing);
        let is_alone = said.lines().count() == 1;
        assert!(is_alone && said.contains(missing), "{said}");
    }
}

#[test]
fn keys_of_all_pools_or_of_one_issuer_are_required() {
    let pool = |issuer: &str| Pool {
        pool_id: issuer.to_owned(),
        client_id: "c".to_owned(),
        client_secret: None,
        issuer: issuer.to_owned(),
        issuer_alias: None,
        jwks_url: "https://keys.example".parse().expect("a URL"),
    };
    let issuers = "[[identity.issuer]]\nkind = 'user'\nissuer = 'https://a.example'\nclients = ['a']\n\
                   [[identity.issuer]]\nkind = 'user'\nissuer = 'https://b.example'\nclients = ['b']\n";
    let env = Env::default();
    let mut trust = parse("x", issuers, |root| TrustConfig::read(root, &env)).expect("valid");
    let usable = |trust: &TrustConfig, with: &[&str]| trust.is_usable(|it| with.contains(&it));
    assert!(!usable(&trust, &[]) && usable(&trust, &["https://b.example"]));
    trust.actor = Some(pool("actor"));
    assert!(!usable(&trust, &["https://b.example"]) && usable(&trust, &["actor"]));
    trust.service = Some(pool("service"));
    assert!(!usable(&trust, &["actor"]) && usable(&trust, &["actor", "service"]));
    let no_issuer = TrustConfig::default();
    assert!(usable(&no_issuer, &[]));
}

#[test]
fn limits_of_tokens_are_bounded() {
    let bytes = "identity.token_bytes: must be 1KiB to 64KiB";
    for (line, wrong) in [
        ("leeway = '60s'\ntoken_bytes = '8KiB'", ""),
        ("leeway = '5m'\ntoken_bytes = '64KiB'", ""),
        ("leeway = '301s'", "identity.leeway: must be at most 5m"),
        ("token_bytes = 1023", bytes),
        ("token_bytes = '65KiB'", bytes),
    ] {
        let read = read(&format!("[identity]\n{line}\n"), &POOLS);
        let said = read.map_or_else(|exit| exit.message().to_owned(), |_| String::new());
        let is_expected = said.ends_with(wrong) && said.is_empty() == wrong.is_empty();
        assert!(is_expected, "{said}");
    }
}

#[test]
fn same_pool_for_both_kinds_is_rejected() {
    let service = ("IDP_SERVICE_POOL_ID", "us-west-2_actors");
    let said = mistakes("", &[POOLS[0], POOLS[1], service, POOLS[3]]);
    assert!(said.contains("are the same pool"), "{said}");
}

#[test]
fn wrong_endpoint_does_not_hide_other_mistakes() {
    let said = mistakes("", &[(ENDPOINT, "not a URL")]);
    for part in [ENDPOINT, "IDP_ACTOR_POOL_ID", "IDP_SERVICE_CLIENT_ID"] {
        assert!(said.contains(part), "{part} is missing in\n{said}");
    }
}

#[test]
fn issuer_that_is_no_url_is_reported_with_its_line() {
    let text = "[identity.actor]\nissuer = 'nowhere'\n[identity.service]\nissuer = 'mailto:a@b'\n";
    let expected = [(2, "actor"), (4, "service")].map(|(line, pool)| {
        format!(
            "conf/x.toml:{line}: identity.{pool}.issuer: must be an absolute http or https URL, or `jwks_url` must be set"
        )
    });
    assert_eq!(mistakes(text, &POOLS), expected.join("\n"));
    let elsewhere = "[identity.actor]\nissuer = 'nowhere'\njwks_url = 'https://keys.example/'\n";
    let config = read(elsewhere, &POOLS).expect("valid configuration");
    assert_eq!(config.actor.issuer, "nowhere");
}

#[test]
fn additional_issuer_has_its_own_rules() {
    let text = "[[identity.issuer]]\nkind = 'user'\nissuer = 'https://login.example/'\naudiences = ['api']\n\
                token_use = []\nclient_claim = 'azp'\nclients = ['web']\n\
                [[identity.issuer]]\nkind = 'service'\nissuer = 'mesh'\njwks_url = 'https://mesh.example/keys'\n\
                clients = ['batch']\ntoken_use = ['access']\nservices = ['batch']\n";
    let issuers = read(text, &POOLS).expect("complete").issuers();
    assert_eq!(issuers.len(), 4);
    let [_, service_pool, login, mesh] = &issuers[..] else {
        panic!("{issuers:?}")
    };
    let below = "https://login.example/.well-known/jwks.json";
    assert_eq!(login.jwks_url.as_str(), below);
    assert_eq!(login.rules.token_uses.as_deref(), Some(&[][..]));
    assert_eq!(login.rules.client_claim.as_deref(), Some("azp"));
    assert_eq!(login.client_ids, ["web"]);
    let kind = (mesh.kind, mesh.issuer.as_str());
    assert_eq!(kind, (token::IssuerKind::Service, "mesh"));
    let batch = vec!["batch".to_owned()];
    let only = token::ServiceNames::Only(batch.clone());
    assert_eq!(mesh.rules.services, only);
    let others = token::ServiceNames::AllBut(batch);
    assert_eq!(service_pool.rules.services, others);
}

#[test]
fn issuer_without_restrictions_is_rejected() {
    let entry = |issuer: &str, rest: &str| {
        format!("[[identity.issuer]]\nkind = 'service'\nissuer = '{issuer}'\n{rest}\n")
    };
    let (a, clients) = ("https://a.example", "clients = ['a']");
    let named = "clients = ['a']\nservices = ['a']";
    let pool = "cognito-idp.us-west-2.amazonaws.com/us-west-2_";
    for (text, why) in [
        (entry(a, ""), "clients or audiences is required"),
        (
            entry(a, "clients = ['a']\ntoken_use = []"),
            "audiences is required if token_use is empty",
        ),
        (entry("mesh", clients), "jwks_url is required"),
        (entry(a, clients), "services is required"),
        (entry(&format!("{a}/ä"), clients), "must be visible ASCII"),
        (entry(&format!("{a}/|b"), clients), "must be visible ASCII"),
        (
            entry(a, "clients = ['a']\nservices = ['x', 'x']"),
            "the service x is configured twice",
        ),
        (
            entry(&format!("https://{pool}actors"), named),
            "is configured twice",
        ),
        (
            entry(&format!("https://issuer-{pool}services"), named),
            "is configured twice",
        ),
    ] {
        let said = mistakes(&text, &POOLS);
        assert!(said.contains(why), "{said}");
    }
}
