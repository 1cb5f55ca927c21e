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
use crate::pool::error::{ApiError, ApiResult, ExceptionKind};
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
    if pool.settings.admin_create_only {
        return Err(ApiError::not_authorized(
            "SignUp is not permitted for this user pool",
        ));
    }
    attributes::check_client(&pool, &client, &request.user_attributes)?;
    check_password(&request.password)?;
    let mut user = new_user(context, &pool, &request.username)?;
    attributes::apply(
        &pool,
        &mut user,
        &with_email_attribute(&pool, &request.username, request.user_attributes),
    );
    ensure_name_is_free(context, &pool.id, &request.username)?;
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
    let username = if pool.settings.email_usernames {
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
        alias: None,
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

/// Returns the attributes of the request. If users sign in with their address, `email` is the name
/// that was entered.
pub(super) fn with_email_attribute(
    pool: &UserPool,
    entered: &str,
    attributes: Vec<UserAttribute>,
) -> Vec<UserAttribute> {
    if !pool.settings.email_usernames {
        return attributes;
    }
    let mut all = vec![UserAttribute {
        name: "email".into(),
        value: entered.to_owned(),
    }];
    all.extend(
        attributes
            .into_iter()
            .filter(|attribute| attribute.name != "email"),
    );
    all
}

/// Fails if the name is taken.
pub(super) fn ensure_name_is_free(
    context: &PoolContext,
    pool_id: &str,
    entered: &str,
) -> ApiResult {
    match context.find_user(pool_id, entered) {
        Ok(_) => Err(ApiError::new(
            ExceptionKind::UsernameExists,
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

pub(super) fn ensure_unconfirmed(user: &User) -> ApiResult {
    if user.status == UserStatus::Unconfirmed {
        return Ok(());
    }
    Err(ApiError::not_authorized(format!(
        "User cannot be confirmed. Current status is {}",
        user.status.name()
    )))
}
