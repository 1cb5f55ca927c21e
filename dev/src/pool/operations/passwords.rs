//! Operations on forgotten and changed passwords.

use postern_common::Secret;
use serde::Deserialize;
use serde_json::{Value, json};

use super::codes::{CodeBinding, delivery_details};
use super::empty_response;
use super::lockout::LockoutKey;
use crate::pool::code_delivery::CodePurpose;
use crate::pool::context::PoolContext;
use crate::pool::error::ApiError;
use crate::pool::model::{User, UserPool, UserStatus};
use crate::pool::tokens;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ForgotPasswordRequest {
    client_id: String,
    secret_hash: Option<String>,
    username: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ConfirmForgotPasswordRequest {
    client_id: String,
    secret_hash: Option<String>,
    username: String,
    confirmation_code: String,
    password: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ChangePasswordRequest {
    access_token: String,
    previous_password: String,
    proposed_password: String,
}

/// ForgotPassword. Creates a code for every name and sends it only to a user who may reset the
/// password, so that neither the response nor its duration reveals whether the user exists.
pub(super) async fn forgot(
    context: &PoolContext,
    request: ForgotPasswordRequest,
) -> Result<Value, ApiError> {
    let (client, pool) = context.client(&request.client_id)?;
    client.check_secret_hash(request.secret_hash.as_deref(), &request.username)?;
    let found = context.find_entered_user(&pool, &request.username);
    if found.is_none() && !client.settings.prevent_user_existence_errors {
        return Err(ApiError::user_not_found());
    }
    let recoverable = found.as_ref().filter(|user| may_recover(&pool, user));
    if recoverable.is_none() && !client.settings.prevent_user_existence_errors {
        return Err(ApiError::invalid(
            "Cannot reset password for the user as there is no registered/verified email or phone_number",
        ));
    }
    let binding = CodeBinding::for_entered_name(
        &pool,
        found.as_ref(),
        &request.username,
        CodePurpose::ForgotPassword,
    );
    binding.issue(context, recoverable.is_some()).await?;
    // If users sign in with their address, the name entered is the address. The user is then not
    // consulted, so that the response is the same for unknown names.
    let shown = if pool.settings.email_usernames {
        None
    } else {
        found.as_ref().and_then(User::email)
    };
    Ok(json!({"CodeDeliveryDetails": delivery_details(shown.unwrap_or(&request.username))}))
}

fn may_recover(pool: &UserPool, user: &User) -> bool {
    let reachable = user.email_verified() || pool.settings.recover_unverified;
    user.is_enabled && reachable && user.status == UserStatus::Confirmed
}

/// ConfirmForgotPassword. Sets the new password and, unlike Cognito, revokes all sign-ins: the
/// reason for a reset may be that an attacker has the password.
pub(super) async fn confirm_forgot(
    context: &PoolContext,
    request: ConfirmForgotPasswordRequest,
) -> Result<Value, ApiError> {
    let (client, pool) = context.client(&request.client_id)?;
    client.check_secret_hash(request.secret_hash.as_deref(), &request.username)?;
    pool.settings.password_policy.check(&request.password)?;
    let found = context.find_entered_user(&pool, &request.username);
    if found.is_none() && !client.settings.prevent_user_existence_errors {
        return Err(ApiError::user_not_found());
    }
    let binding = CodeBinding::for_entered_name(
        &pool,
        found.as_ref(),
        &request.username,
        CodePurpose::ForgotPassword,
    );
    binding.check(context, &request.confirmation_code).await?;
    let hash = context.hasher.hash(&Secret::new(request.password)).await?;
    binding.consume(context, &request.confirmation_code).await?;
    let user = found
        .filter(|user| may_recover(&pool, user))
        .ok_or_else(ApiError::code_expired)?;
    let reset = |user: &mut User| {
        user.set_password(hash);
        user.verify_email();
        user.sign_outs += 1;
        Ok(())
    };
    context.update_user(&user, reset).await?;
    context.lockouts.clear(&LockoutKey::of_user(&user));
    Ok(empty_response())
}

pub(super) async fn change(
    context: &PoolContext,
    request: ChangePasswordRequest,
) -> Result<Value, ApiError> {
    let (_, user) = tokens::verify(context, &request.access_token)?;
    let pool = context.pool(&user.pool_id)?;
    let previous = Secret::new(request.previous_password);
    let is_match = context
        .hasher
        .verify(&previous, user.password.as_deref())
        .await?;
    if !is_match {
        return Err(ApiError::wrong_password());
    }
    let proposed = request.proposed_password;
    pool.settings.password_policy.check(&proposed)?;
    let hash = context.hasher.hash(&Secret::new(proposed)).await?;
    let change = |user: &mut User| {
        user.set_password(hash);
        Ok(())
    };
    context.update_user(&user, change).await?;
    Ok(empty_response())
}
