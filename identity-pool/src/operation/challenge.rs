//! Challenges. The only one that this pool gives is NEW_PASSWORD_REQUIRED.

use std::collections::HashMap;
use std::time::Duration;

use postern_common::Secret;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Call, attributes, sign_in};
use crate::fault::Fault;
use crate::pool::{Client, Pool};
use crate::random;
use crate::server::Server;
use crate::store::{ChallengeRow, to_text};
use crate::user::{Attribute, Status, User};

const NEW_PASSWORD: &str = "NEW_PASSWORD_REQUIRED";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Respond {
    challenge_name: String,
    client_id: String,
    session: Option<String>,
    #[serde(default)]
    challenge_responses: HashMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct AdminRespond {
    user_pool_id: String,
    #[serde(flatten)]
    respond: Respond,
}

/// Asks for a new password in place of one that an administrator gave.
pub(super) async fn ask_new_password(
    server: &Server,
    client: &Client,
    user: &User,
) -> Result<Value, Fault> {
    let session = random::token()?;
    let wait = Duration::from_secs(client.settings.auth_session_minutes * 60);
    let row = ChallengeRow {
        hash: random::digest(&[&session]),
        pool_id: client.pool_id.clone(),
        client_id: client.id.clone(),
        username: user.username.clone(),
        expires_at: server.clock.now().plus(wait).0,
    };
    server.store.put_challenge(&row).await?;
    let shown = user
        .attributes
        .iter()
        .filter(|(name, _)| client.may_read(name));
    let shown: Map<String, Value> = shown
        .map(|(name, value)| (name.clone(), value.as_str().into()))
        .collect();
    Ok(json!({
        "ChallengeName": NEW_PASSWORD,
        "Session": session,
        "ChallengeParameters": {
            "USER_ID_FOR_SRP": user.username,
            "requiredAttributes": "[]",
            "userAttributes": to_text(&shown),
        },
    }))
}

pub(super) async fn admin_respond(call: &Call<'_>, request: AdminRespond) -> Result<Value, Fault> {
    call.server
        .directory
        .client_of(&request.user_pool_id, &request.respond.client_id)?;
    respond(call, request.respond).await
}

pub(super) async fn respond(call: &Call<'_>, request: Respond) -> Result<Value, Fault> {
    let (client, pool) = call.server.client(&request.client_id)?;
    call.note_client(&client);
    if request.challenge_name != NEW_PASSWORD {
        return Err(Fault::invalid(format!(
            "{} is not a challenge of this pool",
            request.challenge_name
        )));
    }
    let (hash, mut user) = open_session(call, &client, request.session.as_deref()).await?;
    call.note_user(&user);
    let answers = &request.challenge_responses;
    let name = sign_in::parameter(answers, "USERNAME")?;
    client.check_secret_hash(
        answers.get("SECRET_HASH").map(String::as_str),
        &user.username,
    )?;
    if name != user.username {
        return Err(Fault::not_authorized("Invalid session for the user."));
    }
    let password = Secret::from(sign_in::parameter(answers, "NEW_PASSWORD")?);
    pool.settings.password_policy.check(password.expose())?;
    let written = written_attributes(&pool, &client, answers)?;
    let password = call.server.hasher.hash(&password).await?;
    if !call.server.store.take_challenge(&hash).await? {
        return Err(Fault::not_authorized(
            "Invalid session for the user, session can only be used once.",
        ));
    }
    let now = call.server.clock.now();
    user.password = Some(password);
    user.status = Status::Confirmed;
    user.temporary_until = None;
    call.server.store.set_password(&user, now).await?;
    user.password_version += 1;
    if !written.is_empty() {
        attributes::apply(&pool, &mut user, &written);
        call.server.store.set_attributes(&user, now).await?;
    }
    let result = sign_in::begin(call.server, &client, &user, None).await?;
    Ok(json!({"AuthenticationResult": result, "ChallengeParameters": {}}))
}

/// The unanswered challenge of a session, and its user.
async fn open_session(
    call: &Call<'_>,
    client: &Client,
    session: Option<&str>,
) -> Result<(String, User), Fault> {
    let session = session.ok_or_else(|| Fault::missing("session"))?;
    let invalid = || Fault::not_authorized("Invalid session for the user.");
    let found = call
        .server
        .store
        .challenge(&random::digest(&[session]))
        .await?;
    let row = found
        .filter(|row| row.client_id == client.id)
        .ok_or_else(invalid)?;
    if row.expires_at <= call.server.clock.now().0 {
        return Err(Fault::not_authorized(
            "Invalid session for the user, session is expired.",
        ));
    }
    let user = call
        .server
        .store
        .user(&row.pool_id, &row.username)
        .await?
        .ok_or_else(invalid)?;
    if !user.is_enabled() {
        return Err(Fault::user_disabled());
    }
    if user.status != Status::ForceChangePassword {
        return Err(invalid());
    }
    Ok((row.hash, user))
}

/// Answers named `userAttributes.{name}`.
fn written_attributes(
    pool: &Pool,
    client: &Client,
    answers: &HashMap<String, String>,
) -> Result<Vec<Attribute>, Fault> {
    let written: Vec<Attribute> = answers
        .iter()
        .filter_map(|(key, value)| {
            let name = key.strip_prefix("userAttributes.")?.to_owned();
            Some(Attribute {
                name,
                value: value.clone(),
            })
        })
        .collect();
    attributes::check_client(pool, client, &written)?;
    Ok(written)
}
