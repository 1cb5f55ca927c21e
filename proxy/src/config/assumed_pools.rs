//! Placeholders for user pool settings, for checks without them.

use crate::config::Config;

/// Placeholder values for the user pool settings that neither the file nor the environment has, so
/// that the routes and tests of a configuration can be checked without them.
pub const ASSUMED_POOLS: [(&str, &str); 4] = [
    ("IDP_ACTOR_POOL_ID", "us-west-2_assumed-actor"),
    ("IDP_ACTOR_CLIENT_ID", "assumed-actor"),
    ("IDP_SERVICE_POOL_ID", "us-west-2_assumed-service"),
    ("IDP_SERVICE_CLIENT_ID", "assumed-service"),
];

/// Returns the names of the [`ASSUMED_POOLS`] settings that a configuration was read with.
#[must_use]
pub fn assumed_settings(config: &Config) -> Vec<&'static str> {
    let (actor, service) = (&config.identity.actor, &config.identity.service);
    let values = [
        &actor.pool_id,
        &actor.client_id,
        &service.pool_id,
        &service.client_id,
    ];
    let pairs = ASSUMED_POOLS.iter().zip(values);
    pairs
        .filter_map(|((name, assumed), value)| (value == assumed).then_some(*name))
        .collect()
}
