//! Operations of a signed-in user on its own account, authorized by an access token.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::codes::{CodeBinding, delivery_details};
use super::{OperationCall, attributes, empty_response};
use crate::code_delivery::CodePurpose;
use crate::error::{ApiError, ExceptionKind};
use crate::model::{AppClient, User, UserAttribute, UserPool};
use crate::tokens;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct AccessTokenRequest {
    access_token: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct UpdateAttributesRequest {
    access_token: String,
    user_attributes: Vec<UserAttribute>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct DeleteAttributesRequest {
    access_token: String,
    user_attribute_names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SendVerificationRequest {
    access_token: String,
    attribute_name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct VerifyAttributeRequest {
    access_token: String,
    attribute_name: String,
    code: String,
}

/// The user, pool, and client of an access token.
struct TokenOwner {
    user: User,
    pool: Arc<UserPool>,
    client: Arc<AppClient>,
}

async fn token_owner(call: &OperationCall<'_>, access_token: &str) -> Result<TokenOwner, ApiError> {
    let (token, pool_id) = tokens::verify(call.context, access_token).await?;
    let pool = call.context.directory.pool(&pool_id)?;
    let client = call
        .context
        .directory
        .client_of(&pool_id, &token.client_id)?;
    call.record_client(&client);
    let user = call.context.find_user(&pool_id, &token.username).await?;
    call.record_user(&user);
    if !user.is_enabled() {
        return Err(ApiError::user_disabled());
    }
    Ok(TokenOwner { user, pool, client })
}

pub(super) async fn get(
    call: &OperationCall<'_>,
    request: AccessTokenRequest,
) -> Result<Value, ApiError> {
    let TokenOwner { user, client, .. } = token_owner(call, &request.access_token).await?;
    Ok(json!({
        "Username": user.username,
        "UserAttributes": user.attribute_list(|name| client.may_read(name)),
    }))
}

pub(super) async fn delete(
    call: &OperationCall<'_>,
    request: AccessTokenRequest,
) -> Result<Value, ApiError> {
    let TokenOwner { user, .. } = token_owner(call, &request.access_token).await?;
    call.context.store.delete_user(&user).await?;
    Ok(empty_response())
}

pub(super) async fn sign_out(
    call: &OperationCall<'_>,
    request: AccessTokenRequest,
) -> Result<Value, ApiError> {
    let TokenOwner { user, .. } = token_owner(call, &request.access_token).await?;
    call.context
        .store
        .revoke_user(&user.pool_id, &user.username, call.context.clock.now())
        .await?;
    Ok(empty_response())
}

pub(super) async fn update_attributes(
    call: &OperationCall<'_>,
    request: UpdateAttributesRequest,
) -> Result<Value, ApiError> {
    let TokenOwner {
        mut user,
        pool,
        client,
    } = token_owner(call, &request.access_token).await?;
    attributes::check_client(&pool, &client, &request.user_attributes)?;
    let before = user.email().map(str::to_owned);
    attributes::apply(&pool, &mut user, &request.user_attributes);
    save_attributes(call, &user).await?;
    let changed = user
        .email()
        .filter(|email| Some(*email) != before.as_deref());
    let mut sent = Vec::new();
    if let Some(email) = changed.filter(|_| pool.settings.verify_email) {
        CodeBinding::for_user(&user, CodePurpose::VerifyEmail)
            .issue(call.context, true)
            .await?;
        sent.push(delivery_details(email));
    }
    Ok(json!({"CodeDeliveryDetailsList": sent}))
}

pub(super) async fn delete_attributes(
    call: &OperationCall<'_>,
    request: DeleteAttributesRequest,
) -> Result<Value, ApiError> {
    let TokenOwner {
        mut user,
        pool,
        client,
    } = token_owner(call, &request.access_token).await?;
    if !request
        .user_attribute_names
        .iter()
        .all(|name| client.may_write(name))
    {
        return Err(ApiError::not_authorized(
            "A client attempted to write unauthorized attribute",
        ));
    }
    attributes::remove(&pool, &mut user, &request.user_attribute_names)?;
    save_attributes(call, &user).await?;
    Ok(empty_response())
}

/// Stores the user's attributes. Fails if another user signs in with the address.
pub(super) async fn save_attributes(call: &OperationCall<'_>, user: &User) -> Result<(), ApiError> {
    match call
        .context
        .store
        .set_attributes(user, call.context.clock.now())
        .await
    {
        Err(error) if postern_common::database::is_unique_violation(&error) => Err(ApiError::new(
            ExceptionKind::AliasExists,
            "An account with the given email already exists.",
        )),
        outcome => Ok(outcome?),
    }
}

pub(super) async fn send_verification(
    call: &OperationCall<'_>,
    request: SendVerificationRequest,
) -> Result<Value, ApiError> {
    let TokenOwner { user, .. } = token_owner(call, &request.access_token).await?;
    let email = user.email().filter(|_| request.attribute_name == "email");
    let email =
        email.ok_or_else(|| ApiError::invalid("The user has no such attribute to verify"))?;
    CodeBinding::for_user(&user, CodePurpose::VerifyEmail)
        .issue(call.context, true)
        .await?;
    Ok(json!({"CodeDeliveryDetails": delivery_details(email)}))
}

pub(super) async fn verify_attribute(
    call: &OperationCall<'_>,
    request: VerifyAttributeRequest,
) -> Result<Value, ApiError> {
    let TokenOwner { mut user, .. } = token_owner(call, &request.access_token).await?;
    if request.attribute_name != "email" {
        return Err(ApiError::invalid(
            "The user has no such attribute to verify",
        ));
    }
    let binding = CodeBinding::for_user(&user, CodePurpose::VerifyEmail);
    binding.check(call.context, &request.code).await?;
    binding.consume(call.context, &request.code).await?;
    user.attributes
        .0
        .insert("email_verified".into(), "true".into());
    save_attributes(call, &user).await?;
    Ok(empty_response())
}
