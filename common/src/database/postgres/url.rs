//! PostgreSQL URLs with one or several hosts, parsed as libpq does.

use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;
use url::{Host, Url, form_urlencoded};

/// The servers that a URL names, in order, and the required session attributes.
#[derive(Clone, Debug)]
pub(super) struct ConnectTargets {
    pub(super) hosts: Vec<PgConnectOptions>,
    pub(super) session: SessionAttrs,
    /// Whether the URL sets `sslmode`.
    pub(super) has_tls_mode: bool,
}

/// `target_session_attrs`: the accepted servers. The default is `read-write`, because the services
/// write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionAttrs {
    Any,
    Primary,
    ReadWrite,
}

/// The parts of a URL. The authority may contain several hosts, which the `url` crate does not
/// support.
struct UrlParts<'a> {
    scheme: &'a str,
    user: Option<&'a str>,
    hosts: &'a str,
    path: &'a str,
    query: &'a str,
}

// === impl ConnectTargets ===

impl ConnectTargets {
    /// Parses `postgres://user:password@a:5432,b:5433/name?target_session_attrs=read-write` and
    /// `postgres://user@/name?host=a,b&port=5432,5433`.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let parts = UrlParts::of(url).ok_or("it has no `://`")?;
        let mut session = SessionAttrs::ReadWrite;
        let (mut hosts, mut ports, mut has_tls_mode) = (None, None, false);
        let mut rest = form_urlencoded::Serializer::new(String::new());
        let mut other_host = false;
        for (key, value) in form_urlencoded::parse(parts.query.as_bytes()) {
            match &*key {
                "target_session_attrs" => session = SessionAttrs::parse(&value)?,
                "host" => hosts = Some(value.into_owned()),
                "port" => ports = Some(value.into_owned()),
                _ => {
                    has_tls_mode |= matches!(&*key, "sslmode" | "ssl-mode");
                    other_host |= key == "hostaddr";
                    rest.append_pair(&key, &value);
                }
            }
        }
        let host_ports = match &hosts {
            Some(hosts) => from_parameters(hosts, ports.as_deref())?,
            None => from_authority(parts.hosts, ports.as_deref())?,
        };
        if other_host && host_ports.len() > 1 {
            return Err("`hostaddr` cannot be combined with several hosts".to_owned());
        }
        let rest = rest.finish();
        let hosts = host_ports
            .iter()
            .map(|host_port| parts.options(host_port, &rest))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            hosts,
            session,
            has_tls_mode,
        })
    }

    /// Returns whether password and data may be sent unencrypted if a server, or an attacker on the
    /// path, does not offer TLS.
    pub(super) fn may_be_unencrypted(&self) -> bool {
        !self.has_tls_mode && self.hosts.iter().any(|options| !is_local(options))
    }
}

/// Host and port, if given.
type HostPort = (Option<String>, Option<String>);

fn from_parameters(hosts: &str, ports: Option<&str>) -> Result<Vec<HostPort>, String> {
    let hosts: Vec<_> = hosts.split(',').collect();
    let ports: Vec<_> = ports.map_or_else(Vec::new, |ports| ports.split(',').collect());
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(format!(
            "it has {} hosts and {} ports",
            hosts.len(),
            ports.len()
        ));
    }
    let port = |at: usize| {
        ports
            .get(at)
            .or(ports.first())
            .map(|port| (*port).to_owned())
    };
    let host_port = |(at, host): (usize, &&str)| (Some((*host).to_owned()), port(at));
    Ok(hosts.iter().enumerate().map(host_port).collect())
}

fn from_authority(hosts: &str, port: Option<&str>) -> Result<Vec<HostPort>, String> {
    let host_port = |text: &str| {
        let (host, own) = match text.rsplit_once(':') {
            Some((host, own)) if !own.ends_with(']') => (host, Some(own)),
            Some(_) | None => (text, None),
        };
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let host = decoded(host);
        let own = own
            .filter(|own| !own.is_empty())
            .or(port)
            .map(str::to_owned);
        ((!host.is_empty()).then_some(host), own)
    };
    let host_ports: Vec<HostPort> = hosts.split(',').map(host_port).collect();
    if host_ports.len() > 1 && host_ports.iter().any(|(host, _)| host.is_none()) {
        return Err("one of its hosts is empty".to_owned());
    }
    Ok(host_ports)
}

/// Decodes a percent-encoded host; a socket directory is written as `%2Fvar%2Frun`.
fn decoded(host: &str) -> String {
    let pair = format!("h={}", host.replace('+', "%2B"));
    form_urlencoded::parse(pair.as_bytes())
        .next()
        .map_or_else(String::new, |(_, host)| host.into_owned())
}

fn is_local(options: &PgConnectOptions) -> bool {
    let host = options.get_host();
    options.get_socket().is_some()
        || host.starts_with('/')
        || match Host::parse(host) {
            Ok(Host::Ipv4(address)) => address.is_loopback(),
            Ok(Host::Domain(name)) => name == "localhost",
            Ok(Host::Ipv6(_)) | Err(_) => host
                .parse::<std::net::Ipv6Addr>()
                .is_ok_and(|it| it.is_loopback()),
        }
}

// === impl UrlParts ===

impl<'a> UrlParts<'a> {
    fn of(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        Some(Self {
            scheme,
            user,
            hosts,
            path,
            query,
        })
    }

    /// Returns the driver options of one host. The host is passed as a parameter, which supports
    /// socket paths and bare IPv6 addresses.
    fn options(&self, (host, port): &HostPort, rest: &str) -> Result<PgConnectOptions, String> {
        let mut query = form_urlencoded::Serializer::new(rest.to_owned());
        let mut authority = String::new();
        if let Some(host) = host {
            query.append_pair("host", host);
            authority.push_str("localhost");
        }
        if let Some(port) = port {
            query.append_pair("port", port);
        }
        if let Some(user) = self.user {
            // The driver parses a user only if there is a host.
            authority = format!("{user}@localhost");
            if host.is_none() {
                return Err("it has a user and no host".to_owned());
            }
        }
        let text = format!(
            "{}://{authority}{}?{}",
            self.scheme,
            self.path,
            query.finish()
        );
        Url::parse(&text).map_err(|error| error.to_string())?;
        PgConnectOptions::from_str(&text).map_err(|error| error.to_string())
    }
}

// === impl SessionAttrs ===

impl SessionAttrs {
    fn parse(value: &str) -> Result<Self, String> {
        match value {
            "any" => Ok(Self::Any),
            "primary" => Ok(Self::Primary),
            "read-write" => Ok(Self::ReadWrite),
            _ => Err(format!(
                "target_session_attrs is `{value}`; it must be read-write, primary or any, because the services write"
            )),
        }
    }

    /// Returns whether a server with this role is accepted: an empty string, `standby` or
    /// `read-only`.
    pub(super) fn accepts(self, role: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Primary => role != "standby",
            Self::ReadWrite => role.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_ports(url: &str) -> Vec<String> {
        let targets = ConnectTargets::parse(url).expect("a valid URL");
        let host_port = |options: &PgConnectOptions| match options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => format!("{} {}", options.get_host(), options.get_port()),
        };
        targets.hosts.iter().map(host_port).collect()
    }

    #[test]
    fn hosts_keep_their_order_and_ports() {
        for (url, expected) in [
            (
                "postgres://ada:pw@db.example:5433/x",
                vec!["db.example 5433"],
            ),
            (
                "postgres://ada:p%40w@a:5433,b:5434/x?sslmode=disable",
                vec!["a 5433", "b 5434"],
            ),
            ("postgres://ada@a,b:5434/x", vec!["a 5432", "b 5434"]),
            ("postgres:///x?host=a,b&user=ada", vec!["a 5432", "b 5432"]),
            ("postgres:///x?host=a,b&port=5433", vec!["a 5433", "b 5433"]),
            (
                "postgres:///x?host=a,b&port=5433,5434",
                vec!["a 5433", "b 5434"],
            ),
            (
                "postgres://ada@[::1]:5433,127.0.0.1/x",
                vec!["::1 5433", "127.0.0.1 5432"],
            ),
            (
                "postgres://ada@%2Frun%2Fpostgresql/x",
                vec!["/run/postgresql"],
            ),
            ("postgres:///x?host=/run/a,b", vec!["/run/a", "b 5432"]),
        ] {
            assert_eq!(host_ports(url), expected, "{url}");
        }
        let targets = ConnectTargets::parse("postgres://ada:p%40w@a,b/x?user=eve").expect("good");
        assert!(
            targets
                .hosts
                .iter()
                .all(|options| options.get_username() == "eve")
        );
        assert!(
            targets
                .hosts
                .iter()
                .all(|options| options.get_database() == Some("x"))
        );
    }

    #[test]
    fn invalid_url_is_rejected_with_the_reason() {
        for (url, reason) in [
            ("postgres://ada@a,/x", "one of its hosts is empty"),
            (
                "postgres:///x?host=a,b,c&port=1,2",
                "it has 3 hosts and 2 ports",
            ),
            ("postgres://ada@a:b/x", "invalid digit"),
            (
                "postgres://ada@a,b/x?hostaddr=127.0.0.1",
                "`hostaddr` cannot be combined",
            ),
            (
                "postgres://ada@a,b/x?target_session_attrs=standby",
                "because the services write",
            ),
        ] {
            let error = ConnectTargets::parse(url).expect_err(url);
            assert!(error.contains(reason), "{url}: {error}");
        }
    }

    #[test]
    fn session_attributes_decide_which_servers_are_accepted() {
        let session = |text: &str| {
            ConnectTargets::parse(&format!("postgres://a,b/x?target_session_attrs={text}"))
                .expect("good")
                .session
        };
        let accepted =
            |session: SessionAttrs| ["", "standby", "read-only"].map(|role| session.accepts(role));
        assert_eq!(accepted(session("any")), [true, true, true]);
        assert_eq!(accepted(session("primary")), [true, false, true]);
        assert_eq!(accepted(session("read-write")), [true, false, false]);
        assert_eq!(
            ConnectTargets::parse("postgres://a/x")
                .expect("good")
                .session,
            SessionAttrs::ReadWrite
        );
    }

    #[test]
    fn missing_tls_mode_is_detected_beyond_loopback() {
        for (url, expected) in [
            ("postgres://ada@127.0.0.1/x", false),
            ("postgres://ada@[::1]:5432/x", false),
            ("postgres://ada@localhost/x", false),
            ("postgres:///x?host=/run/postgresql", false),
            ("postgres://ada@10.0.0.1/x", true),
            ("postgres://ada@db.example/x", true),
            ("postgres://ada@localhost,db.example/x", true),
            ("postgres://ada@[2001:db8::1]/x", true),
            ("postgres://ada@db.example/x?sslmode=verify-full", false),
            ("postgres://ada@db.example/x?sslmode=disable", false),
        ] {
            let targets = ConnectTargets::parse(url).expect("good");
            assert_eq!(targets.may_be_unencrypted(), expected, "{url}");
        }
    }
}
