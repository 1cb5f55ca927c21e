//! Operations of an administrator on users.

use std::time::Duration;

use postern_common::Secret;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{OperationCall, UserRequest, attributes, empty_response, sign_up};
use crate::pool::code_delivery::{CodeMail, CodePurpose};
use crate::pool::crypto::random;
use crate::pool::error::{ApiError, ExceptionKind};
use crate::pool::model::{User, UserAttribute, UserPool, UserStatus, seconds};
use crate::pool::store::{Page, UserColumn, UserFilter};

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

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ListUsersRequest {
    user_pool_id: String,
    limit: Option<i64>,
    pagination_token: Option<String>,
    filter: Option<String>,
    attributes_to_get: Option<Vec<String>>,
}

/// Maximum number of users per page (Cognito's quota).
const MAX_PAGE_SIZE: i64 = 60;

pub(super) async fn create(
    call: &OperationCall<'_>,
    request: CreateUserRequest,
) -> Result<Value, ApiError> {
    let context = call.context;
    let pool = context.directory.pool(&request.user_pool_id)?;
    if request.message_action.as_deref() == Some("RESEND") {
        return resend_invitation(call, &pool, &request).await;
    }
    attributes::check(&pool, &request.user_attributes)?;
    let sends_invitation = request.message_action.as_deref() != Some("SUPPRESS");
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
    sign_up::ensure_name_is_free(context, &pool, &request.username).await?;
    user.status = UserStatus::ForceChangePassword;
    if let Some(password) = &password {
        set_temporary_password(call, &pool, &mut user, password).await?;
    }
    sign_up::insert_user(context, &user).await?;
    call.record_user(&user);
    if let Some(password) = password.filter(|_| sends_invitation) {
        send_invitation(call, &user, password)?;
    }
    Ok(json!({"User": user.to_user_type()}))
}

async fn resend_invitation(
    call: &OperationCall<'_>,
    pool: &UserPool,
    request: &CreateUserRequest,
) -> Result<Value, ApiError> {
    let mut user = call.find_user(&pool.id, &request.username).await?;
    if user.status != UserStatus::ForceChangePassword {
        return Err(ApiError::new(
            ExceptionKind::NotAuthorized,
            "Resend not possible. User is already confirmed.",
        ));
    }
    let password = temporary_password(pool)?;
    set_temporary_password(call, pool, &mut user, &password).await?;
    call.context
        .store
        .set_password(&user, call.context.clock.now())
        .await?;
    send_invitation(call, &user, password)?;
    Ok(json!({"User": user.to_user_type()}))
}

fn send_invitation(
    call: &OperationCall<'_>,
    user: &User,
    password: Secret,
) -> Result<(), ApiError> {
    let Some(email) = user.email() else {
        return Ok(());
    };
    let mail = CodeMail {
        to: email.to_owned(),
        purpose: CodePurpose::Invitation,
        code: password,
    };
    call.context.delivery.deliver(mail)
}

/// Generates a random password that satisfies any policy up to its length.
fn temporary_password(pool: &UserPool) -> Result<Secret, ApiError> {
    let length = pool.settings.password_policy.minimum_length.max(20);
    Ok(Secret::new(format!(
        "{}-aA1",
        random::alphanumeric(length)?
    )))
}

async fn set_temporary_password(
    call: &OperationCall<'_>,
    pool: &UserPool,
    user: &mut User,
    password: &Secret,
) -> Result<(), ApiError> {
    let days = pool.settings.password_policy.temporary_days;
    user.password = Some(call.context.hasher.hash(password).await?);
    user.status = UserStatus::ForceChangePassword;
    user.temporary_until = Some(
        call.context
            .clock
            .now()
            .plus(Duration::from_secs(days * 86_400))
            .0,
    );
    Ok(())
}

pub(super) async fn get(call: &OperationCall<'_>, request: UserRequest) -> Result<Value, ApiError> {
    let user = call
        .find_user(&request.user_pool_id, &request.username)
        .await?;
    Ok(json!({
        "Username": user.username,
        "UserAttributes": user.attribute_list(|_| true),
        "UserCreateDate": seconds(user.created_at),
        "UserLastModifiedDate": seconds(user.updated_at),
        "Enabled": user.is_enabled(),
        "UserStatus": user.status.name(),
    }))
}

pub(super) async fn delete(
    call: &OperationCall<'_>,
    request: UserRequest,
) -> Result<Value, ApiError> {
    let user = call
        .find_user(&request.user_pool_id, &request.username)
        .await?;
    call.context.store.delete_user(&user).await?;
    Ok(empty_response())
}

pub(super) async fn confirm_sign_up(
    call: &OperationCall<'_>,
    request: UserRequest,
) -> Result<Value, ApiError> {
    let mut user = call
        .find_user(&request.user_pool_id, &request.username)
        .await?;
    if user.status != UserStatus::Unconfirmed {
        return Err(ApiError::not_authorized(format!(
            "User cannot be confirmed. Current status is {}",
            user.status.name()
        )));
    }
    user.status = UserStatus::Confirmed;
    call.context
        .store
        .set_password(&user, call.context.clock.now())
        .await?;
    Ok(empty_response())
}

pub(super) async fn set_password(
    call: &OperationCall<'_>,
    request: SetPasswordRequest,
) -> Result<Value, ApiError> {
    let mut user = call
        .find_user(&request.user_pool_id, &request.username)
        .await?;
    let pool = call.context.directory.pool(&user.pool_id)?;
    pool.settings.password_policy.check(&request.password)?;
    let password = Secret::new(request.password);
    if request.permanent {
        user.password = Some(call.context.hasher.hash(&password).await?);
        user.status = UserStatus::Confirmed;
        user.temporary_until = None;
    } else {
        set_temporary_password(call, &pool, &mut user, &password).await?;
    }
    call.context
        .store
        .set_password(&user, call.context.clock.now())
        .await?;
    Ok(empty_response())
}

pub(super) async fn enable(
    call: &OperationCall<'_>,
    request: UserRequest,
) -> Result<Value, ApiError> {
    set_enabled(call, &request, true).await
}

pub(super) async fn disable(
    call: &OperationCall<'_>,
    request: UserRequest,
) -> Result<Value, ApiError> {
    set_enabled(call, &request, false).await
}

async fn set_enabled(
    call: &OperationCall<'_>,
    request: &UserRequest,
    enabled: bool,
) -> Result<Value, ApiError> {
    let user = call
        .find_user(&request.user_pool_id, &request.username)
        .await?;
    call.context
        .store
        .set_enabled(&user, enabled, call.context.clock.now())
        .await?;
    Ok(empty_response())
}

pub(super) async fn sign_out(
    call: &OperationCall<'_>,
    request: UserRequest,
) -> Result<Value, ApiError> {
    let user = call
        .find_user(&request.user_pool_id, &request.username)
        .await?;
    call.context
        .store
        .revoke_user(&user.pool_id, &user.username, call.context.clock.now())
        .await?;
    Ok(empty_response())
}

pub(super) async fn list(
    call: &OperationCall<'_>,
    request: ListUsersRequest,
) -> Result<Value, ApiError> {
    let pool = call.context.directory.pool(&request.user_pool_id)?;
    let limit = request.limit.unwrap_or(MAX_PAGE_SIZE);
    if !(0..=MAX_PAGE_SIZE).contains(&limit) {
        return Err(ApiError::invalid(format!(
            "Limit must be 0 to {MAX_PAGE_SIZE}"
        )));
    }
    let limit = if limit == 0 { MAX_PAGE_SIZE } else { limit };
    let filter = request.filter.as_deref().map_or(Ok(None), parse_filter)?;
    let after = request.pagination_token.as_deref().unwrap_or("");
    let mut found = call
        .context
        .store
        .users(
            &pool.id,
            filter.as_ref(),
            Page {
                after,
                limit: limit + 1,
            },
        )
        .await?;
    let more = i64::try_from(found.len()).is_ok_and(|count| count > limit);
    found.truncate(usize::try_from(limit).unwrap_or(0));
    let shown = |name: &str| {
        request
            .attributes_to_get
            .as_ref()
            .is_none_or(|wanted| wanted.iter().any(|want| want == name))
    };
    let users: Vec<Value> = found
        .iter()
        .map(|user| {
            let mut value = user.to_user_type();
            value["Attributes"] = user.attribute_list(shown).into();
            value
        })
        .collect();
    let mut response = json!({"Users": users});
    if let Some(last) = found.last().filter(|_| more) {
        response["PaginationToken"] = last.username.as_str().into();
    }
    Ok(response)
}

/// Parses a filter, `name = "value"` or `name ^= "prefix"`, on an indexed attribute.
fn parse_filter(text: &str) -> Result<Option<UserFilter>, ApiError> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let parsed = text.split_once('=').and_then(|(name, value)| {
        let value = value
            .trim()
            .strip_prefix('"')?
            .strip_suffix('"')?
            .replace("\\\"", "\"");
        let (name, is_prefix) = name
            .strip_suffix('^')
            .map_or((name, false), |name| (name, true));
        let column = match name.trim().trim_matches('"') {
            "username" => UserColumn::Username,
            "sub" => UserColumn::Sub,
            "email" => UserColumn::Email,
            "cognito:user_status" => UserColumn::UserStatus,
            _ => return None,
        };
        let value = if matches!(column, UserColumn::Email) {
            value.to_lowercase()
        } else {
            value
        };
        Some(UserFilter {
            column,
            is_prefix,
            value,
        })
    });
    parsed.map(Some).ok_or_else(|| {
        ApiError::invalid(
            "Filter must be username, sub, email or cognito:user_status, = or ^=, \"value\"",
        )
    })
}
