//! InitiateAuth and AdminInitiateAuth.

use std::collections::HashMap;

use postern_common::Secret;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Call, challenge, refresh};
use crate::fault::{Fault, Kind};
use crate::hasher::Answer;
use crate::lockout::Lockout;
use crate::pool::{Client, Pool};
use crate::random;
use crate::server::Server;
use crate::store::{Family, SessionWrite};
use crate::tokens::{self, SignIn};
use crate::user::{Status, User};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Initiate {
    auth_flow: String,
    client_id: String,
    #[serde(default)]
    auth_parameters: HashMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct AdminInitiate {
    user_pool_id: String,
    auth_flow: String,
    client_id: String,
    #[serde(default)]
    auth_parameters: HashMap<String, String>,
}

pub(super) async fn initiate(call: &Call<'_>, request: Initiate) -> Result<Value, Fault> {
    let (client, pool) = call.server.client(&request.client_id)?;
    call.note_client(&client);
    let parameters = &request.auth_parameters;
    match request.auth_flow.as_str() {
        "USER_PASSWORD_AUTH" => with_password(call, (&client, &pool), "USER_PASSWORD_AUTH", parameters).await,
        "REFRESH_TOKEN_AUTH" | "REFRESH_TOKEN" => refresh::without_rotation(call, &client, parameters).await,
        "USER_SRP_AUTH" | "CUSTOM_AUTH" | "USER_AUTH" | "ADMIN_USER_PASSWORD_AUTH" | "ADMIN_NO_SRP_AUTH" => {
            Err(Fault::invalid(format!("{} flow not enabled for this client", request.auth_flow)))
        }
        other => Err(Fault::invalid(format!("{other} is not a flow of InitiateAuth"))),
    }
}

pub(super) async fn admin_initiate(call: &Call<'_>, request: AdminInitiate) -> Result<Value, Fault> {
    let pool = call.server.directory.pool(&request.user_pool_id)?;
    let client = call.server.directory.client_of(&pool.id, &request.client_id)?;
    call.note_client(&client);
    let parameters = &request.auth_parameters;
    match request.auth_flow.as_str() {
        "ADMIN_USER_PASSWORD_AUTH" | "ADMIN_NO_SRP_AUTH" => {
            with_password(call, (&client, &pool), "ADMIN_USER_PASSWORD_AUTH", parameters).await
        }
        "REFRESH_TOKEN_AUTH" | "REFRESH_TOKEN" => refresh::without_rotation(call, &client, parameters).await,
        "USER_SRP_AUTH" | "CUSTOM_AUTH" | "USER_AUTH" | "USER_PASSWORD_AUTH" => {
            Err(Fault::invalid(format!("{} flow not enabled for this client", request.auth_flow)))
        }
        other => Err(Fault::invalid(format!("{other} is not a flow of AdminInitiateAuth"))),
    }
}

pub(super) fn parameter<'a>(parameters: &'a HashMap<String, String>, name: &str) -> Result<&'a str, Fault> {
    let value = parameters.get(name).map(String::as_str).filter(|value| !value.is_empty());
    value.ok_or_else(|| Fault::invalid(format!("Missing required parameter {name}")))
}

async fn with_password(
    call: &Call<'_>,
    (client, pool): (&Client, &Pool),
    flow: &str,
    parameters: &HashMap<String, String>,
) -> Result<Value, Fault> {
    client.require_flow(flow)?;
    let typed = parameter(parameters, "USERNAME")?;
    let password = Secret::from(parameter(parameters, "PASSWORD")?);
    // At sign-in the hash is over what was typed; everywhere else over the real username.
    client.check_secret_hash(parameters.get("SECRET_HASH").map(String::as_str), typed)?;
    let found = call.server.typed_user(pool, typed).await?;
    if let Some(user) = &found {
        call.note_user(user);
    }
    let user = prove_password(call.server, (client, pool), typed, found, &password).await?;
    admit(call, client, &user).await
}

/// Compares the password under the lockout. Known and unknown names do the same work.
async fn prove_password(
    server: &Server,
    (client, pool): (&Client, &Pool),
    typed: &str,
    found: Option<User>,
    password: &Secret,
) -> Result<User, Fault> {
    let name = found.as_ref().map_or(typed, |user| user.username.as_str());
    let lockout = Lockout::of(&server.store, &pool.id, name);
    lockout.admit(server.clock.now()).await?;
    let kept = found.as_ref().and_then(|user| user.password.as_deref());
    let verified = server.hasher.verify(password, kept).await?;
    match (verified.answer, found) {
        (Answer::Right, Some(user)) => {
            lockout.succeeded(server.clock.now()).await?;
            if let Some(hash) = verified.rehashed {
                server.store.rehash(&user, &hash).await?;
            }
            Ok(user)
        }
        (Answer::Right | Answer::Wrong, found) => {
            lockout.failed(server.clock.now()).await?;
            if found.is_none() && !client.settings.prevent_user_existence_errors {
                return Err(Fault::user_not_found());
            }
            Err(Fault::wrong_password())
        }
    }
}

/// What a user who knows the password gets: tokens, a challenge, or the reason why neither.
async fn admit(call: &Call<'_>, client: &Client, user: &User) -> Result<Value, Fault> {
    if !user.is_enabled() {
        return Err(Fault::user_disabled());
    }
    match user.status {
        Status::Unconfirmed => Err(Fault::new(Kind::UserNotConfirmed, "User is not confirmed.")),
        Status::ResetRequired => {
            Err(Fault::new(Kind::PasswordResetRequired, "Password reset required for the user"))
        }
        Status::ForceChangePassword => {
            if user.temporary_until.is_some_and(|until| until < call.server.clock.now().0) {
                return Err(Fault::not_authorized(
                    "Temporary password has expired and must be reset by an administrator.",
                ));
            }
            challenge::ask_new_password(call.server, client, user).await
        }
        Status::Confirmed => {
            let result = begin(call.server, client, user).await?;
            Ok(json!({"AuthenticationResult": result, "ChallengeParameters": {}}))
        }
    }
}

/// Begins a sign-in: a family with its first refresh token, an access and an ID token.
pub(super) async fn begin(server: &Server, client: &Client, user: &User) -> Result<Value, Fault> {
    let now = server.clock.now();
    let token = random::token()?;
    let family = Family {
        family: Uuid::new_v4().to_string(),
        client_id: client.id.clone(),
        auth_time: now.unix_seconds(),
        expires_at: now.plus(client.refresh_lifetime()).0,
        revoked_at: None,
    };
    let write = SessionWrite::Begin {
        pool_id: user.pool_id.clone(),
        username: user.username.clone(),
        family: family.clone(),
        hash: random::digest(&[&token]),
    };
    server.store.write_session(write).await?;
    let groups = still_the_same(server, user, &family).await?;
    let (family, auth_time) = (family.family.as_str(), family.auth_time);
    let sign_in = SignIn { client, user, groups: &groups, family, auth_time };
    let mut result = tokens::issue(server, &sign_in).await?;
    result["RefreshToken"] = token.into();
    Ok(result)
}

/// The groups of the user. Refuses when the password was reset, or the user disabled, since it was compared: whoever did that
/// ended the sign-ins that it saw, and this one came after.
async fn still_the_same(server: &Server, user: &User, family: &Family) -> Result<Vec<String>, Fault> {
    match server.store.standing(user).await? {
        Some(now) if now.enabled != 0 && now.password_version == user.password_version => Ok(now.groups),
        Some(_) | None => {
            server.store.revoke_family(&family.family, server.clock.now()).await?;
            Err(Fault::wrong_password())
        }
    }
}
