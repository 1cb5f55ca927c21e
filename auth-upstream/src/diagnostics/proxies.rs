//! The check of `trusted_proxies`.
//!
//! If the proxies in front of the service are not trusted, all clients share the limits of one
//! address, so that wrong passwords of one client throttle the others.

use std::net::SocketAddr;

use postern_core::check::CheckResult;
use postern_service::http::TrustedProxies;

/// Checks whether proxies on other machines are trusted if `listen` is reachable from there.
pub(crate) fn check_trusted_proxies(listen: SocketAddr, trusted: &TrustedProxies) -> CheckResult {
    const SUBJECT: &str = "trusted_proxies";
    if listen.ip().is_loopback() {
        let detail = format!("{listen} is reachable from this machine only");
        CheckResult::passed(SUBJECT, detail)
    } else if trusted.is_loopback() {
        let detail = format!(
            "{listen} is reachable from other machines, and only this one is listed: clients of a gateway elsewhere share \
             the limits of one address; list the addresses of the gateways"
        );
        CheckResult::warning(SUBJECT, detail)
    } else {
        CheckResult::passed(SUBJECT, "gateways on other machines are listed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_core::network::IpNetwork;

    #[test]
    fn public_listener_without_trusted_proxies_warns() {
        let warns = |listen: &str, trusted: &[&str]| {
            let networks: Vec<IpNetwork> = trusted
                .iter()
                .map(|text| IpNetwork::parse(text).expect("a network"))
                .collect();
            check_trusted_proxies(
                listen.parse().expect("an address"),
                &TrustedProxies::from(networks),
            )
            .needs_attention()
        };
        assert!(!warns("127.0.0.1:8501", &["127.0.0.0/8"]));
        assert!(!warns("[::1]:8501", &[]));
        assert!(warns("0.0.0.0:8501", &["127.0.0.0/8", "::1"]));
        assert!(warns("192.0.2.1:8501", &[]));
        assert!(!warns("0.0.0.0:8501", &["127.0.0.0/8", "10.0.0.0/8"]));
    }
}
