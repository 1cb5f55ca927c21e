//! PostgreSQL URLs with one or several hosts.

use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use url::{Host, Url};

use postern_core::secret::{PERCENT_ENCODE, has_misplaced_password};

/// The servers that a URL names, in order. They must accept writes.
#[derive(Clone, Debug)]
pub(super) struct ConnectTargets {
    pub(super) hosts: Vec<PgConnectOptions>,
    /// Whether the URL sets `sslmode`.
    has_tls_mode: bool,
}

impl ConnectTargets {
    /// Parses `postgres://user:password@a:5432,b:5433/name?target_session_attrs=read-write`. What
    /// follows the hosts applies to each of them.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or("it has no `://`")?;
        if has_misplaced_password(url) {
            return Err(PERCENT_ENCODE.to_owned());
        }
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let mut targets = Self {
            hosts: Vec::new(),
            has_tls_mode: false,
        };
        for host in hosts.split(',') {
            let mut url = Url::parse(&format!("{scheme}://{user}{host}{path}"))
                .map_err(|error| error.to_string())?;
            targets.take_session_attributes(&mut url)?;
            let options = PgConnectOptions::from_url(&url).map_err(|error| error.to_string())?;
            let host = options.get_host().trim_matches(['[', ']']).to_owned();
            if host.contains(',') {
                return Err("several hosts must stand before the path".to_owned());
            }
            targets.hosts.push(match options.get_socket() {
                Some(_) => options,
                None => options.host(&host),
            });
        }
        Ok(targets)
    }

    /// Removes `target_session_attrs`, which the driver does not know, from the parameters.
    fn take_session_attributes(&mut self, url: &mut Url) -> Result<(), String> {
        let mut rest = Vec::new();
        for (key, value) in url.query_pairs().into_owned() {
            match (&*key, &*value) {
                ("target_session_attrs", "read-write") => {}
                ("target_session_attrs", _) => {
                    return Err(format!(
                        "target_session_attrs is `{value}`; it must be read-write, because the services write"
                    ));
                }
                _ => {
                    self.has_tls_mode |= matches!(&*key, "sslmode" | "ssl-mode");
                    rest.push((key, value));
                }
            }
        }
        url.query_pairs_mut().clear().extend_pairs(rest);
        Ok(())
    }

    /// Returns whether password and data may be sent unencrypted if a server, or an attacker on the
    /// path, does not offer TLS.
    pub(super) fn may_be_unencrypted(&self) -> bool {
        !self.has_tls_mode && self.hosts.iter().any(|options| !is_local(options))
    }
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
            ("postgres:///x?host=a&port=5433", vec!["a 5433"]),
            (
                "postgres://ada@[::1]:5433,127.0.0.1/x",
                vec!["::1 5433", "127.0.0.1 5432"],
            ),
            (
                "postgres://ada@%2Frun%2Fpostgresql/x",
                vec!["/run/postgresql"],
            ),
            (
                "postgres:///x?host=/run/postgresql",
                vec!["/run/postgresql"],
            ),
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
            ("postgres://ada@a,/x", "empty host"),
            (
                "postgres://ada:p@ss/w@127.0.0.1/x",
                "percent-encode `@ / : ? #`",
            ),
            ("postgres://ada:12?w@127.0.0.1/x", "percent-encode"),
            ("postgres://ada@a:b/x", "invalid port"),
            ("postgres:///x?host=a,b", "must stand before the path"),
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
