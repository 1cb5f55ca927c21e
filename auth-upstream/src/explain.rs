//! The explanation of a sign-in: the pool, app client, limits and social accounts that apply to it.
//!
//! Enters: the configuration, an e-mail address and a client address. Leaves: an explanation. No pool
//! and no store is called, so that counters are not part of it. Depends on `config`, `pool` and
//! `protection`.

use std::net::IpAddr;

use postern_common::email::EmailAddress;
use postern_common::output::Explanation;

use crate::config::{Config, ConfirmationMode};
use crate::pool::PasswordAuthFlow;
use crate::protection::network;

/// A sign-in to explain.
#[derive(Clone, Debug)]
pub struct ExplainedSignIn {
    /// The e-mail address of the account.
    pub email: EmailAddress,
    /// The client address; `None` if it is unknown.
    pub client_address: Option<IpAddr>,
}

/// Describes which pool and app client a sign-in uses, which limits count its failures, and what a
/// social sign-in with the address means for an existing account.
#[must_use]
pub fn explain(config: &Config, sign_in: &ExplainedSignIn) -> Explanation {
    let mut explanation = Explanation::default();
    explanation.line(
        "request",
        format_args!("sign-in of {}", sign_in.email.as_str()),
    );
    write_pool(&mut explanation, config);
    write_limits(&mut explanation, config, sign_in.client_address);
    write_social(&mut explanation, config, &sign_in.email);
    explanation
}

fn write_pool(explanation: &mut Explanation, config: &Config) {
    let pool = &config.identity.actor;
    explanation.line("pool", format_args!("{} of users", pool.pool_id));
    let secret = match pool.client_secret {
        Some(_) => "with a secret",
        None => "without a secret",
    };
    explanation.line("client", format_args!("{} {secret}", pool.client_id));
    match &config.identity.endpoint {
        Some(url) => explanation.line("endpoint", url),
        None => explanation.line(
            "endpoint",
            format_args!("Amazon Cognito in {}", config.identity.region),
        ),
    }
    explanation.line(
        "flow",
        match config.auth_flow {
            PasswordAuthFlow::UserPassword => "USER_PASSWORD_AUTH",
            PasswordAuthFlow::AdminUserPassword => "ADMIN_USER_PASSWORD_AUTH",
        },
    );
    explanation.line("issuer", format_args!("{} of the tokens", pool.issuer));
    explanation.line(
        "confirm",
        match config.confirmation {
            ConfirmationMode::Admin => "registrations by this service; the address is not verified",
            ConfirmationMode::Pool => "registrations by the pool",
            ConfirmationMode::Code => "registrations by a code that the pool sends to the address",
        },
    );
}

fn write_limits(explanation: &mut Explanation, config: &Config, address: Option<IpAddr>) {
    let limits = &config.attempt_limits;
    let window = limits.window;
    let (account, sign_ins) = (limits.per_account, limits.sign_ins);
    explanation.line(
        "account",
        format_args!("{account} failures in {window:?}; {sign_ins} sign-ins in 600s"),
    );
    match address.map(|address| address.to_canonical()) {
        None => explanation.line("address", "unknown (see --client-address)"),
        Some(address) if address.is_loopback() => {
            explanation.line("address", format_args!("{address}: no limit, loopback"));
        }
        Some(address) => {
            let free = limits.per_address;
            explanation.line(
                "address",
                format_args!("{address}: {free} failures in {window:?}"),
            );
            let (network, free) = (network(address), limits.per_network);
            explanation.line(
                "network",
                format_args!("{network}: {free} failures in {window:?}"),
            );
        }
    }
    if let Some(address) = address
        && config.trusted_proxies.contains(address)
    {
        let detail = format_args!("{address} is a trusted proxy: X-Forwarded-For names the client");
        explanation.line("proxy", detail);
    }
    explanation.line(
        "total",
        format_args!("{} failures in 60s", limits.total_per_minute),
    );
}

fn write_social(explanation: &mut Explanation, config: &Config, email: &EmailAddress) {
    let Some(social) = &config.social else {
        explanation.line("social", "off: SOCIAL_OAUTH2_CLIENT_ID is not set");
        return;
    };
    let (provider, host) = (&social.provider, email.host());
    let mut domains = social.authoritative_domains.iter();
    let detail = if domains.any(|domain| domain.eq_ignore_ascii_case(host)) {
        format!(
            "{provider} is authoritative for {host}: an account with a verified address is linked, one with an address that was \
             never verified is deleted"
        )
    } else if social.trust_hosted_domain {
        format!("{provider} is authoritative for {host} only in tokens whose claim hd names it")
    } else {
        format!("{provider} is not authoritative for {host}: an existing account is not linked")
    };
    explanation.line("social", detail);
}

#[cfg(test)]
mod tests {
    use postern_common::output::explanation_json;

    use super::*;
    use crate::testing::Fixture;

    #[tokio::test]
    async fn limits_and_pool_of_a_sign_in_are_named() {
        let config = Fixture::new().await.settings.read();
        let explained = |address: &str| {
            let sign_in = ExplainedSignIn {
                email: EmailAddress::parse("ada@example.com").expect("an address"),
                client_address: Some(address.parse().expect("an address")),
            };
            explanation_json(explain(&config, &sign_in).as_str())
        };
        let remote = explained("::ffff:192.0.2.77");
        assert_eq!(remote["address"], "192.0.2.77: 30 failures in 900s");
        assert_eq!(remote["network"], "192.0.2.0/24: 200 failures in 900s");
        let pool = format!("{} of users", config.identity.actor.pool_id);
        assert_eq!(remote["pool"], pool);
        let local = explained("127.0.0.1");
        assert_eq!(local["address"], "127.0.0.1: no limit, loopback");
        assert!(local["proxy"].is_string() && remote["proxy"].is_null());
    }
}
