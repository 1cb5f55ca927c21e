//! What an administrator does with users.

use std::time::Duration;

use postern_common::Secret;
use serde::Deserialize;
use serde_json::{Value, json};

use super::codes::Place;
use super::{Call, OfUser, account, attributes, nothing, sign_up};
use crate::delivery::{CodeMail, CodePurpose};
use crate::fault::{Fault, Kind};
use crate::pool::Pool;
use crate::random;
use crate::store::{Column, Page, UserFilter};
use crate::user::{Attribute, Status, User, seconds};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Create {
    user_pool_id: String,
    username: String,
    #[serde(default)]
    user_attributes: Vec<Attribute>,
    temporary_password: Option<String>,
    message_action: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SetPassword {
    user_pool_id: String,
    username: String,
    password: String,
    #[serde(default)]
    permanent: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Update {
    user_pool_id: String,
    username: String,
    user_attributes: Vec<Attribute>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct DeleteAttributes {
    user_pool_id: String,
    username: String,
    user_attribute_names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct List {
    user_pool_id: String,
    limit: Option<i64>,
    pagination_token: Option<String>,
    filter: Option<String>,
    attributes_to_get: Option<Vec<String>>,
}

/// Most users on one page (Cognito's quota).
const PAGE: i64 = 60;

pub(super) async fn create(call: &Call<'_>, request: Create) -> Result<Value, Fault> {
    let server = call.server;
    let pool = server.directory.pool(&request.user_pool_id)?;
    if request.message_action.as_deref() == Some("RESEND") {
        return invite_again(call, &pool, &request).await;
    }
    attributes::check(&pool, &request.user_attributes)?;
    let told = request.message_action.as_deref() != Some("SUPPRESS");
    let password = match request.temporary_password {
        Some(password) => {
            pool.settings.password_policy.check(&password)?;
            Some(Secret::new(password))
        }
        None if told => Some(temporary_password(&pool)?),
        // Nobody would know the password: the user has none until it is set.
        None => None,
    };
    let mut user = sign_up::new_user(server, &pool, &request.username)?;
    let written = sign_up::address_first(&pool, &request.username, request.user_attributes);
    attributes::apply(&pool, &mut user, &written);
    sign_up::refuse_taken(server, &pool, &request.username).await?;
    user.status = Status::ForceChangePassword;
    if let Some(password) = &password {
        set_temporary(call, &pool, &mut user, password).await?;
    }
    sign_up::add(server, &user).await?;
    call.note_user(&user);
    if let Some(password) = password.filter(|_| told) {
        invite(call, &user, password)?;
    }
    Ok(json!({"User": user.to_user_type()}))
}

async fn invite_again(call: &Call<'_>, pool: &Pool, request: &Create) -> Result<Value, Fault> {
    let mut user = call.admin_user(&pool.id, &request.username).await?;
    if user.status != Status::ForceChangePassword {
        return Err(Fault::new(
            Kind::NotAuthorized,
            "Resend not possible. User is already confirmed.",
        ));
    }
    let password = temporary_password(pool)?;
    set_temporary(call, pool, &mut user, &password).await?;
    call.server
        .store
        .set_password(&user, call.server.clock.now())
        .await?;
    invite(call, &user, password)?;
    Ok(json!({"User": user.to_user_type()}))
}

fn invite(call: &Call<'_>, user: &User, password: Secret) -> Result<(), Fault> {
    let Some(email) = user.email() else {
        return Ok(());
    };
    let mail = CodeMail {
        to: email.to_owned(),
        purpose: CodePurpose::Invitation,
        code: password,
    };
    call.server.delivery.deliver(mail)
}

/// Random, and good enough for any policy of up to its length.
fn temporary_password(pool: &Pool) -> Result<Secret, Fault> {
    let length = pool.settings.password_policy.minimum_length.max(20);
    Ok(Secret::new(format!(
        "{}-aA1",
        random::alphanumeric(length)?
    )))
}

async fn set_temporary(
    call: &Call<'_>,
    pool: &Pool,
    user: &mut User,
    password: &Secret,
) -> Result<(), Fault> {
    let days = pool.settings.password_policy.temporary_days;
    user.password = Some(call.server.hasher.hash(password).await?);
    user.status = Status::ForceChangePassword;
    user.temporary_until = Some(
        call.server
            .clock
            .now()
            .plus(Duration::from_secs(days * 86_400))
            .0,
    );
    Ok(())
}

pub(super) async fn get(call: &Call<'_>, request: OfUser) -> Result<Value, Fault> {
    let user = call
        .admin_user(&request.user_pool_id, &request.username)
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

pub(super) async fn delete(call: &Call<'_>, request: OfUser) -> Result<Value, Fault> {
    let user = call
        .admin_user(&request.user_pool_id, &request.username)
        .await?;
    call.server.store.delete_user(&user).await?;
    Ok(nothing())
}

pub(super) async fn confirm_sign_up(call: &Call<'_>, request: OfUser) -> Result<Value, Fault> {
    let mut user = call
        .admin_user(&request.user_pool_id, &request.username)
        .await?;
    if user.status != Status::Unconfirmed {
        return Err(Fault::not_authorized(format!(
            "User cannot be confirmed. Current status is {}",
            user.status.name()
        )));
    }
    user.status = Status::Confirmed;
    call.server
        .store
        .set_password(&user, call.server.clock.now())
        .await?;
    Ok(nothing())
}

pub(super) async fn set_password(call: &Call<'_>, request: SetPassword) -> Result<Value, Fault> {
    let mut user = call
        .admin_user(&request.user_pool_id, &request.username)
        .await?;
    let pool = call.server.directory.pool(&user.pool_id)?;
    pool.settings.password_policy.check(&request.password)?;
    let password = Secret::new(request.password);
    if request.permanent {
        user.password = Some(call.server.hasher.hash(&password).await?);
        user.status = Status::Confirmed;
        user.temporary_until = None;
    } else {
        set_temporary(call, &pool, &mut user, &password).await?;
    }
    call.server
        .store
        .set_password(&user, call.server.clock.now())
        .await?;
    Ok(nothing())
}

/// AdminResetUserPassword: the password stops working until it is replaced by a code.
pub(super) async fn reset_password(call: &Call<'_>, request: OfUser) -> Result<Value, Fault> {
    let mut user = call
        .admin_user(&request.user_pool_id, &request.username)
        .await?;
    user.status = Status::ResetRequired;
    call.server
        .store
        .set_password(&user, call.server.clock.now())
        .await?;
    Place::of(&user, CodePurpose::ForgotPassword)
        .send(call.server, true)
        .await?;
    Ok(nothing())
}

pub(super) async fn set_enabled(
    call: &Call<'_>,
    request: OfUser,
    enabled: bool,
) -> Result<Value, Fault> {
    let user = call
        .admin_user(&request.user_pool_id, &request.username)
        .await?;
    call.server
        .store
        .set_enabled(&user, enabled, call.server.clock.now())
        .await?;
    Ok(nothing())
}

pub(super) async fn sign_out(call: &Call<'_>, request: OfUser) -> Result<Value, Fault> {
    let user = call
        .admin_user(&request.user_pool_id, &request.username)
        .await?;
    call.server
        .store
        .revoke_user(&user.pool_id, &user.username, call.server.clock.now())
        .await?;
    Ok(nothing())
}

pub(super) async fn update_attributes(call: &Call<'_>, request: Update) -> Result<Value, Fault> {
    let mut user = call
        .admin_user(&request.user_pool_id, &request.username)
        .await?;
    let pool = call.server.directory.pool(&user.pool_id)?;
    attributes::check(&pool, &request.user_attributes)?;
    attributes::apply(&pool, &mut user, &request.user_attributes);
    account::save(call, &user).await?;
    Ok(nothing())
}

pub(super) async fn delete_attributes(
    call: &Call<'_>,
    request: DeleteAttributes,
) -> Result<Value, Fault> {
    let mut user = call
        .admin_user(&request.user_pool_id, &request.username)
        .await?;
    let pool = call.server.directory.pool(&user.pool_id)?;
    attributes::remove(&pool, &mut user, &request.user_attribute_names)?;
    account::save(call, &user).await?;
    Ok(nothing())
}

pub(super) async fn list(call: &Call<'_>, request: List) -> Result<Value, Fault> {
    let pool = call.server.directory.pool(&request.user_pool_id)?;
    let limit = request.limit.unwrap_or(PAGE);
    if !(0..=PAGE).contains(&limit) {
        return Err(Fault::invalid(format!("Limit must be 0 to {PAGE}")));
    }
    let limit = if limit == 0 { PAGE } else { limit };
    let filter = request.filter.as_deref().map_or(Ok(None), filter)?;
    let after = request.pagination_token.as_deref().unwrap_or("");
    let mut found = call
        .server
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
    let mut answer = json!({"Users": users});
    if let Some(last) = found.last().filter(|_| more) {
        answer["PaginationToken"] = last.username.as_str().into();
    }
    Ok(answer)
}

/// `name = "value"` or `name ^= "beginning"`, for what has an index here.
fn filter(text: &str) -> Result<Option<UserFilter>, Fault> {
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
            "username" => Column::Username,
            "sub" => Column::Sub,
            "email" => Column::Email,
            "cognito:user_status" => Column::Status,
            _ => return None,
        };
        let value = if matches!(column, Column::Email) {
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
        Fault::invalid(
            "Filter must be username, sub, email or cognito:user_status, = or ^=, \"value\"",
        )
    })
}
