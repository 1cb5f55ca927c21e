//! Host checks against DNS rebinding: a page that resolves its own name to the address of a
//! listener could otherwise read its responses.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use http::header::HOST;
use http::{HeaderMap, Version};

use postern_core::problem::{Code, Problem};

/// The host names under which a listener may be requested.
#[derive(Clone, Debug)]
pub struct AllowedHosts {
    names: Arc<[String]>,
    /// Whether every IP address is allowed. Used for listeners that other machines reach, whose
    /// addresses are not known; DNS rebinding needs a name.
    any_address: bool,
}

impl AllowedHosts {
    /// Allows this machine only: `localhost` and the loopback addresses.
    #[must_use]
    pub fn loopback() -> Self {
        Self {
            names: Arc::default(),
            any_address: false,
        }
    }

    /// Allows this machine and `names`, and any IP address if `address` is not a loopback address.
    #[must_use]
    pub fn of(address: Option<SocketAddr>, names: &[String]) -> Self {
        let any_address = address.is_some_and(|address| !address.ip().is_loopback());
        Self {
            names: names.iter().map(|name| name.to_ascii_lowercase()).collect(),
            any_address,
        }
    }

    /// Wraps a router so that requests for other hosts are answered with 400 `invalid_header`.
    pub fn guard<S: Clone + Send + Sync + 'static>(self, router: Router<S>) -> Router<S> {
        router.layer(middleware::from_fn_with_state(self, reject_other_hosts))
    }

    /// Returns whether the request has exactly one `Host` and it is allowed.
    #[must_use]
    pub fn allows(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(HOST).iter();
        let host = values.next().and_then(|host| host.to_str().ok());
        let (Some(host), None) = (host, values.next()) else {
            return false;
        };
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            Some(_) | None => host,
        };
        let bare = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'));
        match bare.unwrap_or(name).parse::<IpAddr>() {
            Ok(address) => self.any_address || address.is_loopback() || self.has(name),
            Err(_) => name.eq_ignore_ascii_case("localhost") || self.has(name),
        }
    }

    fn has(&self, name: &str) -> bool {
        let mut names = self.names.iter();
        names.any(|allowed| allowed.eq_ignore_ascii_case(name))
    }
}

async fn reject_other_hosts(
    State(hosts): State<AllowedHosts>,
    request: Request,
    next: Next,
) -> Response {
    // Probes over HTTP/1.0 may have no `Host`; browsers, which DNS rebinding needs, send it.
    let is_probe = request.version() == Version::HTTP_10 && !request.headers().contains_key(HOST);
    if is_probe || hosts.allows(request.headers()) {
        return next.run(request).await;
    }
    let names = "localhost, a loopback address or a name that the configuration allows";
    let problem = Problem::new(Code::InvalidHeader).detail(format!("Host must be {names}"));
    problem.into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::get;
    use tower::ServiceExt as _;

    use super::*;

    async fn status(hosts: &AllowedHosts, version: Version, host: &[&str]) -> u16 {
        let router = Router::new().route("/", get(|| async { "in" }));
        let request = Request::builder().version(version).uri("/");
        let headers = host.iter();
        let request = headers.fold(request, |request, host| request.header(HOST, *host));
        let request = request.body(Body::empty()).expect("request");
        let answer = hosts.clone().guard(router).oneshot(request).await;
        answer.expect("answer").status().as_u16()
    }

    #[tokio::test]
    async fn foreign_host_is_rejected() {
        let local = SocketAddr::from(([127, 0, 0, 1], 8509));
        let open = SocketAddr::from(([0, 0, 0, 0], 8509));
        let named = ["Gateway.internal".to_owned()];
        let loopback = &AllowedHosts::loopback();
        let [local, open] = &[local, open].map(|listen| AllowedHosts::of(Some(listen), &named));
        for (hosts, host, expected) in [
            (loopback, "127.0.0.1:8508", 200),
            (loopback, "127.9.9.9", 200),
            (loopback, "LocalHost:1", 200),
            (loopback, "[::1]:1", 200),
            (loopback, "[::1]", 200),
            (loopback, "evil.example:8508", 400),
            (loopback, "localhost.evil.example", 400),
            (loopback, "127.0.0.1.evil.example", 400),
            (loopback, "evil.example:127.0.0.1", 400),
            (loopback, "", 400),
            (local, "10.0.0.5:8509", 400),
            (local, "gateway.INTERNAL:8509", 200),
            (local, "gateway.internal.evil.example", 400),
            (open, "10.0.0.5:8509", 200),
            (open, "[fd00::5]:8509", 200),
            (open, "evil.example:8509", 400),
        ] {
            for version in [Version::HTTP_10, Version::HTTP_11] {
                let status = status(hosts, version, &[host]).await;
                assert_eq!(status, expected, "{host} {hosts:?}");
            }
        }
        for (version, hosts, expected) in [
            (Version::HTTP_11, &[][..], 400),
            (Version::HTTP_10, &[], 200),
            (Version::HTTP_11, &["localhost", "evil.example"], 400),
        ] {
            let status = status(loopback, version, hosts).await;
            assert_eq!(status, expected, "{version:?} {hosts:?}");
        }
    }
}
