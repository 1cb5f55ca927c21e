//! Forgotten and changed passwords.

use postern_common::Secret;
use serde::Deserialize;
use serde_json::{Value, json};

use super::codes::{Place, details};
use super::{Call, nothing};
use crate::delivery::CodePurpose;
use crate::fault::Fault;
use crate::hasher::Answer;
use crate::lockout::Lockout;
use crate::pool::Pool;
use crate::tokens;
use crate::user::{Status, User};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Forgot {
    client_id: String,
    secret_hash: Option<String>,
    username: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ConfirmForgot {
    client_id: String,
    secret_hash: Option<String>,
    username: String,
    confirmation_code: String,
    password: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Change {
    access_token: String,
    previous_password: String,
    proposed_password: String,
}

/// A code is made for every name, and sent only to a user that may reset its password: the answer,
/// and the work, do not tell which.
pub(super) async fn forgot(call: &Call<'_>, request: Forgot) -> Result<Value, Fault> {
    let server = call.server;
    let (client, pool) = server.client(&request.client_id)?;
    call.note_client(&client);
    client.check_secret_hash(request.secret_hash.as_deref(), &request.username)?;
    let found = server.typed_user(&pool, &request.username).await?;
    if let Some(user) = &found {
        call.note_user(user);
    } else if !client.settings.prevent_user_existence_errors {
        return Err(Fault::user_not_found());
    }
    let recoverable = found.as_ref().filter(|user| may_recover(&pool, user));
    if recoverable.is_none() && !client.settings.prevent_user_existence_errors {
        return Err(Fault::invalid(
            "Cannot reset password for the user as there is no registered/verified email or phone_number",
        ));
    }
    let place = Place::of_typed(
        &pool,
        found.as_ref(),
        &request.username,
        CodePurpose::ForgotPassword,
    );
    place.send(server, recoverable.is_some()).await?;
    // Where users sign in with their address, what was typed is the address: no look at the user is
    // needed.
    let shown = if pool.settings.email_usernames {
        None
    } else {
        found.as_ref().and_then(User::email)
    };
    Ok(json!({"CodeDeliveryDetails": details(shown.unwrap_or(&request.username))}))
}

fn may_recover(pool: &Pool, user: &User) -> bool {
    let reachable = user.email_verified() || pool.settings.recover_unverified;
    user.is_enabled()
        && reachable
        && matches!(user.status, Status::Confirmed | Status::ResetRequired)
}

/// Sets the new password. Cognito leaves sign-ins as they are; here they end, because a password is
/// reset most urgently when a stranger has it.
pub(super) async fn confirm_forgot(
    call: &Call<'_>,
    request: ConfirmForgot,
) -> Result<Value, Fault> {
    let server = call.server;
    let (client, pool) = server.client(&request.client_id)?;
    call.note_client(&client);
    client.check_secret_hash(request.secret_hash.as_deref(), &request.username)?;
    pool.settings.password_policy.check(&request.password)?;
    let found = server.typed_user(&pool, &request.username).await?;
    if found.is_none() && !client.settings.prevent_user_existence_errors {
        return Err(Fault::user_not_found());
    }
    let place = Place::of_typed(
        &pool,
        found.as_ref(),
        &request.username,
        CodePurpose::ForgotPassword,
    );
    place.check(server, &request.confirmation_code).await?;
    let hash = server.hasher.hash(&Secret::new(request.password)).await?;
    place.consume(server, &request.confirmation_code).await?;
    let mut user = found
        .filter(|user| may_recover(&pool, user))
        .ok_or_else(Fault::code_expired)?;
    call.note_user(&user);
    let now = server.clock.now();
    // Before, so that a stranger's sign-in never outlives the new password; and after, for one that
    // came between.
    server
        .store
        .revoke_user(&user.pool_id, &user.username, now)
        .await?;
    user.password = Some(hash);
    user.status = Status::Confirmed;
    user.temporary_until = None;
    server.store.set_password(&user, now).await?;
    user.attributes
        .0
        .insert("email_verified".into(), "true".into());
    server.store.set_attributes(&user, now).await?;
    server
        .store
        .revoke_user(&user.pool_id, &user.username, now)
        .await?;
    Lockout::of(&server.store, &user).forget().await?;
    Ok(nothing())
}

pub(super) async fn change(call: &Call<'_>, request: Change) -> Result<Value, Fault> {
    let server = call.server;
    let (token, pool_id) = tokens::verify(server, &request.access_token).await?;
    let pool = server.directory.pool(&pool_id)?;
    let mut user = server.known_user(&pool_id, &token.username).await?;
    call.note_user(&user);
    let lockout = Lockout::of(&server.store, &user);
    lockout.admit(server.clock.now()).await?;
    let previous = Secret::new(request.previous_password);
    let verified = server
        .hasher
        .verify(&previous, user.password.as_deref())
        .await?;
    if verified.answer == Answer::Wrong {
        lockout.failed(server.clock.now()).await?;
        return Err(Fault::wrong_password());
    }
    lockout.succeeded(server.clock.now()).await?;
    pool.settings
        .password_policy
        .check(&request.proposed_password)?;
    user.password = Some(
        server
            .hasher
            .hash(&Secret::new(request.proposed_password))
            .await?,
    );
    user.status = Status::Confirmed;
    user.temporary_until = None;
    server.store.set_password(&user, server.clock.now()).await?;
    Ok(nothing())
}
