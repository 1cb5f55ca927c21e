//! Checks of the settings of a pool, as `DescribeUserPool` returns them.

use aws_sdk_cognitoidentityprovider::types::{
    AdminCreateUserConfigType, IssuerType, UserPoolType, UsernameAttributeType,
    VerifiedAttributeType,
};
use postern_core::check::CheckResult;
use postern_core::identity::Pool;

use crate::assembly::AuthService;
use crate::config::ConfirmationMode;

/// Reports which of its two issuers a pool writes. Both are accepted, unless another is configured.
pub(super) fn check_issuer(pool: &Pool, described: &UserPoolType) -> Result<String, String> {
    let configuration = described.issuer_configuration();
    let has_updated_issuer = configuration.and_then(|it| it.r#type()) == Some(&IssuerType::Updated);
    let accepted = [Some(&pool.issuer), pool.issuer_alias.as_ref()];
    let is_updated = |issuer: &str| issuer.starts_with("https://issuer-cognito-idp.");
    let mut accepted = accepted.into_iter().flatten();
    let written = accepted.find(|issuer| is_updated(issuer) == has_updated_issuer);
    match (written, &pool.issuer_alias) {
        (Some(written), Some(_)) => Ok(format!("{written}; both forms are accepted")),
        (Some(written), None) => Ok(written.clone()),
        (None, _) => Err(format!(
            "{} is accepted, and the pool writes its other form",
            pool.issuer
        )),
    }
}

/// Checks that users can register, get one code, and have user names of their own. Where the address
/// is the name, the name of a deleted user can be taken by another person.
pub(super) fn check_pool(service: &AuthService, pool: &UserPoolType) -> Vec<CheckResult> {
    const NAMES: &str = "user names";
    const REGISTRATION: &str = "registration";
    let names = if pool
        .username_attributes()
        .contains(&UsernameAttributeType::Email)
    {
        CheckResult::passed(NAMES, "differ from the address")
    } else {
        CheckResult::warning(
            NAMES,
            "are the addresses, which another person can get later: create the pool with UsernameAttributes email",
        )
    };
    let mut errors = Vec::new();
    let creation = pool.admin_create_user_config();
    if creation.is_some_and(AdminCreateUserConfigType::allow_admin_create_user_only) {
        errors.push("AllowAdminCreateUserOnly of the pool is set".to_owned());
    }
    let required = pool.schema_attributes().iter();
    let required = required.filter(|it| it.required() == Some(true));
    let unsent = required.filter(|it| !matches!(it.name(), Some("sub" | "email") | None));
    errors.extend(unsent.map(|it| {
        let name = it.name().unwrap_or_default();
        format!("the pool requires {name}, and only email is sent")
    }));
    let verified = pool.auto_verified_attributes();
    let sends_codes = verified.contains(&VerifiedAttributeType::Email);
    let has_own_codes = service.own_codes().is_some();
    if !has_own_codes && !sends_codes && service.confirmation == ConfirmationMode::Code {
        errors.push("no code is sent: add email to AutoVerifiedAttributes of the pool".to_owned());
    }
    let registration = if !errors.is_empty() {
        CheckResult::fault(REGISTRATION, errors.join("; "))
    } else if has_own_codes && sends_codes {
        let detail = "the pool sends a second code, and has a daily limit: remove email from AutoVerifiedAttributes";
        CheckResult::warning(REGISTRATION, detail)
    } else {
        CheckResult::passed(REGISTRATION, "the pool permits it")
    };
    vec![names, registration]
}
