//! The configuration: `conf/console.toml` and the secrets of the admin APIs.
//!
//! Input: the decoded file and the environment. Output: a [`Config`], or all mistakes at once.

use std::net::SocketAddr;
use std::path::PathBuf;

use postern_core::Secret;
use postern_core::config::{Env, read_listen, secret};
use postern_core::decode::{Field, Object};
use postern_core::settings;
use postern_service::http::TrustedProxies;
use postern_service::log::Log;
use url::Url;

settings! {
    /// The settings of the console.
    #[derive(Debug)]
    pub struct Config(root, env: &Env) {
        /// The address of the pages (`[[listen]]`).
        pub listen: SocketAddr = (Some(read_listen(root, "127.0.0.1:8512"))),
        /// Log format and filter.
        pub log: Log = (Some(Log::read_section(root, env))),
        /// `Host` values accepted besides loopback names.
        pub hosts: Vec<String> = [] => |field| field.array(|item| item.typed("name").text(1..=253)),
        /// Proxies whose `X-Forwarded-For` names the client.
        pub trusted_proxies: TrustedProxies = (Some(TrustedProxies::read_optional(root))),
        /// Where people sign in.
        pub sign_in: SignInConfig = {} => |field| field.object(SignInConfig::read),
        /// Address of a trace in a tracing system, such as `https://traces.example/trace/{trace_id}`.
        pub trace_link: Option<TraceLink> = None => TraceLink::read,
        /// Prometheus with the figures of more than 6 hours, such as `http://127.0.0.1:9090`; may contain
        /// `user:password@`.
        pub prometheus: Option<Secret> = None => read_prometheus_url,
        /// Who has access; nobody else has.
        pub roles: RoleRules = {} => |field| field.object(RoleRules::read),
        /// The processes to show; at least one gateway, which verifies tokens.
        pub processes as process: Vec<ProcessGroup> = [..] (NO_GATEWAY)
            => |field| field.object(|process| ProcessGroup::read(process, env)),
        /// The secret with which a program of this machine requests one-time links, of a standalone
        /// installation. Not a key of the file: `None`.
        pub link_secret: Option<Secret> = (Some(None)),
    } => check_gateway(root, processes.as_deref().unwrap_or_default())
}

settings! {
    /// Where people sign in.
    #[derive(Debug)]
    pub struct SignInConfig(table) {
        /// The `postern-auth` at which people sign in.
        pub auth: Url = "http://127.0.0.1:8501" => |field| field.url(),
        /// File of `postern-console link`; without it there are no links.
        pub link_file: Option<PathBuf> = None
            => |field| field.typed("path").text(1..=4096).map(PathBuf::from),
    }
}

settings! {
    /// The members of each role. Nobody else has access.
    #[derive(Clone, Debug)]
    pub struct RoleRules(table) {
        /// May see every page, but no messages.
        pub viewer: Members = {} => |field| field.object(Members::read),
        /// May also see messages and make changes.
        pub operator: Members = {} => |field| field.object(Members::read),
    }
}

settings! {
    /// Members of a role.
    #[derive(Clone, Debug)]
    pub struct Members(table) {
        /// Groups of users of the actor pool.
        pub groups: Vec<String> = [] => |field| field.array(|item| item.text(1..=128)),
        /// Names of services.
        pub services: Vec<String> = [] => |field| field.array(|item| item.text(1..=128)),
    }
}

/// The address of a trace, with `{trace_id}` in place of the id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceLink(String);

/// The kind of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessKind {
    /// `postern-proxy`.
    Gateway,
    /// `postern-auth`.
    Auth,
    /// `postern-notify`.
    Notify,
}

settings! {
    /// Replicas of one kind with one secret.
    #[derive(Clone, Debug)]
    pub struct ProcessGroup(process, env: &Env) {
        /// Kind of the process.
        pub kind: ProcessKind
            => |field| field.one_of(&ProcessKind::ALL.map(|kind| (kind.as_str(), kind))),
        /// Admin listeners; an `http` host name stands for each of its addresses.
        pub urls: Vec<Url> = [..] (NO_URLS) => read_admin_url,
        /// Their secret of `[admin] token_env`.
        pub token as token_env: Secret => |field| secret(field, env),
    }
}

const NO_GATEWAY: &str = "at least one [[process]] with kind = \"gateway\" is required";
const NO_URLS: &str = "urls must name the admin listeners, such as [\"http://127.0.0.1:8509\"]";

fn check_gateway(root: &Object<'_>, processes: &[ProcessGroup]) {
    let has_gateway = |group: &ProcessGroup| group.kind == ProcessKind::Gateway;
    if !processes.is_empty() && !processes.iter().any(has_gateway) {
        root.fail("missing_field", NO_GATEWAY);
    }
}

fn read_admin_url(field: Field<'_>) -> Option<Url> {
    let url = field.url()?;
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return field.reject("invalid_format", "must be a URL without a path or query");
    }
    Some(url)
}

/// Reads the base of an HTTP API. It is a secret, because it may contain a password.
fn read_prometheus_url(field: Field<'_>) -> Option<Secret> {
    let text = field.typed("URL").text(1..=2048)?;
    let is_web = |url: Url| ["http", "https"].contains(&url.scheme());
    if !Url::parse(&text).is_ok_and(is_web) || text.contains(['?', '#']) {
        return field.reject(
            "invalid_format",
            "must be an http or https URL without a query",
        );
    }
    Some(Secret::from(text.trim_end_matches('/')))
}

// === impl Members ===

impl Members {
    /// Returns whether a user of these groups, or a service of this name, is a member.
    pub(crate) fn includes(&self, groups: &[&str], service: Option<&str>) -> bool {
        let is_listed = |group: &&str| self.groups.iter().any(|known| known == group);
        groups.iter().any(is_listed)
            || service.is_some_and(|name| self.services.iter().any(|known| known == name))
    }
}

// === impl TraceLink ===

impl TraceLink {
    /// The part that the id replaces.
    const PLACEHOLDER: &'static str = "{trace_id}";

    fn read(field: Field<'_>) -> Option<Self> {
        let link = Self::parse(&field.text(1..=2048)?);
        let detail = "must be an http or https URL with {trace_id}, such as https://traces.example/{trace_id}";
        link.or_else(|| field.reject("invalid_format", detail))
    }

    /// Parses a template; `None` if it lacks the placeholder behind the host, or is no URL.
    pub(crate) fn parse(template: &str) -> Option<Self> {
        let url = Url::parse(&template.replace(Self::PLACEHOLDER, "0")).ok()?;
        let is_web = ["http", "https"].contains(&url.scheme()) && url.username().is_empty();
        let (_, rest) = template.split_once("://")?;
        let (_, path) = rest.split_once('/')?;
        (is_web && path.contains(Self::PLACEHOLDER)).then(|| Self(template.to_owned()))
    }

    /// Returns the address of a trace; `None` if the text is no trace id.
    pub(crate) fn of(&self, trace_id: &str) -> Option<String> {
        let is_id = trace_id.len() == 32 && trace_id.bytes().all(|it| it.is_ascii_hexdigit());
        is_id.then(|| self.0.replace(Self::PLACEHOLDER, trace_id))
    }
}

// === impl ProcessKind ===

impl ProcessKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Gateway, Self::Auth, Self::Notify];

    /// Returns the name in the configuration and on the pages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Auth => "auth",
            Self::Notify => "notify",
        }
    }

    /// Returns the name of the job in Prometheus.
    pub(crate) const fn job(self) -> &'static str {
        match self {
            Self::Gateway => "postern-proxy",
            Self::Auth => "postern-auth",
            Self::Notify => "postern-notify",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use postern_core::config::parse;
    use postern_core::testing::DeclaredSettings;

    use super::*;

    fn env() -> Env {
        let token = "0123456789abcdef0123456789abcdef";
        Env::from([
            ("GATEWAY_ADMIN_TOKEN", token),
            ("AUTH_ADMIN_TOKEN", token),
            ("NOTIFY_ADMIN_TOKEN", token),
        ])
    }

    #[test]
    fn every_key_is_in_the_reference_and_in_the_schema() {
        let read = |root: &Object<'_>| Config::read(root, &env());
        let settings = DeclaredSettings::record("", read);
        settings.assert_documented("console.toml");
        settings.assert_shipped("console.toml", read);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("console.schema.json");
        settings.assert_schema("Postern console configuration", &path);
    }

    #[test]
    fn wrong_values_are_refused_with_line_and_key() {
        let text = "[[process]]\nkind = 'proxy'\nurls = ['http://a/x']\ntoken_env = 'NONE'\n";
        let refused = parse("c.toml", text, |root| Config::read(root, &env())).expect_err("bad");
        for expected in [
            "c.toml:2: process.0.kind: must be",
            "c.toml:3: process.0.urls.0: must be a URL without a path or query",
            "c.toml:4: process.0.token_env: the variable NONE is not set",
        ] {
            assert!(
                refused.message().contains(expected),
                "{}",
                refused.message()
            );
        }
        for link in [
            "https://traces.example/",
            "https://{trace_id}.example/",
            "https://{trace_id}",
            "javascript://x/{trace_id}",
            "ftp://traces.example/{trace_id}",
            "/{trace_id}",
        ] {
            let text = format!("trace_link = '{link}'\n");
            let refused = parse("c.toml", &text, |root| Config::read(root, &env()));
            let message = refused.expect_err(link).message().to_owned();
            let expected = "c.toml:1: trace_link: must be an http or https URL";
            assert!(message.contains(expected), "{link}: {message}");
        }
        let link = TraceLink::parse("https://t.example/{trace_id}?a=1").expect("a link");
        let id = "0af7651916cd43dd8448eb211c80319c";
        assert_eq!(link.of(id), Some(format!("https://t.example/{id}?a=1")));
        assert_eq!(link.of("../admin"), None);
        for prometheus in [
            "u:hidden@h",
            "ftp://u:hidden@h",
            "http://u:hidden@h/?q",
            "http://u:hidden@h/#",
        ] {
            let text = format!("prometheus = '{prometheus}'\n");
            let refused = parse("c.toml", &text, |root| Config::read(root, &env()));
            let message = refused.expect_err(prometheus).message().to_owned();
            let expected = "c.toml:1: prometheus: must be an http or https URL";
            assert!(message.contains(expected), "{prometheus}: {message}");
            assert!(!message.contains("hidden"), "{message}");
        }
        let refused = parse("c.toml", "", |root| Config::read(root, &env())).expect_err("bad");
        assert!(refused.message().contains("at least one [[process]]"));
        let text =
            "[[process]]\nkind = 'auth'\nurls = ['http://a']\ntoken_env = 'AUTH_ADMIN_TOKEN'\n";
        let refused = parse("c.toml", text, |root| Config::read(root, &env())).expect_err("bad");
        assert!(refused.message().contains("kind = \"gateway\""));
    }
}
