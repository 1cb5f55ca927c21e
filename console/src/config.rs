//! The configuration: `conf/console.toml` and the secrets of the admin APIs.
//!
//! Input: the decoded file and the environment. Output: a [`Config`], or all mistakes at once.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;

use postern_core::Secret;
use postern_core::config::{Env, read_listen, secret};
use postern_core::decode::{Field, Object};
use postern_core::network::IpNetwork;
use postern_service::http::TrustedProxies;
use postern_service::log::Log;
use url::Url;

const DEFAULT_LISTEN_ADDRESS: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8512));
const DEFAULT_AUTH: &str = "http://127.0.0.1:8501";

/// The settings of the console.
#[derive(Debug)]
pub struct Config {
    /// The address of the pages (`[[listen]]`). Default `127.0.0.1:8512`.
    pub listen: SocketAddr,
    /// Host names by which the console may be called, besides loopback names. Default none.
    pub hosts: Vec<String>,
    /// Proxies whose `X-Forwarded-For` names the client. Default the loopback addresses.
    pub trusted_proxies: TrustedProxies,
    /// Log format and filter. Default JSON at `info`.
    pub log: Log,
    /// The postern-auth at which people sign in (`sign_in.auth`). Default `http://127.0.0.1:8501`.
    pub auth: Url,
    /// The file with which `postern-console link` requests one-time links (`sign_in.link_file`). Default
    /// none: there are no links.
    pub link_file: Option<PathBuf>,
    /// Who may see the pages and who may make changes.
    pub roles: RoleRules,
    /// The address of a trace in a tracing system (`trace.link`). Default none.
    pub trace_link: Option<TraceLink>,
    /// The processes that the console shows.
    pub processes: Vec<ProcessGroup>,
    /// The secret with which a program of this machine requests one-time links, of a standalone
    /// installation. Not a key of the file: `None`.
    pub link_secret: Option<Secret>,
}

/// The members of each role. Nobody else has access.
#[derive(Clone, Debug, Default)]
pub struct RoleRules {
    /// May see every page.
    pub viewer: Members,
    /// May also make changes.
    pub operator: Members,
}

/// Members of a role.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// Groups of users.
    pub groups: Vec<String>,
    /// Names of services.
    pub services: Vec<String>,
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

/// Replicas of one kind with one secret.
#[derive(Clone, Debug)]
pub struct ProcessGroup {
    /// The kind.
    pub kind: ProcessKind,
    /// Admin listeners. A host name stands for every address that it resolves to.
    pub urls: Vec<Url>,
    /// The secret of `[admin] token_env` of these processes.
    pub token: Secret,
}

// === impl Config ===

impl Config {
    /// Reads the configuration from the root table of `conf/console.toml` and the environment.
    pub fn read(root: &Object<'_>, env: &Env) -> Option<Self> {
        let log = Log::read(root, env);
        let listen = read_listen(root, DEFAULT_LISTEN_ADDRESS);
        let hosts = root.list("hosts", |field| field.text(1..=253));
        let trusted_proxies = root
            .optional("trusted_proxies", |field| field.array(IpNetwork::read))
            .map_or_else(TrustedProxies::default, TrustedProxies::from);
        let sign_in = root.section("sign_in", |sign_in| {
            let auth = sign_in.optional("auth", |field| field.url());
            Some((
                auth,
                sign_in.optional("link_file", |field| field.text(1..=4096)),
            ))
        });
        let (auth, link_file) = sign_in.unwrap_or_default();
        let roles = root.section("roles", RoleRules::read).unwrap_or_default();
        let trace_link = root.section("trace", |trace| trace.optional("link", TraceLink::read));
        let detail = "at least one [[process]] with kind = \"gateway\" is required";
        let processes = root.non_empty_list("process", detail, |field| {
            field.object(|process| ProcessGroup::read(process, env))
        });
        let has_gateway = |group: &ProcessGroup| group.kind == ProcessKind::Gateway;
        if !processes.is_empty() && !processes.iter().any(has_gateway) {
            root.fail("missing_field", detail);
        }
        let auth = auth.or_else(|| Url::parse(DEFAULT_AUTH).ok())?;
        Some(Self {
            listen,
            hosts,
            trusted_proxies,
            log,
            auth,
            link_file: link_file.map(PathBuf::from),
            roles,
            trace_link,
            processes,
            link_secret: None,
        })
    }
}

// === impl RoleRules ===

impl RoleRules {
    fn read(roles: &Object<'_>) -> Option<Self> {
        Some(Self {
            viewer: roles.section("viewer", Members::read).unwrap_or_default(),
            operator: roles.section("operator", Members::read).unwrap_or_default(),
        })
    }
}

// === impl Members ===

impl Members {
    fn read(members: &Object<'_>) -> Option<Self> {
        let name = |field: Field<'_>| field.text(1..=128);
        Some(Self {
            groups: members.list("groups", name),
            services: members.list("services", name),
        })
    }

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

// === impl ProcessGroup ===

impl ProcessGroup {
    fn read(process: &Object<'_>, env: &Env) -> Option<Self> {
        let kinds = ProcessKind::ALL.map(|kind| (kind.as_str(), kind));
        let kind = process.required("kind", |field| field.one_of(&kinds));
        let detail = "urls must name the admin listeners, such as [\"http://127.0.0.1:8509\"]";
        let urls = process.non_empty_list("urls", detail, |field| {
            let url = field.url()?;
            if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
                return field.reject("invalid_format", "must be a URL without a path or query");
            }
            Some(url)
        });
        let token = secret(process, env, "token_env");
        Some(Self {
            kind: kind?,
            urls,
            token: token?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use postern_core::config::parse;
    use postern_core::testing::{ConfigurationReference, assert_schema_written};

    use super::*;

    const EVERY_KEY: &str = r#"
hosts = ["console.example"]
trusted_proxies = ["10.0.0.0/8"]
[[listen]]
address = "127.0.0.1:8512"
[log]
format = "json"
filter = "info"
[sign_in]
auth = "http://127.0.0.1:8501"
link_file = "/run/postern-console/link"
[trace]
link = "https://traces.example/trace/{trace_id}"
[roles.viewer]
groups = ["support"]
services = ["monitoring"]
[roles.operator]
groups = ["admin"]
services = ["deploy"]
[[process]]
kind = "gateway"
urls = ["http://gateway.internal:8509"]
token_env = "GATEWAY_ADMIN_TOKEN"
"#;

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
        let reference = ConfigurationReference {
            sample: EVERY_KEY,
            document: include_str!("../../docs/reference/configuration.md"),
            sections: &["## Log", "## Console: `console.toml`"],
        };
        let accepted = reference.assert_complete(|root| Config::read(root, &env()));
        let schema = reference.schema("Postern console configuration", &accepted);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("console.schema.json");
        assert_schema_written(&path, &schema);
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
            let text = format!("[trace]\nlink = '{link}'\n");
            let refused = parse("c.toml", &text, |root| Config::read(root, &env()));
            let message = refused.expect_err(link).message().to_owned();
            let expected = "c.toml:2: trace.link: must be an http or https URL";
            assert!(message.contains(expected), "{link}: {message}");
        }
        let link = TraceLink::parse("https://t.example/{trace_id}?a=1").expect("a link");
        let id = "0af7651916cd43dd8448eb211c80319c";
        assert_eq!(link.of(id), Some(format!("https://t.example/{id}?a=1")));
        assert_eq!(link.of("../admin"), None);
        let refused = parse("c.toml", "", |root| Config::read(root, &env())).expect_err("bad");
        assert!(refused.message().contains("at least one [[process]]"));
        let text =
            "[[process]]\nkind = 'auth'\nurls = ['http://a']\ntoken_env = 'AUTH_ADMIN_TOKEN'\n";
        let refused = parse("c.toml", text, |root| Config::read(root, &env())).expect_err("bad");
        assert!(refused.message().contains("kind = \"gateway\""));
    }
}
