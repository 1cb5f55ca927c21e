//! Operations on users: of an administrator, and of a user on its own account.

use postern_core::Secret;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answer, attributes, empty_response, sign_up};
use crate::pool::context::PoolContext;
use crate::pool::crypto::hash_password;
use crate::pool::error::ApiError;
use crate::pool::model::{User, UserAttribute, UserStatus, check_password};
use crate::pool::tokens;

/// A request with a pool id and a username only.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct UserRequest {
    pub(super) user_pool_id: String,
    pub(super) username: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ListRequest {
    user_pool_id: String,
    filter: Option<String>,
    limit: Option<usize>,
    /// The username of the last user of the page before.
    pagination_token: Option<String>,
}

/// Maximum number, and the default, of users on a page of ListUsers.
const MAX_PAGE_SIZE: usize = 60;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CreateUserRequest {
    user_pool_id: String,
    username: String,
    #[serde(default)]
    user_attributes: Vec<UserAttribute>,
    temporary_password: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct UpdateAttributesRequest {
    #[serde(flatten)]
    user: UserRequest,
    user_attributes: Vec<UserAttribute>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SetPasswordRequest {
    #[serde(flatten)]
    user: UserRequest,
    password: String,
    #[serde(default)]
    permanent: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct AccessTokenRequest {
    access_token: String,
}

/// AdminCreateUser. Sends no invitation.
pub(super) async fn create(context: &PoolContext, request: CreateUserRequest) -> Answer {
    let pool = context.pool(&request.user_pool_id)?;
    attributes::check(&pool, &request.user_attributes)?;
    if let Some(password) = &request.temporary_password {
        check_password(password)?;
    }
    let (name, attributes) = (&request.username, request.user_attributes);
    let mut user = sign_up::new_user_with(context, &pool, name, attributes)?;
    user.status = UserStatus::ForceChangePassword;
    // Without a password, the user has none until one is set.
    if let Some(password) = request.temporary_password {
        let hash = hash_password(&Secret::new(password)).await?;
        set_temporary_password(&mut user, hash);
    }
    sign_up::add_user(context, &request.username, &user).await?;
    Ok(json!({"User": user.to_user_type("Attributes")}))
}

/// Sets a password that the user has to replace. Unlike in Cognito, it does not expire.
fn set_temporary_password(user: &mut User, hash: String) {
    user.password = Some(hash);
    user.status = UserStatus::ForceChangePassword;
}

pub(super) async fn get(context: &PoolContext, request: UserRequest) -> Answer {
    let user = context.find_user(&request.user_pool_id, &request.username)?;
    Ok(user.to_user_type("UserAttributes"))
}

/// ListUsers, in the order of usernames.
pub(super) async fn list(context: &PoolContext, request: ListRequest) -> Answer {
    let pool = context.pool(&request.user_pool_id)?;
    let limit = request
        .limit
        .unwrap_or(MAX_PAGE_SIZE)
        .clamp(1, MAX_PAGE_SIZE);
    let after = request.pagination_token.unwrap_or_default();
    let mut users = context.store.users.all();
    users.retain(|user| user.pool_id == pool.id && user.username > after);
    if let Some(filter) = &request.filter {
        let invalid = || ApiError::invalid("Error while parsing filter.");
        let filter = parse_filter(filter).ok_or_else(invalid)?;
        users.retain(filter);
    }
    let page = users.iter().take(limit);
    let page: Vec<Value> = page.map(|user| user.to_user_type("Attributes")).collect();
    let mut answer = json!({ "Users": page });
    if users.len() > limit {
        answer["PaginationToken"] = page[limit - 1]["Username"].clone();
    }
    Ok(answer)
}

/// Parses `name = "value"`, or `name ^= "prefix"`.
fn parse_filter(text: &str) -> Option<impl Fn(&User) -> bool> {
    let (name, value) = text.split_once('=')?;
    let value: String = serde_json::from_str(value.trim()).ok()?;
    let (name, is_prefix) = match name.strip_suffix('^') {
        Some(name) => (name.trim().to_owned(), true),
        None => (name.trim().to_owned(), false),
    };
    Some(move |user: &User| {
        let found = match name.as_str() {
            "sub" => Some(&user.sub),
            name => user.attributes.get(name),
        };
        found.is_some_and(|found| *found == value || is_prefix && found.starts_with(&value))
    })
}

pub(super) async fn delete(context: &PoolContext, request: UserRequest) -> Answer {
    let user = context.find_user(&request.user_pool_id, &request.username)?;
    context.store.users.take(&user.id()).await?;
    Ok(empty_response())
}

/// Finds a user and changes it.
pub(super) async fn change(
    context: &PoolContext,
    request: &UserRequest,
    change: impl FnOnce(&mut User),
) -> Answer {
    let user = context.find_user(&request.user_pool_id, &request.username)?;
    let change = |user: &mut User| {
        change(user);
        Ok(())
    };
    context.update_user(&user, change).await?;
    Ok(empty_response())
}

pub(super) async fn confirm_sign_up(context: &PoolContext, request: UserRequest) -> Answer {
    let user = context.find_user(&request.user_pool_id, &request.username)?;
    let confirm = |user: &mut User| {
        if user.status != UserStatus::Unconfirmed {
            let status = json!(user.status);
            let status = status.as_str().unwrap_or_default();
            let message = format!("User cannot be confirmed. Current status is {status}");
            return Err(ApiError::not_authorized(message));
        }
        user.status = UserStatus::Confirmed;
        Ok(())
    };
    context.update_user(&user, confirm).await?;
    Ok(empty_response())
}

/// AdminSetUserPassword. Unlike Cognito, revokes all sign-ins of the user.
pub(super) async fn set_password(context: &PoolContext, request: SetPasswordRequest) -> Answer {
    check_password(&request.password)?;
    let hash = hash_password(&Secret::new(request.password)).await?;
    let set = |user: &mut User| {
        if request.permanent {
            user.set_password(hash);
        } else {
            set_temporary_password(user, hash);
        }
        user.sign_outs += 1;
    };
    change(context, &request.user, set).await
}

pub(super) async fn update_attributes(
    context: &PoolContext,
    request: UpdateAttributesRequest,
) -> Answer {
    let pool = context.pool(&request.user.user_pool_id)?;
    attributes::check(&pool, &request.user_attributes)?;
    let apply = |user: &mut User| attributes::apply(user, &request.user_attributes);
    change(context, &request.user, apply).await
}

pub(super) async fn enable(context: &PoolContext, request: UserRequest) -> Answer {
    change(context, &request, |user| user.is_enabled = true).await
}

/// AdminDisableUser. Revokes all sign-ins of the user.
pub(super) async fn disable(context: &PoolContext, request: UserRequest) -> Answer {
    let disable = |user: &mut User| {
        user.is_enabled = false;
        user.sign_outs += 1;
    };
    change(context, &request, disable).await
}

pub(super) async fn sign_out(context: &PoolContext, request: UserRequest) -> Answer {
    change(context, &request, |user| user.sign_outs += 1).await
}

pub(super) async fn get_own(context: &PoolContext, request: AccessTokenRequest) -> Answer {
    let (client_id, user) = tokens::verify(context, &request.access_token)?;
    let (client, _) = context.client(&client_id)?;
    Ok(json!({
        "Username": user.username,
        "UserAttributes": user.attribute_list(|name| client.may_read(name)),
    }))
}

pub(super) async fn delete_own(context: &PoolContext, request: AccessTokenRequest) -> Answer {
    let (_, user) = tokens::verify(context, &request.access_token)?;
    context.store.users.take(&user.id()).await?;
    Ok(empty_response())
}
