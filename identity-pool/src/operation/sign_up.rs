//! SignUp, ConfirmSignUp and ResendConfirmationCode.

use std::collections::BTreeMap;

use postern_common::database;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::codes::{Place, details};
use super::{Call, attributes, nothing};
use crate::delivery::CodePurpose;
use crate::fault::{Fault, Kind};
use crate::pool::Pool;
use crate::server::Server;
use crate::store::Stored;
use crate::user::{Attribute, Status, User, is_email};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SignUp {
    client_id: String,
    secret_hash: Option<String>,
    username: String,
    password: String,
    #[serde(default)]
    user_attributes: Vec<Attribute>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Confirm {
    client_id: String,
    secret_hash: Option<String>,
    username: String,
    confirmation_code: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Resend {
    client_id: String,
    secret_hash: Option<String>,
    username: String,
}

pub(super) async fn sign_up(call: &Call<'_>, request: SignUp) -> Result<Value, Fault> {
    let server = call.server;
    let (client, pool) = server.client(&request.client_id)?;
    call.note_client(&client);
    client.check_secret_hash(request.secret_hash.as_deref(), &request.username)?;
    if pool.settings.admin_create_only {
        return Err(Fault::not_authorized(
            "SignUp is not permitted for this user pool",
        ));
    }
    attributes::check_client(&pool, &client, &request.user_attributes)?;
    pool.settings.password_policy.check(&request.password)?;
    let mut user = new_user(server, &pool, &request.username)?;
    attributes::apply(
        &pool,
        &mut user,
        &address_first(&pool, &request.username, request.user_attributes),
    );
    refuse_taken(server, &pool, &request.username).await?;
    user.password = Some(server.hasher.hash(&request.password.into()).await?);
    user.status = if pool.settings.auto_confirm {
        Status::Confirmed
    } else {
        Status::Unconfirmed
    };
    add(server, &user).await?;
    call.note_user(&user);
    let confirmed = user.status == Status::Confirmed;
    let mut answer = json!({"UserConfirmed": confirmed, "UserSub": user.sub});
    if let Some(email) = user
        .email()
        .filter(|_| pool.settings.verify_email && !confirmed)
    {
        Place::of(&user, CodePurpose::SignUp)
            .send(server, true)
            .await?;
        answer["CodeDeliveryDetails"] = details(email);
    }
    Ok(answer)
}

/// A user as it begins: where users sign in with their address, the real username is the `sub`.
pub(crate) fn new_user(server: &Server, pool: &Pool, typed: &str) -> Result<User, Fault> {
    let sub = Uuid::new_v4().to_string();
    let username = if pool.settings.email_usernames {
        if !is_email(typed) {
            return Err(Fault::invalid("Username should be an email."));
        }
        sub.clone()
    } else {
        let plain =
            !typed.is_empty() && typed.len() <= 128 && !typed.chars().any(char::is_whitespace);
        if !plain {
            return Err(Fault::invalid(
                "Username must have 1 to 128 characters and no spaces",
            ));
        }
        typed.to_owned()
    };
    let now = server.clock.now().0;
    Ok(User {
        pool_id: pool.id.clone(),
        username,
        sub,
        alias: None,
        status: Status::Unconfirmed,
        enabled: 1,
        attributes: Stored(BTreeMap::new()),
        password: None,
        password_version: 0,
        temporary_until: None,
        created_at: now,
        updated_at: now,
    })
}

/// The request's attributes, with the address that was typed as the username.
pub(super) fn address_first(
    pool: &Pool,
    typed: &str,
    attributes: Vec<Attribute>,
) -> Vec<Attribute> {
    if !pool.settings.email_usernames {
        return attributes;
    }
    let mut all = vec![Attribute {
        name: "email".into(),
        value: typed.to_owned(),
    }];
    all.extend(
        attributes
            .into_iter()
            .filter(|attribute| attribute.name != "email"),
    );
    all
}

/// Refuses a name before its password is hashed; the unique index decides when two come at once.
pub(super) async fn refuse_taken(server: &Server, pool: &Pool, typed: &str) -> Result<(), Fault> {
    match server.store.user(&pool.id, typed).await? {
        Some(_) => Err(taken()),
        None => Ok(()),
    }
}

fn taken() -> Fault {
    Fault::new(
        Kind::UsernameExists,
        "An account with the given email already exists.",
    )
}

pub(super) async fn add(server: &Server, user: &User) -> Result<(), Fault> {
    match server.store.add_user(user).await {
        Err(error) if database::is_unique_violation(&error) => Err(taken()),
        outcome => Ok(outcome?),
    }
}

pub(super) async fn confirm(call: &Call<'_>, request: Confirm) -> Result<Value, Fault> {
    let server = call.server;
    let (client, pool) = server.client(&request.client_id)?;
    call.note_client(&client);
    client.check_secret_hash(request.secret_hash.as_deref(), &request.username)?;
    let found = server.typed_user(&pool, &request.username).await?;
    let Some(mut user) = found else {
        return Err(if client.settings.prevent_user_existence_errors {
            Fault::code_expired()
        } else {
            Fault::user_not_found()
        });
    };
    call.note_user(&user);
    if user.status != Status::Unconfirmed {
        return Err(Fault::not_authorized(format!(
            "User cannot be confirmed. Current status is {}",
            user.status.name()
        )));
    }
    let place = Place::of(&user, CodePurpose::SignUp);
    place.check(server, &request.confirmation_code).await?;
    place.consume(server, &request.confirmation_code).await?;
    let now = server.clock.now();
    user.status = Status::Confirmed;
    server.store.set_password(&user, now).await?;
    user.attributes
        .0
        .insert("email_verified".into(), "true".into());
    server.store.set_attributes(&user, now).await?;
    Ok(nothing())
}

pub(super) async fn resend(call: &Call<'_>, request: Resend) -> Result<Value, Fault> {
    let server = call.server;
    let (client, pool) = server.client(&request.client_id)?;
    call.note_client(&client);
    client.check_secret_hash(request.secret_hash.as_deref(), &request.username)?;
    let found = server.typed_user(&pool, &request.username).await?;
    if found.is_none() && !client.settings.prevent_user_existence_errors {
        return Err(Fault::user_not_found());
    }
    if found
        .as_ref()
        .is_some_and(|user| user.status != Status::Unconfirmed)
    {
        return Err(Fault::invalid("User is already confirmed."));
    }
    let place = Place::of_typed(
        &pool,
        found.as_ref(),
        &request.username,
        CodePurpose::SignUp,
    );
    place.send(server, found.is_some()).await?;
    let to = found.as_ref().and_then(User::email);
    Ok(json!({"CodeDeliveryDetails": details(to.unwrap_or(&request.username))}))
}
