//! What an operator could have set wrong, looked at from inside and told in words: at start as
//! warnings, and by `postern-auth check`.

use std::sync::Arc;
use std::time::Duration;

use postern_common::Clock;
use postern_common::Secret;
use postern_common::cache::Cache;
use postern_common::clock::Timestamp;
use postern_common::identity::{IdentityConfig, Pool};
use postern_common::service::{ServiceTokens, http_client};
use postern_common::token::{Verifier, VerifierOptions};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use crate::auth::Auth;
use crate::pool::Flow;
use crate::pool::admin::{AdminPool, ClientSettings};
use crate::pool::fault::Fault;
use crate::random;

/// Clocks may differ by so much: the leeway with which tokens are verified.
const MOST_SKEW: Duration = Duration::from_secs(5);
/// The attribute that makes a token a service's.
const SERVICE_ID: &str = "custom:service_id";

/// Looks at the surroundings of one authentication upstream.
#[derive(Debug)]
pub(crate) struct Doctor {
    identity: IdentityConfig,
    flow: Flow,
    clock: Clock,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: String,
    /// How it is.
    pub state: State,
}

/// How one thing is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// As it should be.
    Fine(String),
    /// Works, and is dangerous or unusual: look whether it is meant.
    Warning(String),
    /// Not as it should be, and what to do.
    Fault(String),
    /// Not looked at, and why.
    Unknown(String),
}

// === impl Finding ===

impl Finding {
    fn new(what: impl Into<String>, outcome: Result<String, String>) -> Self {
        let state = outcome.map_or_else(State::Fault, State::Fine);
        Self {
            what: what.into(),
            state,
        }
    }

    /// Whether something must be done.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        matches!(self.state, State::Fault(_))
    }

    /// Whether somebody should look at it.
    #[must_use]
    pub fn needs_attention(&self) -> bool {
        matches!(self.state, State::Fault(_) | State::Warning(_))
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (word, text) = match &self.state {
            State::Fine(text) => ("ok     ", text),
            State::Warning(text) => ("WARNING", text),
            State::Fault(text) => ("FAULT  ", text),
            State::Unknown(text) => ("unknown", text),
        };
        write!(f, "{word} {}: {text}", self.what)
    }
}

// === impl Doctor ===

impl Doctor {
    pub(crate) fn new(identity: IdentityConfig, flow: Flow, clock: Clock) -> Self {
        Self {
            identity,
            flow,
            clock,
        }
    }

    /// Looks at everything; a few calls to the pools, the stores and nothing else.
    pub(crate) async fn examine(&self, auth: &Auth) -> Vec<Finding> {
        let mut findings = self.regions();
        findings.extend(social_trust(auth));
        findings.extend(stores(auth).await);
        findings.extend(self.keys().await);
        findings.push(self.clock_skew().await);
        findings.push(sign_in_flow(auth).await);
        findings.push(self.service_account().await);
        match &auth.pool.admin {
            Some(admin) => findings.extend(self.clients(admin).await),
            None => findings.push(Finding {
                what: "pool clients".to_owned(),
                state: State::Unknown(
                    "flows and attributes are seen with AWS credentials only".to_owned(),
                ),
            }),
        }
        findings
    }

    /// A pool's id begins with its region.
    fn regions(&self) -> Vec<Finding> {
        let region = &self.identity.region;
        let look = |name: &str, pool: &Pool| {
            let outcome = match pool.pool_id.split_once('_') {
                Some((of, _)) if of == region => Ok(format!("{} is in {region}", pool.pool_id)),
                Some((of, _)) => Err(format!(
                    "{} is in {of}, but the region is {region}: set CLOUD_REGION to {of}",
                    pool.pool_id
                )),
                None => Err(format!("{} does not look like REGION_NAME", pool.pool_id)),
            };
            Finding::new(format!("{name} pool id"), outcome)
        };
        vec![
            look("actor", &self.identity.actor),
            look("service", &self.identity.service),
        ]
    }

    /// Every pool publishes keys that we accept: RSA from 2048 bits on, or a curve.
    async fn keys(&self) -> Vec<Finding> {
        let options = VerifierOptions {
            clock: self.clock.clone(),
            cache_bytes: 0,
            ..VerifierOptions::default()
        };
        let verifier: Arc<Verifier> = Verifier::new(self.identity.issuers(), options);
        verifier.refresh_now().await;
        let look = |status: postern_common::token::JwksStatus| {
            let skipped: Vec<String> = status
                .skipped
                .iter()
                .map(|key| {
                    format!(
                        "{} {}",
                        key.key_id.as_deref().unwrap_or("without kid"),
                        key.reason
                    )
                })
                .collect();
            let outcome = if !status.usable {
                let reason = status
                    .last_error
                    .unwrap_or_else(|| "no usable key".to_owned());
                Err(format!("no keys from {}: {reason}", status.url))
            } else if skipped.is_empty() {
                Ok(format!("{} usable", status.keys.len()))
            } else {
                Err(format!("not usable: {}", skipped.join("; ")))
            };
            Finding::new(format!("keys of {}", status.issuer), outcome)
        };
        verifier.status().into_iter().map(look).collect()
    }

    /// The pool's clock, by the `Date` of its answer.
    async fn clock_skew(&self) -> Finding {
        let outcome = match http_client()
            .get(self.identity.actor.jwks_url.clone())
            .send()
            .await
        {
            Ok(answer) => {
                let date = answer
                    .headers()
                    .get(http::header::DATE)
                    .and_then(|value| value.to_str().ok());
                match date.and_then(parse_date) {
                    Some(theirs) => skew(self.clock.now(), theirs),
                    None => Ok("the pool does not tell the time".to_owned()),
                }
            }
            Err(_) => Err("the pool does not answer".to_owned()),
        };
        Finding::new("clock", outcome)
    }

    /// Our own account in the service pool gives a token that names a service.
    async fn service_account(&self) -> Finding {
        let cache = Cache::memory(self.clock.clone());
        let tokens = ServiceTokens::new(&self.identity, cache, self.clock.clone());
        let outcome = match tokens.token().await {
            Ok(_) => Ok(format!("gives a token with {SERVICE_ID}")),
            Err(error) => Err(error.to_string()),
        };
        Finding::new("service account", outcome)
    }

    async fn clients(&self, admin: &AdminPool) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (name, pool) in [
            ("actor", &self.identity.actor),
            ("service", &self.identity.service),
        ] {
            let what = format!("{name} client");
            findings.push(
                match admin.describe_client(&pool.pool_id, &pool.client_id).await {
                    Ok(settings) => Finding::new(what, self.judge_client(name, &settings)),
                    Err(Fault::Unsupported) => {
                        let state =
                            State::Unknown("the pool does not describe its clients".to_owned());
                        Finding { what, state }
                    }
                    Err(fault) => Finding::new(what, Err(format!("cannot be described: {fault}"))),
                },
            );
        }
        findings
    }

    fn judge_client(&self, name: &str, settings: &ClientSettings) -> Result<String, String> {
        let mut faults = Vec::new();
        let flow = match self.flow {
            Flow::AdminUserPassword if name == "actor" => "ALLOW_ADMIN_USER_PASSWORD_AUTH",
            Flow::AdminUserPassword | Flow::UserPassword => "ALLOW_USER_PASSWORD_AUTH",
        };
        if !settings.flows.iter().any(|enabled| enabled == flow) {
            faults.push(format!("the flow {flow} is not enabled"));
        }
        if settings
            .writes
            .iter()
            .any(|attribute| attribute == SERVICE_ID)
        {
            faults.push(format!(
                "it can write {SERVICE_ID}: whoever holds it could become any service"
            ));
        }
        if name == "service"
            && !settings
                .reads
                .iter()
                .any(|attribute| attribute == SERVICE_ID)
        {
            faults.push(format!(
                "{SERVICE_ID} is not among its ReadAttributes, so that tokens lack it"
            ));
        }
        if faults.is_empty() {
            Ok("flows and attributes are right".to_owned())
        } else {
            Err(faults.join("; "))
        }
    }
}

/// Whose word about an address is final.
fn social_trust(auth: &Auth) -> Vec<Finding> {
    let warnings = auth
        .social
        .as_ref()
        .map(|social| social.config.trust_warnings())
        .unwrap_or_default();
    warnings
        .into_iter()
        .map(|warning| Finding {
            what: "social sign-in".to_owned(),
            state: State::Warning(warning),
        })
        .collect()
}

async fn stores(auth: &Auth) -> Vec<Finding> {
    let database = auth.store.takes_writes().await;
    let database = database
        .map(|()| "takes writes".to_owned())
        .map_err(|exit| exit.message().to_owned());
    let cache = auth.cache.ping().await;
    let cache = cache
        .map(|()| "answers".to_owned())
        .map_err(|_| "does not answer".to_owned());
    let mut findings = vec![
        Finding::new("database", database),
        Finding::new("cache", cache),
    ];
    findings.extend(auth.store.transport_warning().map(|text| Finding {
        what: "database".to_owned(),
        state: State::Warning(text.to_owned()),
    }));
    findings
}

/// Signs in somebody who cannot exist: a client that is set up right says no as it does to anybody.
async fn sign_in_flow(auth: &Auth) -> Finding {
    let nobody = format!("{}@doctor.invalid", random::token());
    let outcome = match auth.pool.sign_in(&nobody, &Secret::from(random::password())).await {
        Err(Fault::NotAuthorized) => Ok("the client can sign people in".to_owned()),
        Err(Fault::UserNotFound) => {
            Err("the pool tells who is registered: set PreventUserExistenceErrors of the client to ENABLED"
                .to_owned())
        }
        Err(fault) => Err(fault.to_string()),
        Ok(_) => Err("the pool lets in whoever comes".to_owned()),
    };
    Finding::new("sign-in", outcome)
}

/// RFC 9110 section 5.6.7; `GMT` is the only zone there.
fn parse_date(text: &str) -> Option<Timestamp> {
    let text = text.replace("GMT", "+0000");
    let at = OffsetDateTime::parse(&text, &Rfc2822).ok()?;
    Some(Timestamp::from_unix_seconds(at.unix_timestamp()))
}

fn skew(ours: Timestamp, theirs: Timestamp) -> Result<String, String> {
    let skew = ours.since(theirs).max(theirs.since(ours));
    // `Date` counts whole seconds.
    if skew <= MOST_SKEW + Duration::from_secs(1) {
        return Ok(format!("within {} s of the pool's", skew.as_secs() + 1));
    }
    let way = if ours > theirs { "ahead of" } else { "behind" };
    Err(format!(
        "{} s {way} the pool's: tokens would be refused; set the clock",
        skew.as_secs()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clocks_may_differ_by_the_leeway() {
        let noon = parse_date("Fri, 20 Nov 2026 12:00:00 GMT").expect("a date");
        assert_eq!(noon.to_string(), "2026-11-20T12:00:00.000Z");
        assert!(skew(noon.plus(Duration::from_secs(6)), noon).is_ok());
        let fault = skew(noon, noon.plus(Duration::from_secs(60))).expect_err("a minute");
        assert!(fault.starts_with("60 s behind"), "{fault}");
    }
}
