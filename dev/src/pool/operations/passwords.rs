//! Operations on forgotten and changed passwords.

use postern_common::Secret;
use serde::Deserialize;
use serde_json::{Value, json};

use super::codes::{CodeBinding, delivery_details};
use super::lockout::LockoutKey;
use super::{OperationCall, empty_response};
use crate::pool::code_delivery::CodePurpose;
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
    call: &OperationCall<'_>,
    request: ForgotPasswordRequest,
) -> Result<Value, ApiError> {
    let context = call.context;
    let (client, pool) = context.client(&request.client_id)?;
    call.record_client(&client);
    client.check_secret_hash(request.secret_hash.as_deref(), &request.username)?;
    let found = context.find_entered_user(&pool, &request.username).await?;
    if let Some(user) = &found {
        call.record_user(user);
    } else if !client.settings.prevent_user_existence_errors {
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
    user.is_enabled()
        && reachable
        && matches!(
            user.status,
            UserStatus::Confirmed | UserStatus::ResetRequired
        )
}

/// ConfirmForgotPassword. Sets the new password and, unlike Cognito, revokes all sign-ins: the
/// reason for a reset may be that an attacker has the password.
pub(super) async fn confirm_forgot(
    call: &OperationCall<'_>,
    request: ConfirmForgotPasswordRequest,
) -> Result<Value, ApiError> {
    let context = call.context;
    let (client, pool) = context.client(&request.client_id)?;
    call.record_client(&client);
    client.check_secret_hash(request.secret_hash.as_deref(), &request.username)?;
    pool.settings.password_policy.check(&request.password)?;
    let found = context.find_entered_user(&pool, &request.username).await?;
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
    let mut user = found
        .filter(|user| may_recover(&pool, user))
        .ok_or_else(ApiError::code_expired)?;
    call.record_user(&user);
    let now = context.clock.now();
    // Sign-ins are revoked before the change, so that none outlives the old password, and after it,
    // for those that started in between.
    context
        .store
        .revoke_user(&user.pool_id, &user.username, now)
        .await?;
    user.password = Some(hash);
    user.status = UserStatus::Confirmed;
    user.temporary_until = None;
    context.store.set_password(&user, now).await?;
    user.attributes
        .0
        .insert("email_verified".into(), "true".into());
    context.store.set_attributes(&user, now).await?;
    context
        .store
        .revoke_user(&user.pool_id, &user.username, now)
        .await?;
    context.lockouts.clear(&LockoutKey::of_user(&user));
    Ok(empty_response())
}

pub(super) async fn change(
    call: &OperationCall<'_>,
    request: ChangePasswordRequest,
) -> Result<Value, ApiError> {
    let context = call.context;
    let (token, pool_id) = tokens::verify(context, &request.access_token).await?;
    let pool = context.directory.pool(&pool_id)?;
    let mut user = context.find_user(&pool_id, &token.username).await?;
    call.record_user(&user);
    let key = LockoutKey::of_user(&user);
    context.lockouts.check(&key, context.clock.now())?;
    let previous = Secret::new(request.previous_password);
    let is_match = context
        .hasher
        .verify(&previous, user.password.as_deref())
        .await?;
    if !is_match {
        context.lockouts.record_failure(&key, context.clock.now())?;
        return Err(ApiError::wrong_password());
    }
    context.lockouts.record_success(&key, context.clock.now())?;
    pool.settings
        .password_policy
        .check(&request.proposed_password)?;
    user.password = Some(
        context
            .hasher
            .hash(&Secret::new(request.proposed_password))
            .await?,
    );
    user.status = UserStatus::Confirmed;
    user.temporary_until = None;
    context
        .store
        .set_password(&user, context.clock.now())
        .await?;
    Ok(empty_response())
}
