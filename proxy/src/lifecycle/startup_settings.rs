//! Settings that are read at startup only.

use std::path::PathBuf;

use postern_core::config::AdminListener;
use postern_service::trace::TracingConfig;

use crate::config::{Config, ListenerConfig};

/// The settings that a reload cannot change.
#[derive(Clone, Debug)]
pub(crate) struct StartupOnlySettings {
    /// The values as text, by the name of the table or key.
    values: [(&'static str, String); 9],
    // Not as text, which hides their secrets.
    admin: Option<AdminListener>,
    tracing: Option<TracingConfig>,
    /// `[admin] history`.
    pub(crate) config_history: Option<PathBuf>,
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
            limits,
            stop: _,
            handover,
            access_log,
            tracing,
            upstreams: _,
            routes: _,
            cors: _,
            response_headers: _,
            tests: _,
        } = config;
        // Access lists are part of the runtime configuration.
        let without_access = |it: &ListenerConfig| ListenerConfig {
            access: None,
            ..it.clone()
        };
        let listen: Vec<_> = listen.iter().map(without_access).collect();
        let values = [
            ("listen", format!("{listen:?}")),
            ("acme", format!("{acme:?}")),
            ("log", format!("{log:?}")),
            ("workers", format!("{workers:?}")),
            ("access_log", format!("{access_log:?}")),
            ("tokens", format!("{tokens:?}")),
            ("identity", format!("{:?}", identity.token_limits)),
            (
                "limits",
                format!(
                    "{} {}",
                    limits.connections, limits.http.response_buffer_bytes
                ),
            ),
            ("handover", format!("{handover:?}")),
        ];
        Self {
            values,
            admin: admin.clone(),
            tracing: tracing.clone(),
            config_history: config_history.clone(),
        }
    }

    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let is_other_admin =
            self.admin != other.admin || self.config_history != other.config_history;
        let with_secrets = [
            ("admin", is_other_admin),
            ("tracing", self.tracing != other.tracing),
        ];
        let pairs = self.values.iter().zip(&other.values);
        let as_text = pairs.map(|(own, other)| (own.0, own != other));
        let all = with_secrets.into_iter().chain(as_text);
        all.filter_map(|(name, differs)| differs.then_some(name))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use postern_core::config::{Env, parse};

    use super::*;

    #[test]
    fn changed_secret_differs() {
        let text = "[[listen]]\naddress = \"127.0.0.1:1\"\n\
                    [admin]\naddress = \"127.0.0.1:2\"\ntoken_env = \"ADMIN\"\n\
                    [tracing]\nendpoint = \"http://127.0.0.1:3\"\nheaders = { Authorization = \"SPANS\" }\n\
                    [upstream.a]\naddresses = [\"127.0.0.1:4\"]\n";
        let settings = |admin: &str, spans: &str| {
            let env = Env::from([("ADMIN", admin), ("SPANS", spans)]);
            let config = parse("p.toml", text, |root| Config::read(root, &env));
            StartupOnlySettings::of(&config.expect("reads"))
        };
        let (one, two) = ("a".repeat(32), "b".repeat(32));
        let running = settings(&one, "1");
        assert!(running.differences(&settings(&one, "1")).is_empty());
        assert_eq!(running.differences(&settings(&two, "1")), ["admin"]);
        assert_eq!(running.differences(&settings(&one, "2")), ["tracing"]);
    }
}
