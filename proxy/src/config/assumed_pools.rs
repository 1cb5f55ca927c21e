use crate::config::Config;

/// Settings of the pools that stand in for those that neither the file nor the environment has: the
/// routes and the tests of a configuration can be checked without them.
pub const ASSUMED_POOLS: [(&str, &str); 4] = [
    ("IDP_ACTOR_POOL_ID", "us-west-2_assumed-actor"),
    ("IDP_ACTOR_CLIENT_ID", "assumed-actor"),
    ("IDP_SERVICE_POOL_ID", "us-west-2_assumed-service"),
    ("IDP_SERVICE_CLIENT_ID", "assumed-service"),
];

/// Which of [`ASSUMED_POOLS`] a configuration was read with.
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
