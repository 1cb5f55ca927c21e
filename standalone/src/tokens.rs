//! Tokens of service accounts for scripts (`postern token`).

use std::path::Path;

use postern_core::config;
use postern_core::exit::Exit;
use postern_core::identity::IdentityConfig;
use postern_core::{Clock, Secret};
use postern_service::calls::{ServiceTokenError, ServiceTokens};

use crate::lifecycle::EnvironmentFile;

/// Requests a service token: calls InitiateAuth at the running pool with the account's password
/// from the data folder.
pub async fn service_token(folder: &Path, service: &str) -> Result<Secret, Exit> {
    let stored = EnvironmentFile::read(folder)?;
    let prefix = format!("POSTERN_SERVICE_{}", service.to_uppercase());
    let [username, password] =
        ["USERNAME", "PASSWORD"].map(|name| stored.get(&format!("{prefix}_{name}")));
    let (Some(username), Some(password)) = (username, password) else {
        let is_account =
            |name: &str| name.starts_with("POSTERN_SERVICE_") && name.ends_with("_USERNAME");
        let known = stored.pairs().iter().filter(|(name, _)| is_account(name));
        let known: Vec<&str> = known.map(|(_, value)| value.as_str()).collect();
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
    tokens
        .token_for_command()
        .await
        .map_err(|error| match error {
            ServiceTokenError::Refused(reason) => Exit::unavailable(format!(
                "the identity pool rejected the account {service}: {reason}"
            )),
            ServiceTokenError::NotConfigured | ServiceTokenError::Unavailable(_) => {
                let url = stored.get("POSTERN_URL").unwrap_or_default();
                Exit::unavailable(format!(
                    "no response from postern at {url} ({error}); start it with this --data-dir first"
                ))
            }
        })
}
