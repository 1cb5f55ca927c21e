//! The decision table from token claims to caller: every combination, and what an accepted caller
//! has.

use serde_json::{Value, json};

use super::fixtures::{OTHER_RSA, RSA, SERVICES, World, service_claims, user_claims, with};
use crate::problem::Code;
use crate::token::{Caller, TokenError};

async fn user_pool(claims: Value) -> Result<Caller, TokenError> {
    let world = World::usual().await;
    world.verifier.verify(&RSA.token("u1", &claims)).await
}

async fn service_pool(claims: Value) -> Result<Caller, TokenError> {
    let world = World::usual().await;
    world.verifier.verify(&OTHER_RSA.token("s1", &claims)).await
}

#[tokio::test]
async fn access_token_of_the_actor_pool_is_a_user() {
    let caller = user_pool(user_claims()).await.expect("accepted");
    let user = caller.user().expect("a user");
    let names = (&*user.subject, &*user.username, &*user.client_id);
    assert_eq!(names, ("3a1c", "ada", "user-client"));
    assert_eq!(user.scopes.join(" "), "openid profile");
    assert_eq!(user.groups.join(" "), "admin");
    // Claims stay out of logs.
    assert!(!format!("{caller:?}").contains("profile"));
}

#[tokio::test]
async fn id_token_of_the_service_pool_is_a_service() {
    let caller = service_pool(service_claims()).await.expect("accepted");
    let service = caller.service().expect("a service");
    let names = (&*service.service_id, &*service.subject, &*service.issuer);
    assert_eq!(names, ("notify", "77f0", SERVICES));
}

#[tokio::test]
async fn claims_of_another_kind_client_or_issuer_are_rejected() {
    let (id, kind) = ("custom:service_id", Code::TokenKindMismatch);
    let (client, issuer) = (Code::ClientNotAccepted, Code::IssuerNotAccepted);
    let several = json!(["service-client", "other"]);
    for (of_user, name, value, code) in [
        (true, id, json!("notify"), kind),
        (true, id, json!(""), kind),
        (true, id, json!(7), kind),
        (true, id, json!({}), kind),
        (true, id, Value::Null, kind),
        (false, "aud", json!("other"), client),
        (false, "aud", json!("user-client"), client),
        (false, "aud", several, client),
        (true, "iss", json!("https://pools.test/users/"), issuer),
        (true, "iss", json!("https://POOLS.test/users"), issuer),
        (true, "iss", json!("https://evil.test"), issuer),
        (true, "iss", json!("x"), issuer),
    ] {
        let mut claims = if of_user {
            user_claims()
        } else {
            service_claims()
        };
        claims[name] = value.clone();
        let verified = match of_user {
            true => user_pool(claims).await,
            false => service_pool(claims).await,
        };
        let found = verified.map(drop).map_err(TokenError::code);
        assert_eq!(found, Err(code), "{name} {value}");
    }
}

/// Returns the expected result, row by row in the order of the table; the first row that matches
/// decides.
fn row(
    pool: &str,
    token_use: &str,
    right_client: bool,
    claim: &Value,
) -> Result<&'static str, Code> {
    let named = claim.as_str().is_some_and(|name| !name.is_empty());
    match (pool, token_use, right_client) {
        ("actor", "access", true) if claim.is_null() => Ok("user"),
        ("actor", "access", true) => Err(Code::TokenKindMismatch),
        ("actor", "id", _) => Err(Code::TokenUseNotAccepted),
        ("service", "id" | "access", true) if named => Ok("service"),
        ("service", _, true) if !named => Err(Code::TokenKindMismatch),
        ("actor" | "service", _, false) => Err(Code::ClientNotAccepted),
        ("actor" | "service", ..) => Err(Code::TokenUseNotAccepted),
        _ => Err(Code::IssuerNotAccepted),
    }
}

#[tokio::test]
async fn every_combination_matches_the_table() {
    let world = World::usual().await;
    for pool in ["actor", "service", "other"] {
        for token_use in ["access", "id", "refresh", "device"] {
            for right in [true, false] {
                for claim in [Value::Null, json!(""), json!("notify")] {
                    let (base, client) = match pool {
                        "service" => (service_claims(), "service-client"),
                        _ => (user_claims(), "user-client"),
                    };
                    let client = if right { client } else { "another" };
                    let claims = with(base, "token_use", json!(token_use));
                    let mut claims = with(claims, "custom:service_id", claim.clone());
                    claims["client_id"] = client.into();
                    claims["aud"] = client.into();
                    if pool == "other" {
                        claims["iss"] = "https://elsewhere.test".into();
                    }
                    let token = match pool {
                        "service" => OTHER_RSA.token("s1", &claims),
                        _ => RSA.token("u1", &claims),
                    };
                    let kind = |caller| match caller {
                        Caller::User(_) => "user",
                        Caller::Service(_) => "service",
                    };
                    let outcome = world.verifier.verify(&token).await;
                    let outcome = outcome.map_err(TokenError::code).map(kind);
                    let expected = row(pool, token_use, right, &claim);
                    assert_eq!(outcome, expected, "{pool} {token_use} {right} {claim}");
                }
            }
        }
    }
}
