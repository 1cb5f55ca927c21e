//! Parsing of cache URLs.

use std::path::Path;
use std::time::Duration;

use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{Client, ConnectionInfo, IntoConnectionInfo, TlsCertificates, TlsMode};
use url::Url;

use super::redis::RedisServerKind;
use postern_core::files::read_regular;
use postern_core::secret::{PERCENT_ENCODE, has_misplaced_password};

/// Maximum bytes of the certificate authorities.
const MAX_CA_FILE_BYTES: usize = 4 << 20;

/// Maximum time of a call unless the URL sets it.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(250);

pub(super) struct CacheUrl {
    /// The server; `None` for process memory.
    pub(super) server: Option<RedisServerKind>,
    /// Prefix of every key, with its trailing colon.
    pub(super) prefix: String,
    /// The scheme and the hosts, without credentials, for messages.
    pub(super) label: String,
    /// Maximum time of a call, including the wait for a connection: `?deadline=`.
    pub(super) deadline: Duration,
}

/// The parts of `scheme://[user[:password]@]host[:port][,host[:port]…][/path…][?name=value…]`. The
/// URL standard does not support several hosts.
struct UrlParts<'a> {
    tls: bool,
    credentials: &'a str,
    hosts: Vec<&'a str>,
    path: &'a str,
    query: Vec<(String, String)>,
}

/// Parses a cache URL.
///
/// # Errors
/// Returns the reason without the URL's password.
pub(super) fn parse(url: &str) -> Result<CacheUrl, String> {
    if has_misplaced_password(url) {
        return Err(PERCENT_ENCODE.to_owned());
    }
    let (scheme, rest) = url
        .split_once(':')
        .ok_or("must be a URL such as memory: or redis://127.0.0.1:6379")?;
    let mut parts = UrlParts::of(scheme, rest.strip_prefix("//").unwrap_or(rest));
    let prefix = parts.prefix()?;
    let deadline = parts.deadline()?;
    let label = match scheme {
        "memory" => url.to_owned(),
        _ => format!("{scheme}://{}", parts.hosts.join(",")),
    };
    let server = match scheme {
        "memory" => Ok(None),
        "redis" | "rediss" => single(&mut parts).map(Some),
        "redis-cluster" | "rediss-cluster" => cluster(&mut parts).map(Some),
        "redis-sentinel" | "rediss-sentinel" => sentinel(&mut parts).map(Some),
        other => Err(format!(
            "`{other}:` is not a cache; use memory:, redis:, rediss:, redis-cluster: or redis-sentinel:"
        )),
    };
    let server = server
        .and_then(|server| parts.finish().map(|()| server))
        .map_err(|reason| format!("{label}: {reason}"))?;
    Ok(CacheUrl {
        server,
        prefix,
        label,
        deadline,
    })
}

fn single(parts: &mut UrlParts<'_>) -> Result<RedisServerKind, String> {
    let certificates = parts.certificates()?;
    let client = match (parts.nodes(parts.path)?.as_slice(), certificates) {
        ([node], None) => Client::open(node.clone()),
        ([node], Some(certificates)) => Client::build_with_tls(node.clone(), certificates),
        (_, _) => {
            return Err(
                "names several servers; use redis-cluster: for a cluster and redis-sentinel: for sentinels"
                    .to_owned(),
            );
        }
    };
    client
        .map(|client| RedisServerKind::Single(Box::new(client)))
        .map_err(|error| error.to_string())
}

fn cluster(parts: &mut UrlParts<'_>) -> Result<RedisServerKind, String> {
    if !parts.path.trim_matches('/').is_empty() {
        return Err("a cluster has no database number".to_owned());
    }
    let certificates = parts.certificates()?;
    let nodes = parts.nodes("")?;
    Ok(RedisServerKind::Cluster(nodes, certificates))
}

fn sentinel(parts: &mut UrlParts<'_>) -> Result<RedisServerKind, String> {
    let path = parts.path.trim_matches('/');
    let (master, database) = path.split_once('/').unwrap_or((path, ""));
    if master.is_empty() {
        return Err(
            "the path must name the master, as in redis-sentinel://host:26379/mymaster".to_owned(),
        );
    }
    let nodes = parts.nodes(database)?;
    let master_settings = nodes.first().ok_or("names no sentinel")?.redis_settings();
    let sentinels = nodes.iter().map(|node| node.addr().clone());
    let error = |error: redis::RedisError| error.to_string();
    let mut client = SentinelClientBuilder::new(sentinels, master, SentinelServerType::Master)
        .map_err(error)?
        .set_client_to_redis_db(master_settings.db());
    if let Some(user) = master_settings.username() {
        client = client.set_client_to_redis_username(user);
    }
    if let Some(password) = master_settings.password() {
        client = client.set_client_to_redis_password(password);
    }
    // Sentinels have separate credentials.
    if let Some(user) = parts.take("sentinel_username") {
        client = client.set_client_to_sentinel_username(user);
    }
    if let Some(password) = parts.take("sentinel_password") {
        client = client.set_client_to_sentinel_password(password);
    }
    if parts.tls {
        client = client.set_client_to_redis_tls_mode(TlsMode::Secure);
    }
    if let Some(certificates) = parts.certificates()? {
        client = client.set_client_to_redis_certificates(certificates.clone());
        client = client.set_client_to_sentinel_certificates(certificates);
    }
    let client = client.build().map_err(error)?;
    Ok(RedisServerKind::Sentinel(std::sync::Arc::new(
        tokio::sync::Mutex::new(client),
    )))
}

impl<'a> UrlParts<'a> {
    fn of(scheme: &str, rest: &'a str) -> Self {
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        Self {
            tls: scheme.starts_with("rediss"),
            credentials,
            hosts: hosts.split(',').filter(|host| !host.is_empty()).collect(),
            path,
            query: url::form_urlencoded::parse(query.as_bytes())
                .into_owned()
                .collect(),
        }
    }

    /// Removes a parameter and returns its value.
    fn take(&mut self, name: &str) -> Option<String> {
        let index = self.query.iter().position(|(known, _)| known == name)?;
        Some(self.query.swap_remove(index).1)
    }

    /// Returns the key prefix of the parameter `namespace`.
    fn prefix(&mut self) -> Result<String, String> {
        let Some(name) = self.take("namespace") else {
            return Ok("postern:".to_owned());
        };
        let is_allowed = |byte: u8| byte.is_ascii_graphic() && byte != b':';
        if name.is_empty() || !name.bytes().all(is_allowed) {
            return Err("namespace must be visible ASCII without a colon".to_owned());
        }
        Ok(format!("postern:{name}:"))
    }

    /// Returns the time limit of a call, the parameter `deadline`.
    fn deadline(&mut self) -> Result<Duration, String> {
        let Some(text) = self.take("deadline") else {
            return Ok(DEFAULT_DEADLINE);
        };
        let millis = text.strip_suffix("ms").and_then(|count| count.parse().ok());
        let millis = millis.filter(|millis| (1..=60_000).contains(millis));
        let wrong = "deadline must be 1ms to 60000ms, such as 250ms";
        millis.map(Duration::from_millis).ok_or(wrong.to_owned())
    }

    /// Reads the private certificate authority of the server's certificate.
    fn certificates(&mut self) -> Result<Option<TlsCertificates>, String> {
        let Some(path) = self.take("ca") else {
            return Ok(None);
        };
        if !self.tls {
            return Err("ca is for the schemes that begin with rediss".to_owned());
        }
        let pem = read_regular(Path::new(&*path), MAX_CA_FILE_BYTES)
            .map_err(|error| format!("cannot read ca {path}: {error}"))?;
        Ok(Some(TlsCertificates {
            client_tls: None,
            root_cert: Some(pem),
        }))
    }

    /// Rejects unknown parameters, which may be misspelt.
    fn finish(&self) -> Result<(), String> {
        self.query.first().map_or(Ok(()), |(name, _)| {
            Err(format!("`{name}` is not a known parameter"))
        })
    }

    /// Returns each host as a separate server with the shared credentials.
    fn nodes(&self, database: &str) -> Result<Vec<ConnectionInfo>, String> {
        if self.hosts.is_empty() {
            return Err("names no host".to_owned());
        }
        let node = |host: &&str| {
            let scheme = if self.tls { "rediss" } else { "redis" };
            let at = if self.credentials.is_empty() { "" } else { "@" };
            let (credentials, database) = (self.credentials, database.trim_matches('/'));
            let url = format!("{scheme}://{credentials}{at}{host}/{database}");
            let url = Url::parse(&url).map_err(|error| format!("`{host}`: {error}"))?;
            url.into_connection_info()
                .map_err(|error| format!("`{host}`: {error}"))
        };
        self.hosts.iter().map(node).collect()
    }
}
