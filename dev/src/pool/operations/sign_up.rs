//! SignUp, ConfirmSignUp and ResendConfirmationCode.

use std::collections::BTreeMap;

use postern_common::database;
use postern_common::email::EmailAddress;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::codes::{CodeBinding, delivery_details};
use super::{OperationCall, attributes, empty_response};
use crate::pool::code_delivery::CodePurpose;
use crate::pool::context::PoolContext;
use crate::pool::error::{ApiError, ExceptionKind};
use crate::pool::model::{JsonColumn, User, UserAttribute, UserPool, UserStatus};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SignUpRequest {
    client_id: String,
    secret_hash: Option<String>,
    username: String,
    password: String,
    #[serde(default)]
    user_attributes: Vec<UserAttribute>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ConfirmSignUpRequest {
    client_id: String,
    secret_hash: Option<String>,
    username: String,
    confirmation_code: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ResendCodeRequest {
    client_id: String,
    secret_hash: Option<String>,
    username: String,
}

pub(super) async fn sign_up(
    call: &OperationCall<'_>,
    request: SignUpRequest,
) -> Result<Value, ApiError> {
    let context = call.context;
    let (client, pool) = context.client(&request.client_id)?;
    call.record_client(&client);
    client.check_secret_hash(request.secret_hash.as_deref(), &request.username)?;
    if pool.settings.admin_create_only {
        return Err(ApiError::not_authorized(
            "SignUp is not permitted for this user pool",
        ));
    }
    attributes::check_client(&pool, &client, &request.user_attributes)?;
    pool.settings.password_policy.check(&request.password)?;
    let mut user = new_user(context, &pool, &request.username)?;
    attributes::apply(
        &pool,
        &mut user,
        &with_email_attribute(&pool, &request.username, request.user_attributes),
    );
    ensure_name_is_free(context, &pool, &request.username).await?;
    user.password = Some(context.hasher.hash(&request.password.into()).await?);
    insert_user(context, &user).await?;
    call.record_user(&user);
    let mut response = json!({"UserConfirmed": false, "UserSub": user.sub});
    if let Some(email) = user.email().filter(|_| pool.settings.verify_email) {
        CodeBinding::for_user(&user, CodePurpose::SignUp)
            .issue(context, true)
            .await?;
        response["CodeDeliveryDetails"] = delivery_details(email);
    }
    Ok(response)
}

/// Returns a new user. In a pool whose users sign in with their address, the real username is the
/// `sub`.
pub(crate) fn new_user(
    context: &PoolContext,
    pool: &UserPool,
    entered: &str,
) -> Result<User, ApiError> {
    let sub = Uuid::new_v4().to_string();
    let username = if pool.settings.email_usernames {
        if EmailAddress::parse(entered).is_none() {
            return Err(ApiError::invalid("Username should be an email."));
        }
        sub.clone()
    } else {
        let is_valid = !entered.is_empty()
            && entered.len() <= 128
            && !entered.chars().any(char::is_whitespace);
        if !is_valid {
            return Err(ApiError::invalid(
                "Username must have 1 to 128 characters and no spaces",
            ));
        }
        entered.to_owned()
    };
    let now = context.clock.now().0;
    Ok(User {
        pool_id: pool.id.clone(),
        username,
        sub,
        alias: None,
        status: UserStatus::Unconfirmed,
        enabled: 1,
        attributes: JsonColumn(BTreeMap::new()),
        password: None,
        password_version: 0,
        temporary_until: None,
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

/// Fails if the name is taken, before its password is hashed. For concurrent requests, the unique
/// index decides.
pub(super) async fn ensure_name_is_free(
    context: &PoolContext,
    pool: &UserPool,
    entered: &str,
) -> Result<(), ApiError> {
    match context.store.user(&pool.id, entered).await? {
        Some(_) => Err(name_taken_error()),
        None => Ok(()),
    }
}

fn name_taken_error() -> ApiError {
    ApiError::new(
        ExceptionKind::UsernameExists,
        "An account with the given email already exists.",
    )
}

pub(super) async fn insert_user(context: &PoolContext, user: &User) -> Result<(), ApiError> {
    match context.store.add_user(user).await {
        Err(error) if database::is_unique_violation(&error) => Err(name_taken_error()),
        outcome => Ok(outcome?),
    }
}

pub(super) async fn confirm(
    call: &OperationCall<'_>,
    request: ConfirmSignUpRequest,
) -> Result<Value, ApiError> {
    let context = call.context;
    let (client, pool) = context.client(&request.client_id)?;
    call.record_client(&client);
    client.check_secret_hash(request.secret_hash.as_deref(), &request.username)?;
    let found = context.find_entered_user(&pool, &request.username).await?;
    let Some(mut user) = found else {
        return Err(if client.settings.prevent_user_existence_errors {
            ApiError::code_expired()
        } else {
            ApiError::user_not_found()
        });
    };
    call.record_user(&user);
    if user.status != UserStatus::Unconfirmed {
        return Err(ApiError::not_authorized(format!(
            "User cannot be confirmed. Current status is {}",
            user.status.name()
        )));
    }
    let binding = CodeBinding::for_user(&user, CodePurpose::SignUp);
    binding.check(context, &request.confirmation_code).await?;
    binding.consume(context, &request.confirmation_code).await?;
    let now = context.clock.now();
    user.status = UserStatus::Confirmed;
    context.store.set_password(&user, now).await?;
    user.attributes
        .0
        .insert("email_verified".into(), "true".into());
    context.store.set_attributes(&user, now).await?;
    Ok(empty_response())
}

pub(super) async fn resend(
    call: &OperationCall<'_>,
    request: ResendCodeRequest,
) -> Result<Value, ApiError> {
    let context = call.context;
    let (client, pool) = context.client(&request.client_id)?;
    call.record_client(&client);
    client.check_secret_hash(request.secret_hash.as_deref(), &request.username)?;
    let found = context.find_entered_user(&pool, &request.username).await?;
    if found.is_none() && !client.settings.prevent_user_existence_errors {
        return Err(ApiError::user_not_found());
    }
    if found
        .as_ref()
        .is_some_and(|user| user.status != UserStatus::Unconfirmed)
    {
        return Err(ApiError::invalid("User is already confirmed."));
    }
    let binding = CodeBinding::for_entered_name(
        &pool,
        found.as_ref(),
        &request.username,
        CodePurpose::SignUp,
    );
    binding.issue(context, found.is_some()).await?;
    let to = found.as_ref().and_then(User::email);
    Ok(json!({"CodeDeliveryDetails": delivery_details(to.unwrap_or(&request.username))}))
}
