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

/// A service token, by InitiateAuth against the running pool with the account's password from the data folder.
///
/// # Errors
/// 64 for a name that has no account; 69 when nothing ran in this folder yet, or it does not run now.
pub async fn service_token(folder: &Path, service: &str) -> Result<Secret, Exit> {
    let stored = Environment::read(folder)?;
    let prefix = format!("POSTERN_SERVICE_{}", service.to_uppercase());
    let (username, password) =
        (stored.get(&format!("{prefix}_USERNAME")), stored.get(&format!("{prefix}_PASSWORD")));
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
    let identity = config::parse("standalone.env", "", |root| IdentityConfig::read(root, &env))?;
    let clock = Clock::system();
    let tokens = ServiceTokens::new(&identity, Cache::memory(clock.clone()), clock);
    tokens.token().await.map_err(|error| match error {
        ServiceTokenError::Refused(reason) => {
            Exit::unavailable(format!("the identity pool refuses the account {service}: {reason}"))
        }
        ServiceTokenError::NotConfigured | ServiceTokenError::Unavailable(_) => away(&stored),
    })
}

/// A user's access token, by POST /auth/login at the running gateway.
///
/// # Errors
/// 69 when the gateway does not run or refuses.
pub async fn user_token(folder: &Path, email: &str, password: &Secret) -> Result<Secret, Exit> {
    let stored = Environment::read(folder)?;
    let url = format!("{}/auth/login", stored.get("POSTERN_URL").unwrap_or_default());
    let body = json!({ "email": email, "password": password.expose() });
    let answer = reqwest::Client::new().post(url).json(&body).send().await.map_err(|_| away(&stored))?;
    let answer: Value = answer.json().await.map_err(|_| away(&stored))?;
    match answer["accessToken"].as_str() {
        Some(token) => Ok(Secret::from(token)),
        None => Err(Exit::unavailable(format!(
            "sign-in refused: {}",
            answer["code"].as_str().unwrap_or("unknown")
        ))),
    }
}

fn away(stored: &Environment) -> Exit {
    let url = stored.get("POSTERN_URL").unwrap_or_default();
    Exit::unavailable(format!("postern does not answer at {url}; start it with this --data-dir first"))
}
