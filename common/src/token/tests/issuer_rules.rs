//! Rules of additional issuers: audience, client and `token_use`.

use serde_json::{Value, json};

use super::fixtures::{Behaviour, NOW_S, RSA, Server, clock, jwks, options, with};
use crate::problem::Code;
use crate::token::{Issuer, IssuerKind, IssuerRules, ServiceNames, TokenError, Verifier};

const ISSUER: &str = "https://login.partner.test";

fn claims() -> Value {
    json!({"iss": ISSUER, "sub": "u-1", "azp": "web", "aud": ["api", "other"], "exp": NOW_S + 60, "iat": NOW_S})
}

async fn verdict(
    client_ids: &[&str],
    rules: &IssuerRules,
    claims: &Value,
) -> Result<(), TokenError> {
    let server = Server::start(Behaviour::Serve(jwks(&[RSA.jwk("k")]))).await;
    let issuer = Issuer {
        issuer: ISSUER.to_owned(),
        jwks_url: server.url,
        kind: IssuerKind::User,
        client_ids: client_ids
            .iter()
            .map(|client| (*client).to_owned())
            .collect(),
        rules: rules.clone(),
        claims: Vec::new(),
    };
    Verifier::new(vec![issuer], options(&clock()))
        .verify(&RSA.token("k", claims))
        .await
        .map(|_| ())
}

#[tokio::test]
async fn service_name_is_accepted_from_its_issuer_only() {
    let server = Server::start(Behaviour::Serve(jwks(&[RSA.jwk("k")]))).await;
    let issuer = |name: &str, services| Issuer {
        issuer: name.to_owned(),
        jwks_url: server.url.clone(),
        kind: IssuerKind::Service,
        client_ids: strings(&["api"]),
        rules: IssuerRules {
            services,
            ..IssuerRules::default()
        },
        claims: Vec::new(),
    };
    let batch = || strings(&["batch"]);
    let own = issuer("https://own.test", ServiceNames::AllBut(batch()));
    let partner = issuer("https://partner.test", ServiceNames::Only(batch()));
    let clock = clock();
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
        let verifier = Verifier::new(vec![issuer.clone()], options(&clock));
        let outcome = verifier.verify(&RSA.token("k", &claims)).await.map(|_| ());
        assert_eq!(outcome, wanted, "{name} of {}", issuer.issuer);
    }
    assert_eq!(TokenError::ServiceName.code(), Code::IssuerNotAccepted);
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
        ("azp", Value::Null, Err(TokenError::ClaimMissing)),
        ("custom:service_id", json!("notify"), Err(TokenError::Kind)),
    ] {
        let outcome = verdict(&["web"], &rules, &with(claims(), change, value.clone())).await;
        assert_eq!(outcome, wanted, "{change} = {value}");
    }
    assert_eq!(
        verdict(&[], &rules, &with(claims(), "azp", json!("any"))).await,
        Ok(())
    );
}

#[tokio::test]
async fn configured_token_uses_are_accepted() {
    let rules = IssuerRules {
        token_uses: Some(strings(&["access", "exchange"])),
        audiences: strings(&["api"]),
        ..IssuerRules::default()
    };
    let of = |used: &str| {
        with(
            with(claims(), "client_id", json!("web")),
            "token_use",
            json!(used),
        )
    };
    assert_eq!(verdict(&["web"], &rules, &of("exchange")).await, Ok(()));
    assert_eq!(
        verdict(&["web"], &rules, &of("id")).await,
        Err(TokenError::TokenUse)
    );
    assert_eq!(
        verdict(&["web"], &rules, &claims()).await,
        Err(TokenError::ClaimMissing)
    );
}
