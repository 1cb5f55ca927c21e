//! Operations of an administrator on users.

use std::time::Duration;

use postern_common::Secret;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{attributes, empty_response, sign_up};
use crate::pool::code_delivery::{CodeMail, CodePurpose};
use crate::pool::context::PoolContext;
use crate::pool::crypto::random;
use crate::pool::error::ApiError;
use crate::pool::model::{User, UserAttribute, UserPool, UserStatus, seconds};

/// A request with a pool id and a username only.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct UserRequest {
    user_pool_id: String,
    username: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CreateUserRequest {
    user_pool_id: String,
    username: String,
    #[serde(default)]
    user_attributes: Vec<UserAttribute>,
    temporary_password: Option<String>,
    message_action: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SetPasswordRequest {
    user_pool_id: String,
    username: String,
    password: String,
    #[serde(default)]
    permanent: bool,
}

/// AdminCreateUser. An invitation cannot be sent again (`RESEND`).
pub(super) async fn create(
    context: &PoolContext,
    request: CreateUserRequest,
) -> Result<Value, ApiError> {
    let pool = context.pool(&request.user_pool_id)?;
    attributes::check(&pool, &request.user_attributes)?;
    let sends_invitation = match request.message_action.as_deref() {
        None => true,
        Some("SUPPRESS") => false,
        Some(other) => return Err(ApiError::invalid(format!("{other} is not supported"))),
    };
    let password = match request.temporary_password {
        Some(password) => {
            pool.settings.password_policy.check(&password)?;
            Some(Secret::new(password))
        }
        None if sends_invitation => Some(temporary_password(&pool)?),
        // Without an invitation, the user has no password until one is set.
        None => None,
    };
    let mut user = sign_up::new_user(context, &pool, &request.username)?;
    let attributes_to_apply =
        sign_up::with_email_attribute(&pool, &request.username, request.user_attributes);
    attributes::apply(&pool, &mut user, &attributes_to_apply);
    sign_up::ensure_name_is_free(context, &pool.id, &request.username)?;
    user.status = UserStatus::ForceChangePassword;
    if let Some(password) = &password {
        let hash = context.hasher.hash(password).await?;
        set_temporary_password(context, &pool, &mut user, hash);
    }
    sign_up::add_user(context, &request.username, &user).await?;
    if let (Some(code), true, Some(email)) = (password, sends_invitation, user.email()) {
        context.delivery.deliver(CodeMail {
            to: email.to_owned(),
            purpose: CodePurpose::Invitation,
            code,
        })?;
    }
    Ok(json!({"User": user.to_user_type()}))
}

/// Generates a random password that satisfies any policy up to its length.
fn temporary_password(pool: &UserPool) -> Result<Secret, ApiError> {
    let length = pool.settings.password_policy.minimum_length.max(20);
    Ok(Secret::new(format!(
        "{}-aA1",
        random::alphanumeric(length)?
    )))
}

fn set_temporary_password(context: &PoolContext, pool: &UserPool, user: &mut User, hash: String) {
    let lifetime = Duration::from_secs(pool.settings.password_policy.temporary_days * 86_400);
    user.password = Some(hash);
    user.status = UserStatus::ForceChangePassword;
    user.temporary_until = Some(context.clock.now().plus(lifetime).0);
}

pub(super) async fn get(context: &PoolContext, request: UserRequest) -> Result<Value, ApiError> {
    let user = context.find_user(&request.user_pool_id, &request.username)?;
    Ok(json!({
        "Username": user.username,
        "UserAttributes": user.attribute_list(|_| true),
        "UserCreateDate": seconds(user.created_at),
        "UserLastModifiedDate": seconds(user.updated_at),
        "Enabled": user.is_enabled,
        "UserStatus": user.status.name(),
    }))
}

pub(super) async fn delete(context: &PoolContext, request: UserRequest) -> Result<Value, ApiError> {
    let user = context.find_user(&request.user_pool_id, &request.username)?;
    context.store.users.take(&user.id()).await?;
    Ok(empty_response())
}

/// Finds a user and changes it.
async fn change(
    context: &PoolContext,
    request: UserRequest,
    change: impl FnOnce(&mut User) -> Result<(), ApiError>,
) -> Result<Value, ApiError> {
    let user = context.find_user(&request.user_pool_id, &request.username)?;
    context.update_user(&user, change).await?;
    Ok(empty_response())
}

pub(super) async fn confirm_sign_up(
    context: &PoolContext,
    request: UserRequest,
) -> Result<Value, ApiError> {
    let confirm = |user: &mut User| {
        sign_up::ensure_unconfirmed(user)?;
        user.status = UserStatus::Confirmed;
        Ok(())
    };
    change(context, request, confirm).await
}

pub(super) async fn set_password(
    context: &PoolContext,
    request: SetPasswordRequest,
) -> Result<Value, ApiError> {
    let SetPasswordRequest {
        user_pool_id,
        username,
        password,
        permanent,
    } = request;
    let pool = context.pool(&user_pool_id)?;
    pool.settings.password_policy.check(&password)?;
    let hash = context.hasher.hash(&Secret::new(password)).await?;
    let set = |user: &mut User| {
        if permanent {
            user.set_password(hash);
        } else {
            set_temporary_password(context, &pool, user, hash);
        }
        Ok(())
    };
    let user = UserRequest {
        user_pool_id,
        username,
    };
    change(context, user, set).await
}

pub(super) async fn enable(context: &PoolContext, request: UserRequest) -> Result<Value, ApiError> {
    let enable = |user: &mut User| {
        user.is_enabled = true;
        Ok(())
    };
    change(context, request, enable).await
}

/// AdminDisableUser. Revokes all sign-ins of the user.
pub(super) async fn disable(
    context: &PoolContext,
    request: UserRequest,
) -> Result<Value, ApiError> {
    let disable = |user: &mut User| {
        user.is_enabled = false;
        user.sign_outs += 1;
        Ok(())
    };
    change(context, request, disable).await
}

pub(super) async fn sign_out(
    context: &PoolContext,
    request: UserRequest,
) -> Result<Value, ApiError> {
    let user = context.find_user(&request.user_pool_id, &request.username)?;
    revoke_sign_ins(context, &user).await?;
    Ok(empty_response())
}

/// Revokes all sign-ins of the user.
pub(super) async fn revoke_sign_ins(context: &PoolContext, user: &User) -> Result<(), ApiError> {
    let revoke = |user: &mut User| {
        user.sign_outs += 1;
        Ok(())
    };
    context.update_user(user, revoke).await.map(drop)
}
