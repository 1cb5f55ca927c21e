//! Operations on app clients.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Answer;
use crate::pool::context::{PoolContext, not_found};
use crate::pool::crypto::random;
use crate::pool::error::{ApiError, ApiResult};
use crate::pool::model::{AppClient, ClientSettings, UserPool};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CreateClientRequest {
    user_pool_id: String,
    client_name: String,
    #[serde(default)]
    generate_secret: bool,
    #[serde(flatten)]
    settings: SettingsRequest,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ClientRequest {
    user_pool_id: String,
    client_id: String,
}

/// The settings in a request. Absent members have their defaults.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SettingsRequest {
    explicit_auth_flows: Option<Vec<String>>,
    read_attributes: Option<Vec<String>>,
    write_attributes: Option<Vec<String>>,
    refresh_token_rotation: Option<RotationConfig>,
    prevent_user_existence_errors: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RotationConfig {
    feature: String,
    retry_grace_period_seconds: Option<u64>,
}

pub(super) async fn create(context: &PoolContext, request: CreateClientRequest) -> Answer {
    let pool = context.pool(&request.user_pool_id)?;
    let settings = read_settings(request.settings)?;
    let (name, with_secret) = (request.client_name, request.generate_secret);
    let client = create_client(context, &pool, name, with_secret, settings).await?;
    Ok(json!({"UserPoolClient": to_client_type(&client)}))
}

/// Creates an app client.
pub(crate) async fn create_client(
    context: &PoolContext,
    pool: &UserPool,
    name: String,
    with_secret: bool,
    settings: ClientSettings,
) -> ApiResult<AppClient> {
    let secret = match with_secret {
        true => Some(random::alphanumeric(52)?.to_lowercase()),
        false => None,
    };
    let client = AppClient {
        id: random::alphanumeric(26)?.to_lowercase(),
        pool_id: pool.id.clone(),
        name,
        secret,
        settings,
    };
    let clients = &context.store.clients;
    clients.put(&client.id, client.clone()).await?;
    Ok(client)
}

pub(super) async fn describe(context: &PoolContext, request: ClientRequest) -> Answer {
    let (client, pool) = context.client(&request.client_id)?;
    if pool.id != request.user_pool_id {
        return Err(not_found("User pool client", &client.id));
    }
    Ok(json!({"UserPoolClient": to_client_type(&client)}))
}

fn read_settings(request: SettingsRequest) -> ApiResult<ClientSettings> {
    let flows = request.explicit_auth_flows.unwrap_or_else(|| {
        [
            "ALLOW_REFRESH_TOKEN_AUTH",
            "ALLOW_USER_SRP_AUTH",
            "ALLOW_CUSTOM_AUTH",
        ]
        .map(str::to_owned)
        .to_vec()
    });
    let rotation = request.refresh_token_rotation;
    let rotation = rotation.filter(|it| it.feature == "ENABLED");
    if rotation.is_some() && flows.iter().any(|flow| flow == "ALLOW_REFRESH_TOKEN_AUTH") {
        return Err(ApiError::invalid(
            "Refresh token rotation cannot be enabled with ALLOW_REFRESH_TOKEN_AUTH",
        ));
    }
    Ok(ClientSettings {
        rotation_grace_s: rotation.map(|it| it.retry_grace_period_seconds.unwrap_or(0)),
        flows,
        read_attributes: request.read_attributes,
        write_attributes: request.write_attributes,
        prevent_user_existence_errors: request.prevent_user_existence_errors.as_deref()
            == Some("ENABLED"),
        ..ClientSettings::default()
    })
}

fn to_client_type(client: &AppClient) -> Value {
    let settings = &client.settings;
    let enabled = |flag: bool| if flag { "ENABLED" } else { "DISABLED" };
    let mut described = json!({
        "UserPoolId": client.pool_id,
        "ClientName": client.name,
        "ClientId": client.id,
        "ExplicitAuthFlows": settings.flows,
        "AccessTokenValidity": settings.access_token_s,
        "IdTokenValidity": settings.id_token_s,
        "RefreshTokenValidity": settings.refresh_token_s,
        "TokenValidityUnits":
            {"AccessToken": "seconds", "IdToken": "seconds", "RefreshToken": "seconds"},
        "PreventUserExistenceErrors":
            if settings.prevent_user_existence_errors { "ENABLED" } else { "LEGACY" },
        "EnableTokenRevocation": true,
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
        described["ClientSecret"] = secret.as_str().into();
    }
    described
}
