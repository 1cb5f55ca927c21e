//! InitiateAuth and AdminInitiateAuth.

use std::collections::HashMap;

use postern_common::Secret;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Call, challenge, refresh};
use crate::fault::{Fault, Kind};
use crate::hasher::{Answer, Verified};
use crate::lockout::Lockout;
use crate::pool::{Client, Pool};
use crate::random;
use crate::server::Server;
use crate::store::{Begin, Family, SessionWrite, Written};
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
        "USER_PASSWORD_AUTH" => {
            with_password(call, (&client, &pool), "USER_PASSWORD_AUTH", parameters).await
        }
        "REFRESH_TOKEN_AUTH" | "REFRESH_TOKEN" => {
            refresh::without_rotation(call, &client, parameters).await
        }
        "USER_SRP_AUTH"
        | "CUSTOM_AUTH"
        | "USER_AUTH"
        | "ADMIN_USER_PASSWORD_AUTH"
        | "ADMIN_NO_SRP_AUTH" => Err(Fault::invalid(format!(
            "{} flow not enabled for this client",
            request.auth_flow
        ))),
        other => Err(Fault::invalid(format!(
            "{other} is not a flow of InitiateAuth"
        ))),
    }
}

pub(super) async fn admin_initiate(
    call: &Call<'_>,
    request: AdminInitiate,
) -> Result<Value, Fault> {
    let pool = call.server.directory.pool(&request.user_pool_id)?;
    let client = call
        .server
        .directory
        .client_of(&pool.id, &request.client_id)?;
    call.note_client(&client);
    let parameters = &request.auth_parameters;
    match request.auth_flow.as_str() {
        "ADMIN_USER_PASSWORD_AUTH" | "ADMIN_NO_SRP_AUTH" => {
            with_password(
                call,
                (&client, &pool),
                "ADMIN_USER_PASSWORD_AUTH",
                parameters,
            )
            .await
        }
        "REFRESH_TOKEN_AUTH" | "REFRESH_TOKEN" => {
            refresh::without_rotation(call, &client, parameters).await
        }
        "USER_SRP_AUTH" | "CUSTOM_AUTH" | "USER_AUTH" | "USER_PASSWORD_AUTH" => {
            Err(Fault::invalid(format!(
                "{} flow not enabled for this client",
                request.auth_flow
            )))
        }
        other => Err(Fault::invalid(format!(
            "{other} is not a flow of AdminInitiateAuth"
        ))),
    }
}

pub(super) fn parameter<'a>(
    parameters: &'a HashMap<String, String>,
    name: &str,
) -> Result<&'a str, Fault> {
    let value = parameters
        .get(name)
        .map(String::as_str)
        .filter(|value| !value.is_empty());
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
    let attempted = call
        .server
        .store
        .attempted(pool, typed, &Lockout::nobody(pool, typed))
        .await?;
    if let Some(user) = &attempted.user {
        call.note_user(user);
    }
    Lockout::admit_after(attempted.locked_until, call.server.clock.now())?;
    let kept = attempted
        .user
        .as_ref()
        .and_then(|user| user.password.as_deref());
    let verified = call.server.hasher.verify(&password, kept).await?;
    match (verified, attempted.user) {
        (
            Verified {
                answer: Answer::Right,
                rehashed,
            },
            Some(user),
        ) => {
            if let Some(hash) = rehashed {
                call.server.store.rehash(&user, &hash).await?;
            }
            admit(call, client, &user).await
        }
        (
            Verified {
                answer: Answer::Right | Answer::Wrong,
                ..
            },
            found,
        ) => Err(refused(call.server, (client, pool), typed, found.as_ref()).await?),
    }
}

/// Counts a wrong password. Known and unknown names do the same work.
async fn refused(
    server: &Server,
    (client, pool): (&Client, &Pool),
    typed: &str,
    found: Option<&User>,
) -> Result<Fault, Fault> {
    let lockout = match found {
        Some(user) => Lockout::of(&server.store, user),
        None => Lockout::of_nobody(&server.store, pool, typed),
    };
    lockout.failed(server.clock.now()).await?;
    let tells = found.is_none() && !client.settings.prevent_user_existence_errors;
    Ok(if tells {
        Fault::user_not_found()
    } else {
        Fault::wrong_password()
    })
}

/// What a user who knows the password gets: tokens, a challenge, or the reason why neither.
async fn admit(call: &Call<'_>, client: &Client, user: &User) -> Result<Value, Fault> {
    let (lockout, now) = (
        Lockout::of(&call.server.store, user),
        call.server.clock.now(),
    );
    let reason = match user.status {
        _ if !user.is_enabled() => Fault::user_disabled(),
        Status::Confirmed => {
            let result = begin(call.server, client, user, Some(&lockout)).await?;
            return Ok(json!({"AuthenticationResult": result, "ChallengeParameters": {}}));
        }
        Status::ForceChangePassword if user.temporary_until.is_none_or(|until| until >= now.0) => {
            lockout.succeeded(now).await?;
            return challenge::ask_new_password(call.server, client, user).await;
        }
        Status::ForceChangePassword => Fault::not_authorized(
            "Temporary password has expired and must be reset by an administrator.",
        ),
        Status::Unconfirmed => Fault::new(Kind::UserNotConfirmed, "User is not confirmed."),
        Status::ResetRequired => Fault::new(
            Kind::PasswordResetRequired,
            "Password reset required for the user",
        ),
    };
    lockout.succeeded(now).await?;
    Err(reason)
}

/// Begins a sign-in: a family with its first refresh token, an access and an ID token. Refuses when
/// the password was reset or the user disabled since it was read, or the name is locked; where that
/// counts, its failures are forgiven.
pub(super) async fn begin(
    server: &Server,
    client: &Client,
    user: &User,
    lockout: Option<&Lockout<'_>>,
) -> Result<Value, Fault> {
    let now = server.clock.now();
    let token = random::token()?;
    let (family, auth_time) = (Uuid::new_v4().to_string(), now.unix_seconds());
    let write = SessionWrite::Begin(Begin {
        pool_id: user.pool_id.clone(),
        username: user.username.clone(),
        password_version: user.password_version,
        attempts: lockout.map(|lockout| lockout.name().to_owned()),
        now,
        family: Family {
            family: family.clone(),
            client_id: client.id.clone(),
            auth_time,
            expires_at: now.plus(client.refresh_lifetime()).0,
            revoked_at: None,
        },
        hash: random::digest(&[&token]),
    });
    let Written::Begun { groups } = server.store.write_session(write).await? else {
        if let Some(lockout) = lockout {
            lockout.admit(now).await?;
        }
        return Err(Fault::wrong_password());
    };
    let sign_in = SignIn {
        client,
        user,
        groups: &groups,
        family: &family,
        auth_time,
    };
    let mut result = tokens::issue(server, &sign_in).await?;
    result["RefreshToken"] = token.into();
    Ok(result)
}
