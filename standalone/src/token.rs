//! `postern token`: a fresh token of the local pools, for scripts.

use std::path::Path;

use postern_common::cache::Cache;
use postern_common::config;
use postern_common::exit::Exit;
use postern_common::identity::IdentityConfig;
use postern_common::service::{ServiceTokenError, ServiceTokens};
use postern_common::{Clock, Secret};
use serde_json::{Value, json};

use crate::environment::Environment;

/// How often a token is asked for before the pool counts as away.
const ATTEMPTS: u32 = 4;

/// A service token, by InitiateAuth against the running pool with the account's password from the
/// data folder.
///
/// # Errors
/// 64 for a name that has no account; 69 when nothing ran in this folder yet, or it does not run
/// now.
pub async fn service_token(folder: &Path, service: &str) -> Result<Secret, Exit> {
    let stored = Environment::read(folder)?;
    let prefix = format!("POSTERN_SERVICE_{}", service.to_uppercase());
    let (username, password) = (
        stored.get(&format!("{prefix}_USERNAME")),
        stored.get(&format!("{prefix}_PASSWORD")),
    );
    let (Some(username), Some(password)) = (username, password) else {
        let known: Vec<&str> = stored
            .pairs()
            .iter()
            .filter(|(name, _)| name.starts_with("POSTERN_SERVICE_") && name.ends_with("_USERNAME"))
            .map(|(_, value)| value.as_str())
            .collect();
        return Err(Exit::usage(format!(
            "--service {service}: has no account; there are {}",
            known.join(", ")
        )));
    };
    let mut environment = Environment::default();
    environment.add("IDP_SERVICE_ACCOUNT_USERNAME", username);
    environment.add("IDP_SERVICE_ACCOUNT_PASSWORD", password);
    for (name, value) in stored.pairs() {
        environment.add(name, value);
    }
    let env = environment.to_env();
    let identity = config::parse("standalone.env", "", |root| {
        IdentityConfig::read(root, &env)
    })?;
    let clock = Clock::system();
    let tokens = ServiceTokens::new(&identity, Cache::memory(clock.clone()), clock);
    let mut reason = String::new();
    // A machine that is busy may take longer than a request would wait for it.
    for _ in 0..ATTEMPTS {
        reason = match tokens.token().await {
            Ok(token) => return Ok(token),
            Err(ServiceTokenError::Refused(reason)) => {
                let refused = format!("the identity pool refuses the account {service}: {reason}");
                return Err(Exit::unavailable(refused));
            }
            Err(error @ (ServiceTokenError::NotConfigured | ServiceTokenError::Unavailable(_))) => {
                error.to_string()
            }
        };
    }
    Err(away(&stored, &reason))
}

/// A user's access token, by POST /auth/login at the running gateway.
///
/// # Errors
/// 69 when the gateway does not run or refuses.
pub async fn user_token(folder: &Path, email: &str, password: &Secret) -> Result<Secret, Exit> {
    let stored = Environment::read(folder)?;
    let url = format!(
        "{}/auth/login",
        stored.get("POSTERN_URL").unwrap_or_default()
    );
    let body = json!({ "email": email, "password": password.expose() });
    let answer = reqwest::Client::new().post(url).json(&body).send().await;
    let answer = answer.map_err(|_| away(&stored, "cannot connect"))?;
    let answer: Value = answer
        .json()
        .await
        .map_err(|_| away(&stored, "the answer is not JSON"))?;
    match answer["accessToken"].as_str() {
        Some(token) => Ok(Secret::from(token)),
        None => Err(Exit::unavailable(format!(
            "sign-in refused: {}",
            answer["code"].as_str().unwrap_or("unknown")
        ))),
    }
}

fn away(stored: &Environment, reason: &str) -> Exit {
    let url = stored.get("POSTERN_URL").unwrap_or_default();
    Exit::unavailable(format!(
        "no answer from postern at {url} ({reason}); start it with this --data-dir first"
    ))
}
