//! App clients as an administrator sees and makes them.

use postern_common::Secret;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Call, OfPool, nothing};
use crate::fault::Fault;
use crate::pool::{Client, ClientSettings, Pool};
use crate::random;
use crate::server::Server;
use crate::user::seconds;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Create {
    user_pool_id: String,
    client_name: String,
    #[serde(default)]
    generate_secret: bool,
    #[serde(flatten)]
    settings: Settings,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Update {
    user_pool_id: String,
    client_id: String,
    client_name: Option<String>,
    #[serde(flatten)]
    settings: Settings,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct OfClient {
    user_pool_id: String,
    client_id: String,
}

/// What a request says about a client. An update replaces everything: what is absent goes back to
/// its default, as at Cognito.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Settings {
    explicit_auth_flows: Option<Vec<String>>,
    read_attributes: Option<Vec<String>>,
    write_attributes: Option<Vec<String>>,
    access_token_validity: Option<u64>,
    id_token_validity: Option<u64>,
    refresh_token_validity: Option<u64>,
    token_validity_units: Option<Units>,
    refresh_token_rotation: Option<Rotation>,
    prevent_user_existence_errors: Option<String>,
    enable_token_revocation: Option<bool>,
    auth_session_validity: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Units {
    access_token: Option<String>,
    id_token: Option<String>,
    refresh_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Rotation {
    feature: String,
    retry_grace_period_seconds: Option<u64>,
}

const FLOWS: [&str; 6] = [
    "ALLOW_ADMIN_USER_PASSWORD_AUTH",
    "ALLOW_CUSTOM_AUTH",
    "ALLOW_REFRESH_TOKEN_AUTH",
    "ALLOW_USER_AUTH",
    "ALLOW_USER_PASSWORD_AUTH",
    "ALLOW_USER_SRP_AUTH",
];

pub(super) async fn create(call: &Call<'_>, request: Create) -> Result<Value, Fault> {
    let pool = call.server.directory.pool(&request.user_pool_id)?;
    let settings = to_settings(&pool, request.settings)?;
    let client = make(
        call.server,
        &pool,
        request.client_name,
        request.generate_secret,
        settings,
    )
    .await?;
    call.note_client(&client);
    Ok(json!({"UserPoolClient": to_client_type(&client)}))
}

/// Makes an app client.
pub(crate) async fn make(
    server: &Server,
    pool: &Pool,
    name: String,
    with_secret: bool,
    settings: ClientSettings,
) -> Result<Client, Fault> {
    let now = server.clock.now().0;
    let secret = if with_secret {
        Some(Secret::new(random::lowercase(52)?))
    } else {
        None
    };
    let client = Client {
        id: random::lowercase(26)?,
        pool_id: pool.id.clone(),
        name,
        secret,
        settings,
        created_at: now,
        updated_at: now,
    };
    server
        .directory
        .put_client(&server.store, client.clone())
        .await?;
    Ok(client)
}

pub(super) async fn update(call: &Call<'_>, request: Update) -> Result<Value, Fault> {
    let pool = call.server.directory.pool(&request.user_pool_id)?;
    let mut client = (*call
        .server
        .directory
        .client_of(&pool.id, &request.client_id)?)
    .clone();
    call.note_client(&client);
    client.settings = to_settings(&pool, request.settings)?;
    client.name = request.client_name.unwrap_or(client.name);
    client.updated_at = call.server.clock.now().0;
    let client = call
        .server
        .directory
        .put_client(&call.server.store, client)
        .await?;
    Ok(json!({"UserPoolClient": to_client_type(&client)}))
}

pub(super) async fn delete(call: &Call<'_>, request: OfClient) -> Result<Value, Fault> {
    let client = call
        .server
        .directory
        .client_of(&request.user_pool_id, &request.client_id)?;
    call.note_client(&client);
    call.server
        .directory
        .delete_client(&call.server.store, &client.id)
        .await?;
    Ok(nothing())
}

pub(super) fn describe(call: &Call<'_>, request: &OfClient) -> Result<Value, Fault> {
    let client = call
        .server
        .directory
        .client_of(&request.user_pool_id, &request.client_id)?;
    call.note_client(&client);
    Ok(json!({"UserPoolClient": to_client_type(&client)}))
}

pub(super) fn list(call: &Call<'_>, request: &OfPool) -> Result<Value, Fault> {
    let pool = call.server.directory.pool(&request.user_pool_id)?;
    let clients: Vec<Value> = call
        .server
        .directory
        .clients(&pool.id)
        .iter()
        .map(|client| json!({"ClientId": client.id, "UserPoolId": client.pool_id, "ClientName": client.name}))
        .collect();
    Ok(json!({"UserPoolClients": clients}))
}

fn to_settings(pool: &Pool, request: Settings) -> Result<ClientSettings, Fault> {
    let defaults = ClientSettings::default();
    let flows = request.explicit_auth_flows.unwrap_or_else(|| {
        [
            "ALLOW_REFRESH_TOKEN_AUTH",
            "ALLOW_USER_SRP_AUTH",
            "ALLOW_CUSTOM_AUTH",
        ]
        .map(str::to_owned)
        .to_vec()
    });
    if let Some(unknown) = flows.iter().find(|flow| !FLOWS.contains(&flow.as_str())) {
        return Err(Fault::invalid(format!("{unknown} is not an auth flow")));
    }
    let named = request
        .read_attributes
        .iter()
        .chain(&request.write_attributes)
        .flatten();
    if let Some(unknown) = named
        .into_iter()
        .find(|name| *name != "sub" && !pool.knows_attribute(name))
    {
        return Err(Fault::invalid(format!(
            "Invalid attribute {unknown} specified while creating a client"
        )));
    }
    let units = request.token_validity_units.unwrap_or_default();
    let short =
        |value, unit: &Option<String>, name| lifetime(value, unit, ("hours", 300..=86_400), name);
    let access_token_s = short(
        request.access_token_validity,
        &units.access_token,
        "AccessTokenValidity",
    )?;
    let id_token_s = short(
        request.id_token_validity,
        &units.id_token,
        "IdTokenValidity",
    )?;
    let long = ("days", 3600..=315_360_000);
    let refresh_token_s = lifetime(
        request.refresh_token_validity,
        &units.refresh_token,
        long,
        "RefreshTokenValidity",
    )?;
    Ok(ClientSettings {
        rotation_grace_s: rotation(request.refresh_token_rotation.as_ref(), &flows)?,
        flows,
        read_attributes: request.read_attributes,
        write_attributes: request.write_attributes,
        access_token_s: access_token_s.unwrap_or(defaults.access_token_s),
        id_token_s: id_token_s.unwrap_or(defaults.id_token_s),
        refresh_token_s: refresh_token_s.unwrap_or(defaults.refresh_token_s),
        prevent_user_existence_errors: request.prevent_user_existence_errors.as_deref()
            == Some("ENABLED"),
        token_revocation: request.enable_token_revocation.unwrap_or(true),
        auth_session_minutes: request.auth_session_validity.unwrap_or(3).clamp(3, 15),
    })
}

/// A lifetime in seconds; 0 or nothing is the default.
fn lifetime(
    value: Option<u64>,
    unit: &Option<String>,
    (default_unit, range): (&str, std::ops::RangeInclusive<u64>),
    name: &str,
) -> Result<Option<u64>, Fault> {
    let Some(value) = value.filter(|value| *value > 0) else {
        return Ok(None);
    };
    let factor = match unit.as_deref().unwrap_or(default_unit) {
        "seconds" => 1,
        "minutes" => 60,
        "hours" => 3600,
        "days" => 86_400,
        other => return Err(Fault::invalid(format!("{other} is not a unit of time"))),
    };
    let seconds = value.saturating_mul(factor);
    if !range.contains(&seconds) {
        return Err(Fault::invalid(format!(
            "Invalid range for token validity: {name} must be {} to {} seconds",
            range.start(),
            range.end()
        )));
    }
    Ok(Some(seconds))
}

fn rotation(request: Option<&Rotation>, flows: &[String]) -> Result<Option<u64>, Fault> {
    let Some(rotation) = request.filter(|rotation| rotation.feature == "ENABLED") else {
        return Ok(None);
    };
    if flows.iter().any(|flow| flow == "ALLOW_REFRESH_TOKEN_AUTH") {
        return Err(Fault::invalid(
            "Refresh token rotation cannot be enabled with ALLOW_REFRESH_TOKEN_AUTH",
        ));
    }
    let grace = rotation.retry_grace_period_seconds.unwrap_or(0);
    if grace > 60 {
        return Err(Fault::invalid("RetryGracePeriodSeconds must be 0 to 60"));
    }
    Ok(Some(grace))
}

fn to_client_type(client: &Client) -> Value {
    let settings = &client.settings;
    let enabled = |flag: bool| if flag { "ENABLED" } else { "DISABLED" };
    let mut described = json!({
        "UserPoolId": client.pool_id,
        "ClientName": client.name,
        "ClientId": client.id,
        "CreationDate": seconds(client.created_at),
        "LastModifiedDate": seconds(client.updated_at),
        "ExplicitAuthFlows": settings.flows,
        "AccessTokenValidity": settings.access_token_s,
        "IdTokenValidity": settings.id_token_s,
        "RefreshTokenValidity": settings.refresh_token_s,
        "TokenValidityUnits":
            {"AccessToken": "seconds", "IdToken": "seconds", "RefreshToken": "seconds"},
        "PreventUserExistenceErrors":
            if settings.prevent_user_existence_errors { "ENABLED" } else { "LEGACY" },
        "EnableTokenRevocation": settings.token_revocation,
        "AuthSessionValidity": settings.auth_session_minutes,
        "AllowedOAuthFlowsUserPoolClient": false,
        "RefreshTokenRotation": {
            "Feature": enabled(settings.rotation_grace_s.is_some()),
            "RetryGracePeriodSeconds": settings.rotation_grace_s.unwrap_or(0),
        },
    });
    let lists = [
        ("ReadAttributes", &settings.read_attributes),
        ("WriteAttributes", &settings.write_attributes),
    ];
    for (name, list) in lists {
        if let Some(list) = list {
            described[name] = list.clone().into();
        }
    }
    if let Some(secret) = &client.secret {
        described["ClientSecret"] = secret.expose().into();
    }
    described
}
