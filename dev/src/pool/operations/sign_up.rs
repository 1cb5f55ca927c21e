//! SignUp.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use postern_core::email::EmailAddress;
use postern_core::identity::SOCIAL_PROOF;
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::{Answer, attributes, custom_auth};
use crate::pool::context::PoolContext;
use crate::pool::crypto::hash_password;
use crate::pool::error::{ApiError, ApiResult};
use crate::pool::model::{User, UserAttribute, UserPool, UserStatus, check_password};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SignUpRequest {
    client_id: String,
    secret_hash: Option<String>,
    username: String,
    password: String,
    #[serde(default)]
    user_attributes: Vec<UserAttribute>,
    #[serde(default)]
    client_metadata: HashMap<String, String>,
}

pub(super) async fn sign_up(context: &PoolContext, request: SignUpRequest) -> Answer {
    let (client, pool) = context.client(&request.client_id)?;
    client.check_secret_hash(request.secret_hash.as_deref(), &request.username)?;
    if pool.admin_create_user_config.allow_admin_create_user_only {
        return Err(ApiError::not_authorized(
            "SignUp is not permitted for this user pool",
        ));
    }
    attributes::check_client(&pool, &client, &request.user_attributes)?;
    check_password(&request.password)?;
    let (name, attributes) = (&request.username, request.user_attributes);
    let mut user = new_user_with(context, &pool, name, attributes)?;
    if let Some(proof) = request.client_metadata.get(SOCIAL_PROOF) {
        custom_auth::confirm_proven(context, &client, &mut user, proof)?;
    }
    user.password = Some(hash_password(&request.password.into()).await?);
    add_user(context, &request.username, &user).await?;
    let is_confirmed = user.status == UserStatus::Confirmed;
    Ok(json!({"UserConfirmed": is_confirmed, "UserSub": user.sub}))
}

/// Returns a new user. In a pool whose users sign in with their address, the real username is the
/// `sub`.
pub(crate) fn new_user(context: &PoolContext, pool: &UserPool, entered: &str) -> ApiResult<User> {
    let sub = Uuid::new_v4().to_string();
    let username = if pool.has_email_usernames() {
        if EmailAddress::parse(entered).is_none() {
            return Err(ApiError::invalid("Username should be an email."));
        }
        sub.clone()
    } else {
        entered.to_owned()
    };
    let now = context.clock.now().0;
    Ok(User {
        pool_id: pool.id.clone(),
        username,
        sub,
        status: UserStatus::Unconfirmed,
        is_enabled: true,
        attributes: BTreeMap::new(),
        groups: BTreeSet::new(),
        password: None,
        sign_outs: 0,
        created_at: now,
        updated_at: now,
    })
}

/// Returns a new user with validated attributes, whose name is free. If users sign in with their
/// address, `email` is the name that was entered.
pub(super) fn new_user_with(
    context: &PoolContext,
    pool: &UserPool,
    entered: &str,
    mut attributes: Vec<UserAttribute>,
) -> ApiResult<User> {
    let mut user = new_user(context, pool, entered)?;
    if pool.has_email_usernames() {
        attributes.retain(|attribute| attribute.name != "email");
        attributes.push(UserAttribute {
            name: "email".to_owned(),
            value: entered.to_owned(),
        });
    }
    attributes::apply(&mut user, &attributes);
    ensure_name_is_free(context, &pool.id, entered)?;
    Ok(user)
}

/// Fails if the name is taken.
fn ensure_name_is_free(context: &PoolContext, pool_id: &str, entered: &str) -> ApiResult {
    match context.find_user(pool_id, entered) {
        Ok(_) => Err(ApiError::new(
            "UsernameExistsException",
            "An account with the given email already exists.",
        )),
        Err(_) => Ok(()),
    }
}

/// Stores a new user, unless the name was taken in the meantime.
pub(super) async fn add_user(context: &PoolContext, entered: &str, user: &User) -> ApiResult {
    let add = |stored: &mut Option<User>| {
        ensure_name_is_free(context, &user.pool_id, entered)?;
        *stored = Some(user.clone());
        Ok(())
    };
    context.store.users.update(&user.id(), add).await
}
