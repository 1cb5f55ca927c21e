//! Incidents of sign-ins: attempt limits, the identity pool and the social provider.

use postern_harness::public_api::{credentials, sample};
use serde_json::json;

use super::fault_proxy::Fault;
use super::services::Services;

/// Wrong passwords until an account is throttled.
const GUESSES: usize = 10;

pub(super) async fn plant(services: &mut Services) {
    throttled_account(services).await;
    pool_faults(services).await;
    social_faults(services).await;
}

async fn throttled_account(services: &mut Services) {
    let ada = services.split.surface().register().await;
    services.evidence.begin().await;
    let body = json!({"email": ada.email, "password": "a wrong password"});
    for _ in 0..GUESSES {
        let refused = services.post("/auth/login", &body).await;
        refused.problem(401, "invalid_credentials");
    }
    let shown = services.timeline(&ada, "reason=throttled").await;
    services.prove("Account is throttled", &shown).await;
}

/// The request quota of the pool, and the permissions of this service at the pool.
async fn pool_faults(services: &mut Services) {
    let ada = services.split.surface().register().await;
    services.evidence.begin().await;
    let error = |name: &str| json!({"__type": name, "message": "Rate exceeded"});
    let throttled = Fault::Answer("InitiateAuth", 400, error("TooManyRequestsException"));
    services.pool.set(throttled);
    let body = credentials(&ada.email);
    let refused = services.post("/auth/login", &body).await;
    refused.problem(429, "rate_limited");
    let shown = services.timeline(&ada, "sign_in rate_limited").await;
    services.prove("Identity pool throttles", &shown).await;

    services.evidence.begin().await;
    let denied = Fault::Answer("AdminConfirmSignUp", 400, error("AccessDeniedException"));
    services.pool.set(denied);
    let email = "eve@example.com";
    let body = credentials(email);
    let refused = services.post("/auth/register", &body).await;
    assert_eq!(refused.status, 500, "{}", refused.text());
    services.pool.set(Fault::None);
    let arguments = ["timeline", "--email", email];
    let reason = "idp_misconfigured";
    let shown = services.output("postern", &arguments, reason).await;
    services.prove("Identity pool denies access", &shown).await;
}

async fn social_faults(services: &mut Services) {
    let fails = Fault::Answer("/token", 500, json!({}));
    for (name, fault, outcome) in [
        ("Social provider fails", fails, "provider_error"),
        (
            "ID token signature is wrong",
            Fault::ForgeIdToken,
            "invalid_id_token",
        ),
    ] {
        services.evidence.begin().await;
        services.social.set(fault);
        let surface = services.split.surface();
        let ended = surface.social_sign_in(&sample("ada"), None).await;
        assert_eq!(ended, Err(outcome.to_owned()), "{name}");
        // A failed social sign-in has no subject and no address.
        let arguments = ["audit", "list", "--since", "1h"];
        let shown = services.output("postern-auth", &arguments, outcome).await;
        services.prove(name, &shown).await;
    }
    services.social.set(Fault::None);
}
