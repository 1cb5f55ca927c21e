//! The runtime configuration: an immutable snapshot in which a configuration is ready for use.

use std::path::PathBuf;
use std::sync::Arc;

use postern_core::exit::Exit;
use postern_core::identity::TrustConfig;
use postern_core::weighted::weighted_choice;
use postern_http::client_shares::SharedBudget;

use crate::api_keys::ApiKeyFile;
use crate::config::{
    ApiKeyConfig, ClientLimits, Config, CorsPolicy, ExternalAuthorization, HeaderChanges, Route,
    ShutdownConfig,
};
use crate::external_authorization::ExternalAuthorizer;
use crate::routing::table::RouteTable;
use crate::state::listener_access::ListenerAccess;
use crate::telemetry::metrics::GatewayMetrics;
use crate::upstream::{NameResolver, UpstreamPool};

/// A configuration in force. Requests keep the snapshot with which they started.
#[derive(Debug)]
pub(crate) struct RuntimeConfig {
    pub(crate) route_table: RouteTable,
    pub(crate) route_states: Vec<RouteState>,
    /// The CORS policy for requests that match no route.
    pub(crate) cors: Option<Arc<CorsPolicy>>,
    /// The changes of responses to requests that match no route.
    pub(crate) response_headers: Option<Arc<HeaderChanges>>,
    pub(crate) pools: Vec<Arc<UpstreamPool>>,
    resolver: Arc<NameResolver>,
    pub(crate) limits: Arc<ClientLimits>,
    /// The API keys, if any are accepted.
    pub(crate) api_keys: Option<Arc<ApiKeyFile>>,
    pub(crate) api_key_config: Option<ApiKeyConfig>,
    pub(crate) listener_access: ListenerAccess,
    /// The issuers whose keys are required for readiness.
    pub(crate) identity: TrustConfig,
    pub(crate) shutdown: ShutdownConfig,
}

#[derive(Debug)]
pub(crate) struct RouteState {
    /// The slots of mirrored requests, if the route mirrors.
    pub(crate) mirror_slots: Option<Arc<SharedBudget>>,
    /// The external authorization, if the route has one.
    pub(crate) authorizer: Option<Arc<ExternalAuthorizer>>,
}

impl RuntimeConfig {
    /// Prepares a configuration. Unchanged upstream pools of `previous` are reused.
    ///
    /// # Errors
    /// Status 64 if a file that it names is invalid.
    pub(crate) fn new(
        mut config: Config,
        previous: Option<&Self>,
        metrics: &GatewayMetrics,
    ) -> Result<Self, Exit> {
        let api_key_config = config.api_keys.take();
        let api_keys = api_key_config
            .as_ref()
            .map(|keys| api_key_file(keys.file.clone(), previous));
        let kept = previous.map(|previous| &previous.listener_access);
        let listener_access = ListenerAccess::new(&config.listen, kept);
        let table = RouteTable::new(config.routes);
        let resolver = previous.map(|previous| Arc::clone(&previous.resolver));
        let resolver = resolver.unwrap_or_default();
        let reusable = |upstream: &crate::config::UpstreamConfig| {
            let pools = previous
                .map(|previous| previous.pools.as_slice())
                .unwrap_or_default();
            pools
                .iter()
                .find(|pool| pool.is_reusable(upstream))
                .map(Arc::clone)
        };
        let pool = |upstream: crate::config::UpstreamConfig| match reusable(&upstream) {
            Some(pool) => Ok(pool),
            None => UpstreamPool::new(upstream, &resolver, metrics).map(Arc::new),
        };
        let pools = config
            .upstreams
            .into_iter()
            .map(pool)
            .collect::<Result<Vec<_>, _>>()?;
        let states = table.routes.iter();
        let route_states = states
            .map(|route| RouteState::new(route, previous, metrics))
            .collect::<Result<_, _>>()?;
        let (limits, stop) = (Arc::new(config.limits), config.stop);
        let (cors, response_headers) = (config.cors, config.response_headers);
        Ok(Self {
            route_table: table,
            route_states,
            cors,
            response_headers,
            pools,
            resolver,
            limits,
            api_keys: api_keys.transpose()?,
            api_key_config,
            listener_access,
            identity: config.identity,
            shutdown: stop,
        })
    }

    /// Drains the upstream addresses of the configuration `before` that this one does not contain.
    pub(crate) fn drain_replaced(&self, before: &Self) {
        let is_kept = |pool: &Arc<UpstreamPool>| self.pools.iter().any(|it| Arc::ptr_eq(it, pool));
        for pool in before.pools.iter().filter(|pool| !is_kept(pool)) {
            let mut pools = self.pools.iter();
            let successor = pools.find(|it| it.config.name == pool.config.name);
            pool.drain_removed(successor.map(|pool| &**pool));
        }
    }

    /// Returns an upstream pool of the route; `turn` distributes requests by weight.
    pub(crate) fn pool(&self, route: &Route, turn: u64) -> &Arc<UpstreamPool> {
        let weights = route.targets.iter().map(|target| target.weight);
        let target = weighted_choice(weights, turn).unwrap_or_default();
        &self.pools[route.targets[target].upstream]
    }

    /// Returns whether all upstreams of the route are spoken to in HTTP/2.
    pub(crate) fn is_http2(&self, route: &Route) -> bool {
        route
            .targets
            .iter()
            .all(|target| self.pools[target.upstream].config.http2)
    }
}

impl RouteState {
    /// Prepares the state of a route. An external authorization of `previous` that has not changed is
    /// kept with its circuit breaker.
    fn new(
        route: &Route,
        previous: Option<&RuntimeConfig>,
        metrics: &GatewayMetrics,
    ) -> Result<Self, Exit> {
        let same = |config: &ExternalAuthorization| {
            let previous = previous?;
            let mut known = previous
                .route_table
                .routes
                .iter()
                .zip(&previous.route_states);
            known.find_map(|(known, state)| {
                let authorizer = state.authorizer.as_ref()?;
                let is_same = known.name == route.name && authorizer.config == *config;
                is_same.then(|| Arc::clone(authorizer))
            })
        };
        let prepare = |config: &ExternalAuthorization| match same(config) {
            Some(same) => Ok(same),
            None => ExternalAuthorizer::new(config.clone(), &route.name, metrics).map(Arc::new),
        };
        let mirror = route.mirror.as_ref();
        Ok(Self {
            mirror_slots: mirror.map(|mirror| SharedBudget::new(mirror.in_flight)),
            authorizer: route
                .settings
                .authorize
                .as_deref()
                .map(prepare)
                .transpose()?,
        })
    }
}

/// Returns the file of the previous configuration if it has this path, with its keys.
fn api_key_file(path: PathBuf, previous: Option<&RuntimeConfig>) -> Result<Arc<ApiKeyFile>, Exit> {
    let same = previous
        .and_then(|previous| previous.api_keys.as_ref())
        .filter(|file| file.path() == path);
    match same {
        Some(same) => Ok(Arc::clone(same)),
        None => ApiKeyFile::load(path).map(Arc::new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::read_tables;

    #[test]
    fn reload_keeps_unchanged_upstreams() {
        let metrics = GatewayMetrics::new().expect("metrics");
        let load = |retries: u32, previous: Option<&RuntimeConfig>| {
            let text = format!(
                "[limits]\nmin_rate = {}\n[upstream.changed]\naddresses = [\"127.0.0.1:1\"]\nretries = {retries}\n",
                retries + 1
            );
            let config = read_tables(&text).expect("reads");
            RuntimeConfig::new(config, previous, &metrics).expect("ready")
        };
        let previous = load(0, None);
        let after = load(1, Some(&previous));
        let pool = |live: &RuntimeConfig, name| {
            let mut pools = live.pools.iter();
            let pool = pools.find(|pool| pool.config.name == name);
            Arc::clone(pool.expect("a pool"))
        };
        let is_reused = |name| Arc::ptr_eq(&pool(&previous, name), &pool(&after, name));
        assert!(is_reused("origin"), "the pool is reused with its state");
        assert!(!is_reused("changed"));
        assert_eq!(pool(&after, "changed").config.retries, 1);
        assert_eq!(after.limits.http.min_rate, 2);
    }
}
