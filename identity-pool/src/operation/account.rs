//! What a signed-in user does with its own account, by access token.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::codes::{Place, details};
use super::{Call, attributes, nothing};
use crate::delivery::CodePurpose;
use crate::fault::{Fault, Kind};
use crate::pool::{Client, Pool};
use crate::tokens;
use crate::user::{Attribute, User};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ByToken {
    access_token: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Update {
    access_token: String,
    user_attributes: Vec<Attribute>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct DeleteAttributes {
    access_token: String,
    user_attribute_names: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SendVerification {
    access_token: String,
    attribute_name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Verify {
    access_token: String,
    attribute_name: String,
    code: String,
}

/// Who an access token speaks for.
struct Owner {
    user: User,
    pool: Arc<Pool>,
    client: Arc<Client>,
}

async fn owner(call: &Call<'_>, access_token: &str) -> Result<Owner, Fault> {
    let (token, pool_id) = tokens::verify(call.server, access_token).await?;
    let pool = call.server.directory.pool(&pool_id)?;
    let client = call
        .server
        .directory
        .client_of(&pool_id, &token.client_id)?;
    call.note_client(&client);
    let user = call.server.known_user(&pool_id, &token.username).await?;
    call.note_user(&user);
    if !user.is_enabled() {
        return Err(Fault::user_disabled());
    }
    Ok(Owner { user, pool, client })
}

pub(super) async fn get(call: &Call<'_>, request: ByToken) -> Result<Value, Fault> {
    let Owner { user, client, .. } = owner(call, &request.access_token).await?;
    Ok(json!({
        "Username": user.username,
        "UserAttributes": user.attribute_list(|name| client.may_read(name)),
    }))
}

pub(super) async fn delete(call: &Call<'_>, request: ByToken) -> Result<Value, Fault> {
    let Owner { user, .. } = owner(call, &request.access_token).await?;
    call.server.store.delete_user(&user).await?;
    Ok(nothing())
}

pub(super) async fn sign_out(call: &Call<'_>, request: ByToken) -> Result<Value, Fault> {
    let Owner { user, .. } = owner(call, &request.access_token).await?;
    call.server
        .store
        .revoke_user(&user.pool_id, &user.username, call.server.clock.now())
        .await?;
    Ok(nothing())
}

pub(super) async fn update_attributes(call: &Call<'_>, request: Update) -> Result<Value, Fault> {
    let Owner {
        mut user,
        pool,
        client,
    } = owner(call, &request.access_token).await?;
    attributes::check_client(&pool, &client, &request.user_attributes)?;
    let before = user.email().map(str::to_owned);
    attributes::apply(&pool, &mut user, &request.user_attributes);
    save(call, &user).await?;
    let changed = user
        .email()
        .filter(|email| Some(*email) != before.as_deref());
    let mut sent = Vec::new();
    if let Some(email) = changed.filter(|_| pool.settings.verify_email) {
        Place::of(&user, CodePurpose::VerifyEmail)
            .send(call.server, true)
            .await?;
        sent.push(details(email));
    }
    Ok(json!({"CodeDeliveryDetailsList": sent}))
}

pub(super) async fn delete_attributes(
    call: &Call<'_>,
    request: DeleteAttributes,
) -> Result<Value, Fault> {
    let Owner {
        mut user,
        pool,
        client,
    } = owner(call, &request.access_token).await?;
    if !request
        .user_attribute_names
        .iter()
        .all(|name| client.may_write(name))
    {
        return Err(Fault::not_authorized(
            "A client attempted to write unauthorized attribute",
        ));
    }
    attributes::remove(&pool, &mut user, &request.user_attribute_names)?;
    save(call, &user).await?;
    Ok(nothing())
}

/// Writes the user's attributes; an address that another user signs in with is refused.
pub(super) async fn save(call: &Call<'_>, user: &User) -> Result<(), Fault> {
    match call
        .server
        .store
        .set_attributes(user, call.server.clock.now())
        .await
    {
        Err(error) if postern_common::database::is_unique_violation(&error) => Err(Fault::new(
            Kind::AliasExists,
            "An account with the given email already exists.",
        )),
        outcome => Ok(outcome?),
    }
}

pub(super) async fn send_verification(
    call: &Call<'_>,
    request: SendVerification,
) -> Result<Value, Fault> {
    let Owner { user, .. } = owner(call, &request.access_token).await?;
    let email = user.email().filter(|_| request.attribute_name == "email");
    let email = email.ok_or_else(|| Fault::invalid("The user has no such attribute to verify"))?;
    Place::of(&user, CodePurpose::VerifyEmail)
        .send(call.server, true)
        .await?;
    Ok(json!({"CodeDeliveryDetails": details(email)}))
}

pub(super) async fn verify_attribute(call: &Call<'_>, request: Verify) -> Result<Value, Fault> {
    let Owner { mut user, .. } = owner(call, &request.access_token).await?;
    if request.attribute_name != "email" {
        return Err(Fault::invalid("The user has no such attribute to verify"));
    }
    let place = Place::of(&user, CodePurpose::VerifyEmail);
    place.check(call.server, &request.code).await?;
    place.consume(call.server, &request.code).await?;
    user.attributes
        .0
        .insert("email_verified".into(), "true".into());
    save(call, &user).await?;
    Ok(nothing())
}
