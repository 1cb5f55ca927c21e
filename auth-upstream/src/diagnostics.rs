//! Checks of the configuration against the pools and the stores: results are logged as
//! warnings after the start, and printed by `postern-auth check`.

mod pool;
mod proxies;

use std::sync::Arc;

use aws_sdk_cognitoidentityprovider::types::{
    ExplicitAuthFlowsType, FeatureType, UserPoolClientType,
};
use postern_core::Clock;
use postern_core::check::CheckResult;
use postern_core::exit::Exit;
use postern_core::identity::{IdentityConfig, Pool};
use postern_core::token::{Verifier, VerifierOptions};
use postern_service::calls::ServiceTokens;
use postern_store::cache::Cache;

use self::pool::{check_issuer, check_pool};
pub(crate) use self::proxies::check_trusted_proxies;
use crate::assembly::{AuthService, require_ca_certificates};
use crate::config::{Config, SocialConfig};
use crate::crypto::random;
use crate::pool::admin::PoolAdmin;
use crate::pool::error::{PoolError, PoolFault};

const SERVICE_ID_ATTRIBUTE: &str = "custom:service_id";

/// The subject of the checks whether social users get tokens.
const SOCIAL_TOKENS: &str = "social tokens";

/// Runs all checks, which make a few calls to the pools and the stores.
pub(crate) async fn run_checks(
    identity: &IdentityConfig,
    clock: &Clock,
    service: &AuthService,
) -> Vec<CheckResult> {
    let mut results = check_regions(identity);
    let social = service.flows.social.as_ref();
    let has_key = service.pool.has_social_sign_in();
    results.extend(check_social(social.map(|it| &it.config), has_key));
    results.extend(check_stores(service).await);
    results.extend(check_pool_keys(identity, clock).await);
    results.push(check_sign_in(service).await);
    if social.is_some() && has_key {
        results.push(check_social_sign_in(service).await);
    }
    results.push(ServiceTokens::new(identity, clock.clone()).check().await);
    results.push(check_notifications(service).await);
    match &service.pool.admin {
        Some(admin) => results.extend(check_pools(identity, service, admin).await),
        None => {
            results.push(CheckResult::unknown(
                "pools and clients",
                "issuers, flows and attributes can be read with AWS credentials only",
            ));
            results.push(check_refresh(service).await);
        }
    }
    results
}

/// Checks that every pool publishes usable keys: RSA with at least 2048 bits, or elliptic
/// curves.
async fn check_pool_keys(identity: &IdentityConfig, clock: &Clock) -> Vec<CheckResult> {
    let options = VerifierOptions {
        clock: clock.clone(),
        cache_bytes: 0,
        ..VerifierOptions::default()
    };
    let verifier: Arc<Verifier> = Verifier::new(identity.issuers(), options);
    verifier.refresh_now().await;
    let check = |status: postern_core::token::JwksStatus| {
        let skipped = status.skipped.iter().map(|key| {
            let id = key.key_id.as_deref().unwrap_or("without kid");
            format!("{id} {}", key.reason)
        });
        let skipped: Vec<String> = skipped.collect();
        let outcome = if !status.usable {
            let reason = status.last_error.as_deref().unwrap_or("no usable key");
            Err(format!("no keys from {}: {reason}", status.url))
        } else if skipped.is_empty() {
            Ok(format!("{} usable", status.keys.len()))
        } else {
            Err(format!("not usable: {}", skipped.join("; ")))
        };
        CheckResult::new(format!("keys of {}", status.issuer), outcome)
    };
    verifier.status().into_iter().map(check).collect()
}

async fn check_pools(
    identity: &IdentityConfig,
    service: &AuthService,
    admin: &PoolAdmin,
) -> Vec<CheckResult> {
    let mut results = Vec::new();
    for (name, pool) in [("actor", &identity.actor), ("service", &identity.service)] {
        let issuer = format!("{name} issuer");
        match admin.describe_pool(&pool.pool_id).await {
            Ok(described) => {
                results.push(CheckResult::new(issuer, check_issuer(pool, &described)));
                if name == "actor" {
                    results.extend(check_pool(service, &described));
                }
            }
            Err(error) => results.push(undescribed(issuer, &error)),
        }
        let client = format!("{name} client");
        let described = admin.describe_app_client(&pool.pool_id, &pool.client_id);
        match described.await {
            Ok(settings) => {
                let checked = check_app_client(name, &settings);
                results.push(CheckResult::new(client, checked));
                if name == "actor" {
                    results.push(check_rotation(&settings));
                }
            }
            Err(error) => results.push(undescribed(client, &error)),
        }
    }
    results
}

fn check_app_client(name: &str, settings: &UserPoolClientType) -> Result<String, String> {
    let mut errors = Vec::new();
    let flow = ExplicitAuthFlowsType::AllowUserPasswordAuth;
    if !settings.explicit_auth_flows().contains(&flow) {
        errors.push(format!("the flow {} is not enabled", flow.as_str()));
    }
    let has_service_id = |names: &[String]| names.iter().any(|it| it == SERVICE_ID_ATTRIBUTE);
    if has_service_id(settings.write_attributes()) {
        errors.push(format!(
            "it can write {SERVICE_ID_ATTRIBUTE}: its holder could impersonate any service"
        ));
    }
    if settings.allowed_o_auth_flows_user_pool_client() == Some(true) {
        let pages = "the pool's own sign-in pages (AllowedOAuthFlowsUserPoolClient)";
        errors.push(format!(
            "{pages} are enabled: the attempt limits do not hold there"
        ));
    }
    if name == "service" && !has_service_id(settings.read_attributes()) {
        errors.push(format!(
            "{SERVICE_ID_ATTRIBUTE} is not among its ReadAttributes, so that tokens lack it"
        ));
    }
    if errors.is_empty() {
        Ok("flows and attributes are correct".to_owned())
    } else {
        Err(errors.join("; "))
    }
}

/// Checks what does not depend on the database, which is unavailable for the reason of `exit`.
pub async fn check_without_database(
    config: &Config,
    exit: &Exit,
) -> Result<Vec<CheckResult>, Exit> {
    require_ca_certificates()?;
    let (identity, clock) = (&config.identity, Clock::system());
    let cache = Cache::open(&config.cache, &clock)?;
    let mut results = vec![CheckResult::fault("database", exit.message())];
    results.extend(check_regions(identity));
    results.push(cache.check().await);
    results.extend(check_pool_keys(identity, &clock).await);
    results.push(ServiceTokens::new(identity, clock).check().await);
    Ok(results)
}

/// Checks a configuration without its environment: no pool and no store is called. Settings that
/// were read as placeholders are reported.
#[must_use]
pub fn check_configuration(config: &Config) -> Vec<CheckResult> {
    let assumed = config.identity.assumed_settings();
    let proxies = check_trusted_proxies(config.listen, &config.trusted_proxies);
    let mut results = vec![proxies];
    if assumed.is_empty() {
        results.extend(check_regions(&config.identity));
    }
    results.extend(CheckResult::of_assumed(&assumed));
    let has_key = config.social_proof_key.is_some();
    results.extend(check_social(config.social.as_ref(), has_key));
    results
}

/// Checks that the pools are in the configured region, with which a pool id starts.
fn check_regions(identity: &IdentityConfig) -> Vec<CheckResult> {
    let region = &identity.region;
    let check = |name: &str, pool: &Pool| {
        let outcome = match pool.pool_id.split_once('_') {
            Some((actual, _)) if actual == region => Ok(format!("{} is in {region}", pool.pool_id)),
            Some((actual, _)) => Err(format!(
                "{} is in {actual}, but the region is {region}: set CLOUD_REGION to {actual}",
                pool.pool_id
            )),
            None => Err(format!("{} is not of the form REGION_NAME", pool.pool_id)),
        };
        CheckResult::new(format!("{name} pool id"), outcome)
    };
    vec![
        check("actor", &identity.actor),
        check("service", &identity.service),
    ]
}

fn check_social(social: Option<&SocialConfig>, has_key: bool) -> Vec<CheckResult> {
    let Some(social) = social else {
        return Vec::new();
    };
    let warning = |text| CheckResult::warning("social sign-in", text);
    let mut results: Vec<_> = social.warnings().into_iter().map(warning).collect();
    if !has_key {
        results.push(CheckResult::warning(
            SOCIAL_TOKENS,
            "exchanges return the user without tokens: install the triggers of conf/cognito at the pool, and set \
             SOCIAL_PROOF_KEY",
        ));
    }
    results
}

/// Starts a social sign-in of a user who does not exist. The challenge shows that the app client
/// permits it, and that the triggers have the same key.
async fn check_social_sign_in(service: &AuthService) -> CheckResult {
    let unknown_user = format!("{}@doctor.invalid", random::token());
    let outcome = match service.pool.start_social_sign_in(&unknown_user).await {
        Ok(None) => Ok("the pool's triggers sign social users in".to_owned()),
        Ok(Some(_)) => Err("the pool's triggers know a user who does not exist".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    CheckResult::new(SOCIAL_TOKENS, outcome)
}

fn undescribed(subject: impl Into<String>, fault: &PoolFault) -> CheckResult {
    if fault.error == PoolError::Unsupported {
        return CheckResult::unknown(subject, "the pool does not describe it");
    }
    CheckResult::fault(subject, format!("cannot be described: {fault}"))
}

async fn check_stores(service: &AuthService) -> Vec<CheckResult> {
    let database = match service.store.check_writable().await {
        Ok(()) => CheckResult::passed("database", "accepts writes"),
        Err(exit) => CheckResult::fault("database", exit.message()),
    };
    let mut results = vec![database, service.cache.check().await];
    let (database, cache) = (service.store.database().label(), service.cache.label());
    results.extend(CheckResult::of_unshared_cache(&database, cache));
    let warning = service.store.database().transport_warning();
    results.extend(warning.map(|text| CheckResult::warning("database", text)));
    results
}

/// Checks that the notification service accepts the service token. It may be started later.
async fn check_notifications(service: &AuthService) -> CheckResult {
    const SUBJECT: &str = "notification service";
    match service.messages.probe().await {
        Ok(status) if status.is_success() => {
            CheckResult::passed(SUBJECT, "accepts the service token")
        }
        Ok(status) => CheckResult::fault(SUBJECT, format!("answers {status} to the service token")),
        Err(reason) => CheckResult::warning(SUBJECT, format!("does not answer: {reason}")),
    }
}

/// Attempts to sign in a user who does not exist. The error shows whether the app client is
/// configured for sign-in and hides which users exist.
async fn check_sign_in(service: &AuthService) -> CheckResult {
    let unknown_user = format!("{}@doctor.invalid", random::token());
    let password = random::password().into();
    let fault = service.pool.sign_in(&unknown_user, &password).await.err();
    let outcome = match fault.as_ref().map(|fault| &fault.error) {
        Some(PoolError::NotAuthorized) => Ok("the app client can sign users in"),
        Some(PoolError::UserNotFound) => {
            Err("the pool reveals which users exist: set PreventUserExistenceErrors of the app client to ENABLED".to_owned())
        }
        Some(error) => Err(error.to_string()),
        None => Err("the pool accepts any password".to_owned()),
    };
    CheckResult::new("sign-in", outcome.map(str::to_owned))
}

/// Reports whether the pool rotates refresh tokens, on which the protection of stolen ones depends.
fn check_rotation(settings: &UserPoolClientType) -> CheckResult {
    const SUBJECT: &str = "refresh tokens";
    if settings.enable_token_revocation() == Some(false) {
        let detail = "a logout cannot revoke them: set EnableTokenRevocation of the app client";
        return CheckResult::fault(SUBJECT, detail);
    }
    let rotation = settings.refresh_token_rotation();
    let rotation = rotation.filter(|it| *it.feature() == FeatureType::Enabled);
    match rotation.map(|it| it.retry_grace_period_seconds().unwrap_or(0)) {
        None => CheckResult::warning(
            SUBJECT,
            "not rotated, so that a stolen one works until it expires: enable RefreshTokenRotation of the app \
             client, with a RetryGracePeriodSeconds of 60",
        ),
        Some(0) => CheckResult::warning(
            SUBJECT,
            "rotated without a grace period, so that a lost response or a second tab ends the sign-in: set \
             RetryGracePeriodSeconds of the app client to 60",
        ),
        Some(grace_s) => CheckResult::passed(
            SUBJECT,
            format!("rotated, with a grace period of {grace_s} s"),
        ),
    }
}

/// Sends a refresh token that does not exist. The error shows whether the app client can refresh,
/// but not whether it rotates.
async fn check_refresh(service: &AuthService) -> CheckResult {
    const SUBJECT: &str = "refresh tokens";
    let unknown = random::token();
    match service.pool.refresh(&unknown, &unknown).await {
        Err(fault) if fault.error == PoolError::NotAuthorized => CheckResult::passed(
            SUBJECT,
            "accepted; whether they are rotated can be read with AWS credentials only",
        ),
        Err(fault) => CheckResult::fault(SUBJECT, fault.to_string()),
        Ok(_) => CheckResult::fault(SUBJECT, "the pool accepts any refresh token"),
    }
}
