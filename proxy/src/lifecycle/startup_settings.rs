//! Settings that are read at startup only.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::{AccessLogConfig, Config, ListenerConfig, TokenConfig, TraceConfig};

/// The settings that a reload cannot change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StartupOnlySettings {
    listen: Vec<ListenerConfig>,
    admin: (Option<SocketAddr>, Vec<String>),
    workers: Option<usize>,
    access_log: AccessLogConfig,
    traces: Option<TraceConfig>,
    tokens: TokenConfig,
    handover: Option<PathBuf>,
    /// Whether an upstream certificate is verified against the system's certificate authorities.
    roots: bool,
}

impl StartupOnlySettings {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            listen: config.listen.clone(),
            admin: (config.admin, config.admin_hosts.clone()),
            workers: config.workers,
            access_log: config.access_log.clone(),
            traces: config.traces.clone(),
            tokens: config.tokens.clone(),
            handover: config.handover.clone(),
            roots: config.needs_system_roots(),
        }
    }

    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let Self {
            listen,
            admin,
            workers,
            access_log,
            traces,
            tokens,
            handover,
            roots,
        } = self;
        let all = [
            ("listen", *listen != other.listen),
            ("admin", *admin != other.admin),
            ("workers", *workers != other.workers),
            ("access_log", *access_log != other.access_log),
            ("traces", *traces != other.traces),
            ("tokens", *tokens != other.tokens),
            ("handover", *handover != other.handover),
            // Authorities that are no longer required need no restart.
            ("upstream.tls.ca", !*roots && other.roots),
        ];
        all.into_iter()
            .filter_map(|(name, differs)| differs.then_some(name))
            .collect()
    }
}
