use super::*;
use crate::config::{Env, parse};
use crate::exit::Exit;

const POOLS: [(&str, &str); 4] = [
    ("IDP_ACTOR_POOL_ID", "us-west-2_actors"),
    ("IDP_ACTOR_CLIENT_ID", "actor-client"),
    ("IDP_SERVICE_POOL_ID", "us-west-2_services"),
    ("IDP_SERVICE_CLIENT_ID", "service-client"),
];

fn read(text: &str, variables: &[(&str, &str)]) -> Result<IdentityConfig, Exit> {
    let env: Env = variables.iter().copied().collect();
    parse("conf/x.toml", text, |root| IdentityConfig::read(root, &env))
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
    assert_eq!(
        config.actor.issuer,
        "https://cognito-idp.us-west-2.amazonaws.com/us-west-2_actors"
    );
    assert_eq!(
        config.service.jwks_url.as_str(),
        "https://cognito-idp.us-west-2.amazonaws.com/us-west-2_services/.well-known/jwks.json"
    );
    let hash = secret_hash("ada", "actor-client", "s1");
    assert_eq!(config.actor.secret_hash("ada"), Some(hash));
    assert_eq!(
        config
            .service_account
            .as_ref()
            .map(|account| account.username.as_str()),
        Some("auth")
    );
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn issuer_follows_endpoint_unless_the_file_names_it() {
    let text = "[identity.service]\nissuer = 'https://elsewhere.example/s'\n";
    let endpoint = (
        "AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER",
        "http://127.0.0.1:9999/",
    );
    let config = read(text, &[&POOLS[..], &[endpoint]].concat()).expect("complete");
    assert_eq!(
        config.actor.issuer,
        "http://127.0.0.1:9999/us-west-2_actors"
    );
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
    let exit = read("", &[("IDP_SERVICE_ACCOUNT_USERNAME", "auth")]).expect_err("nothing is set");
    let expected = [
        "conf/x.toml:1: the variable IDP_ACTOR_POOL_ID is not set",
        "conf/x.toml:1: the variable IDP_ACTOR_CLIENT_ID is not set",
        "conf/x.toml:1: the variable IDP_SERVICE_POOL_ID is not set",
        "conf/x.toml:1: the variable IDP_SERVICE_CLIENT_ID is not set",
        "conf/x.toml:1: the variable IDP_SERVICE_ACCOUNT_PASSWORD is not set",
    ];
    assert_eq!(exit.message(), expected.join("\n"));
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
        (
            own,
            &POOLS[2..],
            format!("{} https://a.example", pool("services")),
        ),
        (
            "",
            &POOLS[..],
            format!("{} {}", pool("actors"), pool("services")),
        ),
    ] {
        assert_eq!(trust(text, variables), Ok(expected), "{text}{variables:?}");
    }
    for (text, variables, missing) in [
        ("", &POOLS[..1], "IDP_ACTOR_CLIENT_ID"),
        ("", &POOLS[3..], "IDP_SERVICE_POOL_ID"),
        (
            "[identity.actor]\nissuer = 'https://a.example'\n",
            &POOLS[1..2],
            "IDP_ACTOR_POOL_ID",
        ),
    ] {
        let said = trust(text, variables).expect_err(missing);
        assert!(
            said.contains(missing) && said.lines().count() == 1,
            "{said}"
        );
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
    assert!(
        usable(&TrustConfig::default(), &[]),
        "no issuer is configured"
    );
}

#[test]
fn limits_of_tokens_are_bounded() {
    for (line, wrong) in [
        ("leeway = '60s'\ntoken_bytes = '8KiB'", ""),
        ("leeway = '5m'\ntoken_bytes = '64KiB'", ""),
        ("leeway = '301s'", "identity.leeway: must be at most 5m"),
        (
            "token_bytes = 1023",
            "identity.token_bytes: must be 1KiB to 64KiB",
        ),
        (
            "token_bytes = '65KiB'",
            "identity.token_bytes: must be 1KiB to 64KiB",
        ),
    ] {
        let read = read(&format!("[identity]\n{line}\n"), &POOLS);
        let said = read.map_or_else(|exit| exit.message().to_owned(), |_| String::new());
        assert!(
            said.ends_with(wrong) && said.is_empty() == wrong.is_empty(),
            "{said}"
        );
    }
}

#[test]
fn same_pool_for_both_kinds_is_rejected() {
    let same = [
        POOLS[0],
        POOLS[1],
        ("IDP_SERVICE_POOL_ID", "us-west-2_actors"),
        POOLS[3],
    ];
    let exit = read("", &same).expect_err("the same pool");
    assert!(exit.message().contains("are the same pool"), "{exit}");
}

#[test]
fn wrong_endpoint_does_not_hide_other_mistakes() {
    let exit = read(
        "",
        &[("AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER", "not a URL")],
    )
    .expect_err("mistakes");
    for part in [
        "AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER",
        "IDP_ACTOR_POOL_ID",
        "IDP_SERVICE_CLIENT_ID",
    ] {
        assert!(
            exit.message().contains(part),
            "{part} is missing in\n{exit}"
        );
    }
}

#[test]
fn issuer_that_is_no_url_is_reported_with_its_line() {
    let text = "[identity.actor]\nissuer = 'nowhere'\n[identity.service]\nissuer = 'mailto:a@b'\n";
    let exit = read(text, &POOLS).expect_err("mistakes");
    let expected = [
        "conf/x.toml:2: identity.actor.issuer: must be an absolute http or https URL, or `jwks_url` must be set",
        "conf/x.toml:4: identity.service.issuer: must be an absolute http or https URL, or `jwks_url` must be set",
    ];
    assert_eq!(exit.message(), expected.join("\n"));
    let elsewhere = "[identity.actor]\nissuer = 'nowhere'\njwks_url = 'https://keys.example/'\n";
    assert_eq!(
        read(elsewhere, &POOLS)
            .expect("valid configuration")
            .actor
            .issuer,
        "nowhere"
    );
}

#[test]
fn additional_issuer_has_its_own_rules() {
    let text = "[[identity.issuer]]\nkind = 'user'\nissuer = 'https://login.example/'\naudiences = ['api']\n\
                token_use = []\nclient_claim = 'azp'\nclients = ['web']\n\
                [[identity.issuer]]\nkind = 'service'\nissuer = 'mesh'\njwks_url = 'https://mesh.example/keys'\n\
                clients = ['batch']\ntoken_use = ['access']\nservices = ['batch']\n";
    let issuers = read(text, &POOLS).expect("complete").issuers();
    assert_eq!(issuers.len(), 4);
    assert_eq!(
        issuers[2].jwks_url.as_str(),
        "https://login.example/.well-known/jwks.json"
    );
    assert_eq!(issuers[2].rules.token_uses.as_deref(), Some(&[][..]));
    assert_eq!(
        (
            issuers[2].rules.client_claim.as_deref(),
            &issuers[2].client_ids[..]
        ),
        (Some("azp"), &["web".to_owned()][..])
    );
    assert_eq!(
        (issuers[3].kind, issuers[3].issuer.as_str()),
        (token::IssuerKind::Service, "mesh")
    );
    let batch = vec!["batch".to_owned()];
    assert_eq!(
        issuers[3].rules.services,
        token::ServiceNames::Only(batch.clone())
    );
    assert_eq!(
        issuers[1].rules.services,
        token::ServiceNames::AllBut(batch)
    );
}

#[test]
fn issuer_without_restrictions_is_rejected() {
    for (entry, why) in [
        (
            "issuer = 'https://a.example'",
            "clients or audiences is required",
        ),
        (
            "issuer = 'https://a.example'\nclients = ['a']\ntoken_use = []",
            "audiences is required if token_use is empty",
        ),
        ("issuer = 'mesh'\nclients = ['a']", "jwks_url is required"),
        (
            "issuer = 'https://a.example'\nclients = ['a']",
            "services is required",
        ),
        (
            "issuer = 'https://a.example/ä'\nclients = ['a']",
            "must be visible ASCII",
        ),
        (
            "issuer = 'https://a.example/|b'\nclients = ['a']",
            "must be visible ASCII",
        ),
        (
            "issuer = 'https://a.example'\nclients = ['a']\nservices = ['x', 'x']",
            "the service x is configured twice",
        ),
        (
            "issuer = 'https://cognito-idp.us-west-2.amazonaws.com/us-west-2_actors'\nclients = ['a']\nservices = ['a']",
            "is configured twice",
        ),
        (
            "issuer = 'https://issuer-cognito-idp.us-west-2.amazonaws.com/us-west-2_services'\nclients = ['a']\nservices = ['a']",
            "is configured twice",
        ),
    ] {
        let exit = read(
            &format!("[[identity.issuer]]\nkind = 'service'\n{entry}\n"),
            &POOLS,
        )
        .expect_err(why);
        assert!(exit.message().contains(why), "{exit}");
    }
}
