//! Settings that are read at startup only.

use std::path::PathBuf;

use postern_core::config::AdminListener;
use postern_core::token::TokenLimits;
use postern_service::log::Log;
use postern_service::trace::TracingConfig;

use crate::config::{AccessLogConfig, AcmeConfig, Config, ListenerConfig, TokenConfig};

/// The settings that a reload cannot change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StartupOnlySettings {
    listen: Vec<ListenerConfig>,
    acme: Option<AcmeConfig>,
    admin: Option<AdminListener>,
    config_history: Option<PathBuf>,
    log: Log,
    workers: Option<usize>,
    access_log: AccessLogConfig,
    tracing: Option<TracingConfig>,
    tokens: TokenConfig,
    token_limits: TokenLimits,
    handover: Option<PathBuf>,
}

impl StartupOnlySettings {
    pub(crate) fn of(config: &Config) -> Self {
        // Without `..`: a new setting does not compile until it is listed as one that a reload
        // changes (`_`), or is compared below.
        let Config {
            listen,
            acme,
            admin,
            config_history,
            log,
            workers,
            identity,
            tokens,
            api_keys: _,
            limits: _,
            stop: _,
            handover,
            access_log,
            tracing,
            dns: _,
            upstreams: _,
            routes: _,
            cors: _,
            response_headers: _,
            tests: _,
        } = config;
        Self {
            // Access lists are part of the runtime configuration.
            listen: listen.iter().map(ListenerConfig::without_access).collect(),
            acme: acme.clone(),
            admin: admin.clone(),
            config_history: config_history.clone(),
            log: log.clone(),
            workers: *workers,
            access_log: access_log.clone(),
            tracing: tracing.clone(),
            tokens: tokens.clone(),
            token_limits: identity.token_limits,
            handover: handover.clone(),
        }
    }

    /// Returns `[admin] history`.
    pub(crate) fn config_history(&self) -> Option<PathBuf> {
        self.config_history.clone()
    }

    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let Self {
            listen,
            acme,
            admin,
            config_history,
            log,
            workers,
            access_log,
            tracing,
            tokens,
            token_limits,
            handover,
        } = self;
        let all = [
            ("listen", *listen != other.listen),
            ("acme", *acme != other.acme),
            (
                "admin",
                *admin != other.admin || *config_history != other.config_history,
            ),
            ("log", *log != other.log),
            ("workers", *workers != other.workers),
            ("access_log", *access_log != other.access_log),
            ("tracing", *tracing != other.tracing),
            ("tokens", *tokens != other.tokens),
            ("identity", *token_limits != other.token_limits),
            ("handover", *handover != other.handover),
        ];
        all.into_iter()
            .filter_map(|(name, differs)| differs.then_some(name))
            .collect()
    }
}
