//! Whether the gateways in front are known, as far as the configuration tells. Where they are not,
//! every client counts as one: whoever guesses badly holds everybody back.

use std::net::SocketAddr;

use postern_common::http::TrustedProxies;

use crate::doctor::{Finding, State};

/// A listener that other machines reach needs gateways on other machines, or one beside it.
pub(crate) fn examine(listen: SocketAddr, trusted: &TrustedProxies) -> Finding {
    let state = if listen.ip().is_loopback() {
        State::Fine(format!("{listen} is reached from this machine only"))
    } else if trusted.is_loopback() {
        State::Warning(format!(
            "{listen} is reached from other machines, and only this one is listed: clients of a gateway elsewhere share \
             the limits of one address; list the addresses of the gateways"
        ))
    } else {
        State::Fine("gateways on other machines are listed".to_owned())
    };
    Finding {
        what: "trusted_proxies".to_owned(),
        state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postern_common::http::Network;

    #[test]
    fn gateways_on_other_machines_must_be_listed() {
        let warns = |listen: &str, trusted: &[&str]| {
            let networks: Vec<Network> = trusted
                .iter()
                .map(|text| Network::parse(text).expect("a network"))
                .collect();
            examine(
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
