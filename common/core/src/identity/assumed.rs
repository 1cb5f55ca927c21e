//! Placeholders for identity settings, for checks of a configuration without its environment.

use super::IdentityConfig;

/// Placeholder values for the identity settings that neither the file nor the environment has, so
/// that a configuration can be checked without them.
pub const ASSUMED_IDENTITY: [(&str, &str); 6] = [
    ("IDP_ACTOR_POOL_ID", "us-west-2_assumed-actor"),
    ("IDP_ACTOR_CLIENT_ID", "assumed-actor"),
    ("IDP_SERVICE_POOL_ID", "us-west-2_assumed-service"),
    ("IDP_SERVICE_CLIENT_ID", "assumed-service"),
    ("IDP_SERVICE_ACCOUNT_USERNAME", "assumed-account"),
    ("IDP_SERVICE_ACCOUNT_PASSWORD", "assumed-password"),
];

impl IdentityConfig {
    /// Returns the names of the [`ASSUMED_IDENTITY`] settings that the configuration was read with.
    #[must_use]
    pub fn assumed_settings(&self) -> Vec<&'static str> {
        let account = self.service_account.as_ref();
        let values = [
            self.actor.pool_id.as_str(),
            &self.actor.client_id,
            &self.service.pool_id,
            &self.service.client_id,
            account.map_or("", |account| &account.username),
            account.map_or("", |account| account.password.expose()),
        ];
        let pairs = ASSUMED_IDENTITY.iter().zip(values);
        let assumed = pairs.filter(|((_, assumed), value)| value == assumed);
        assumed.map(|((name, _), _)| *name).collect()
    }
}
