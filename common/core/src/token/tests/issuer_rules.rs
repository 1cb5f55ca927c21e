//! Rules of additional issuers: audience, client and `token_use`.

use serde_json::{Value, json};

use super::fixtures::{NOW_S, RSA, Server, clock, keys, options, with};
use crate::problem::Code;
use crate::token::{Caller, Issuer, IssuerKind, IssuerRules, ServiceNames, TokenError, Verifier};

const ISSUER: &str = "https://login.partner.test";

fn claims() -> Value {
    json!({"iss": ISSUER, "sub": "u-1", "azp": "web", "aud": ["api", "other"], "exp": NOW_S + 60, "iat": NOW_S})
}

async fn issuer(name: &str, kind: IssuerKind, client_ids: &[&str], rules: IssuerRules) -> Issuer {
    Issuer {
        issuer: name.to_owned(),
        jwks_url: Server::start(keys(&[RSA.jwk("k")])).await.url,
        kind,
        client_ids: strings(client_ids),
        rules,
        claims: strings(&["realm_access.roles", "a.b.c", "tier"]),
    }
}

async fn verified(issuer: Issuer, claims: &Value) -> Result<Caller, TokenError> {
    let verifier = Verifier::new(vec![issuer], options(&clock()));
    verifier.verify(&RSA.token("k", claims)).await
}

async fn caller(
    client_ids: &[&str],
    rules: &IssuerRules,
    claims: &Value,
) -> Result<Caller, TokenError> {
    let issuer = issuer(ISSUER, IssuerKind::User, client_ids, rules.clone()).await;
    verified(issuer, claims).await
}

fn other_provider() -> IssuerRules {
    IssuerRules {
        token_uses: Some(Vec::new()),
        audiences: strings(&["api"]),
        groups_claim: Some("realm_access.roles".to_owned()),
        ..IssuerRules::default()
    }
}

#[tokio::test]
async fn scopes_have_two_names_and_two_forms() {
    let mistyped = TokenError::ClaimType("scope");
    for (scope, scp, expected) in [
        (json!("a b"), Value::Null, Ok(vec!["a", "b"])),
        (json!(["a", "b"]), Value::Null, Ok(vec!["a", "b"])),
        (Value::Null, json!("a  b"), Ok(vec!["a", "b"])),
        (Value::Null, json!(["a", "b c"]), Ok(vec!["a", "b", "c"])),
        (json!("a"), json!(["b"]), Ok(vec!["a", "b"])),
        (json!([]), json!(""), Ok(vec![])),
        (json!(["a", 1]), Value::Null, Err(mistyped)),
        (Value::Null, json!({"a": 1}), Err(mistyped)),
        (json!(7), Value::Null, Err(mistyped)),
    ] {
        let claims = with(with(claims(), "scope", scope.clone()), "scp", scp.clone());
        let found = caller(&[], &other_provider(), &claims).await;
        let found = found.map(|caller| caller.scopes().to_vec());
        assert_eq!(found, expected.map(|all| strings(&all)), "{scope} {scp}");
    }
}

#[tokio::test]
async fn groups_are_in_the_claim_of_the_issuer() {
    let (access, mistyped) = ("realm_access", TokenError::ClaimType("groups"));
    for (name, value, expected) in [
        (access, json!({"roles": ["a", "b"]}), Ok(vec!["a", "b"])),
        (access, json!({"roles": "a b"}), Ok(vec!["a b"])),
        ("realm_access.roles", json!(["a"]), Ok(vec!["a"])),
        ("realm_access", json!({"role": ["a"]}), Ok(vec![])),
        ("realm_access", json!(["roles"]), Ok(vec![])),
        ("cognito:groups", json!(["a"]), Ok(vec![])),
        (access, json!({"roles": [1]}), Err(mistyped)),
        (access, json!({"roles": {}}), Err(mistyped)),
    ] {
        let claims = with(claims(), name, value.clone());
        let found = caller(&[], &other_provider(), &claims).await;
        let found = found.map(|caller| caller.user().expect("a user").groups.to_vec());
        assert_eq!(found, expected.map(|all| strings(&all)), "{name} {value}");
    }
}

#[tokio::test]
async fn policy_claims_may_be_nested() {
    let access = json!({"roles": ["a"], "other": 1});
    let claims = with(claims(), "realm_access", access);
    let claims = with(claims, "a.b", json!({"c": 2}));
    let claims = with(claims, "a", json!({"b": {"d": 3}}));
    let caller = caller(&[], &other_provider(), &claims).await;
    let caller = caller.expect("accepted");
    let held = &caller.user().expect("a user").claims;
    assert_eq!(held.get("realm_access.roles"), Some(&json!(["a"])));
    assert_eq!(held.get("a.b.c"), Some(&json!(2)), "names may have dots");
    assert_eq!((held.get("tier"), held.get("realm_access")), (None, None));
}

#[tokio::test]
async fn service_name_is_in_the_claim_of_the_issuer() {
    let rules = IssuerRules {
        service_claim: Some("azp".to_owned()),
        services: ServiceNames::Only(strings(&["web"])),
        ..other_provider()
    };
    let issuer = issuer(ISSUER, IssuerKind::Service, &[], rules).await;
    for (azp, named, expected) in [
        (json!("web"), Value::Null, Ok(strings(&["read"]))),
        (json!("web"), json!("root"), Ok(strings(&["read"]))),
        (json!("other"), json!("web"), Err(TokenError::ServiceName)),
        (Value::Null, json!("web"), Err(TokenError::Kind)),
    ] {
        let claims = with(with(claims(), "azp", azp), "custom:service_id", named);
        let found = verified(issuer.clone(), &with(claims, "scp", json!(["read"]))).await;
        let found = found.map(|caller| caller.scopes().to_vec());
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn service_name_is_accepted_from_its_issuer_only() {
    let of = async |name, services| {
        let rules = IssuerRules {
            services,
            ..IssuerRules::default()
        };
        issuer(name, IssuerKind::Service, &["api"], rules).await
    };
    let batch = || strings(&["batch"]);
    let own = of("https://own.test", ServiceNames::AllBut(batch())).await;
    let partner = of("https://partner.test", ServiceNames::Only(batch())).await;
    for (issuer, name, wanted) in [
        (&own, "auth", Ok(())),
        (&own, "batch", Err(TokenError::ServiceName)),
        (&partner, "batch", Ok(())),
        (&partner, "auth", Err(TokenError::ServiceName)),
        (&partner, "Batch", Err(TokenError::ServiceName)),
    ] {
        let claims = json!({"iss": issuer.issuer, "sub": "s", "aud": "api", "token_use": "id",
            "custom:service_id": name, "exp": NOW_S + 60, "iat": NOW_S});
        // One at a time, because a key belongs to one issuer.
        let outcome = verified(issuer.clone(), &claims).await.map(drop);
        assert_eq!(outcome, wanted, "{name} of {}", issuer.issuer);
    }
    assert_eq!(TokenError::ServiceName.code(), Code::IssuerNotAccepted);
}

#[tokio::test]
async fn both_names_of_an_issuer_identify_one_caller() {
    let rules = IssuerRules {
        alias: Some("https://issuer-login.partner.test".to_owned()),
        ..other_provider()
    };
    for (name, wanted) in [
        (ISSUER, Ok(ISSUER)),
        ("https://issuer-login.partner.test", Ok(ISSUER)),
        ("https://issuer-login.partner.tes", Err(TokenError::Issuer)),
    ] {
        let claims = with(claims(), "iss", json!(name));
        let found = caller(&[], &rules, &claims).await;
        let found = found.as_ref().map(Caller::issuer).map_err(|error| *error);
        assert_eq!(found, wanted, "{name}");
    }
}

fn strings(all: &[&str]) -> Vec<String> {
    all.iter().map(|one| (*one).to_owned()).collect()
}

#[tokio::test]
async fn issuer_without_token_use_requires_audience_and_client() {
    let rules = IssuerRules {
        token_uses: Some(Vec::new()),
        audiences: strings(&["api"]),
        client_claim: Some("azp".to_owned()),
        ..IssuerRules::default()
    };
    for (change, value, wanted) in [
        ("aud", json!(["api", "other"]), Ok(())),
        ("aud", json!("api"), Ok(())),
        ("token_use", json!("id"), Ok(())),
        ("aud", json!("other"), Err(TokenError::Client)),
        ("aud", json!([]), Err(TokenError::Client)),
        ("aud", Value::Null, Err(TokenError::Client)),
        ("azp", json!("mobile"), Err(TokenError::Client)),
        ("azp", Value::Null, Err(TokenError::ClaimMissing("client"))),
        ("custom:service_id", json!("notify"), Err(TokenError::Kind)),
    ] {
        let claims = with(claims(), change, value.clone());
        let outcome = caller(&["web"], &rules, &claims).await;
        assert_eq!(outcome.map(drop), wanted, "{change} = {value}");
    }
    let any = with(claims(), "azp", json!("any"));
    assert!(caller(&[], &rules, &any).await.is_ok());
}

#[tokio::test]
async fn configured_token_uses_are_accepted() {
    let rules = IssuerRules {
        token_uses: Some(strings(&["access", "exchange"])),
        audiences: strings(&["api"]),
        ..IssuerRules::default()
    };
    let claims = with(claims(), "client_id", json!("web"));
    for (used, expected) in [
        (json!("exchange"), Ok(())),
        (json!("id"), Err(TokenError::TokenUse)),
        (Value::Null, Err(TokenError::ClaimMissing("token_use"))),
    ] {
        let claims = with(claims.clone(), "token_use", used);
        let outcome = caller(&["web"], &rules, &claims).await;
        assert_eq!(outcome.map(drop), expected);
    }
}
