//! Tokens of service accounts for scripts (`postern token`).

use std::path::Path;

use postern_core::config;
use postern_core::exit::Exit;
use postern_core::identity::IdentityConfig;
use postern_core::{Clock, Secret};
use postern_service::calls::{ServiceTokenError, ServiceTokens};

use crate::lifecycle::EnvironmentFile;

/// Number of attempts before the pool is reported as unavailable.
const MAX_ATTEMPTS: u32 = 4;

/// Requests a service token: calls InitiateAuth at the running pool with the account's password
/// from the data folder.
///
/// # Errors
/// Exits with status 64 for an unknown account, and with 69 if the folder was never used or the
/// installation is not running.
pub async fn service_token(folder: &Path, service: &str) -> Result<Secret, Exit> {
    let stored = EnvironmentFile::read(folder)?;
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
            "--service {service}: unknown account; known are {}",
            known.join(", ")
        )));
    };
    let mut environment = EnvironmentFile::default();
    environment.add("IDP_SERVICE_ACCOUNT_USERNAME", username);
    environment.add("IDP_SERVICE_ACCOUNT_PASSWORD", password);
    for (name, value) in stored.pairs() {
        environment.add(name, value);
    }
    let env = environment.to_env();
    let identity = config::parse("standalone.env", "", |root| {
        IdentityConfig::read(root, &env)
    })?;
    let tokens = ServiceTokens::new(&identity, Clock::system());
    let mut reason = String::new();
    // On a busy machine, a token may take longer than the timeout of one attempt.
    for _ in 0..MAX_ATTEMPTS {
        reason = match tokens.token().await {
            Ok(token) => return Ok(token),
            Err(ServiceTokenError::Refused(reason)) => {
                let refused = format!("the identity pool rejected the account {service}: {reason}");
                return Err(Exit::unavailable(refused));
            }
            Err(error @ (ServiceTokenError::NotConfigured | ServiceTokenError::Unavailable(_))) => {
                error.to_string()
            }
        };
    }
    Err(unreachable_error(&stored, &reason))
}

fn unreachable_error(stored: &EnvironmentFile, reason: &str) -> Exit {
    let url = stored.get("POSTERN_URL").unwrap_or_default();
    Exit::unavailable(format!(
        "no response from postern at {url} ({reason}); start it with this --data-dir first"
    ))
}
