//! Pools as an administrator sees and makes them.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Call, OfPool, nothing};
use crate::fault::Fault;
use crate::password::PasswordPolicy;
use crate::pool::{Pool, PoolSettings, STANDARD_ATTRIBUTES};
use crate::random;
use crate::server::Server;
use crate::user::seconds;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Create {
    pool_name: String,
    #[serde(flatten)]
    settings: Settings,
    #[serde(default)]
    username_attributes: Vec<String>,
    #[serde(default)]
    schema: Vec<SchemaAttribute>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Update {
    user_pool_id: String,
    #[serde(flatten)]
    settings: Settings,
}

/// What a request may say about a pool; a member that is absent is left alone.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Settings {
    policies: Option<Policies>,
    auto_verified_attributes: Option<Vec<String>>,
    admin_create_user_config: Option<AdminCreateUserConfig>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Policies {
    password_policy: Option<Policy>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Policy {
    minimum_length: Option<usize>,
    require_uppercase: Option<bool>,
    require_lowercase: Option<bool>,
    require_numbers: Option<bool>,
    require_symbols: Option<bool>,
    temporary_password_validity_days: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AdminCreateUserConfig {
    allow_admin_create_user_only: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SchemaAttribute {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct MfaConfig {
    user_pool_id: String,
    mfa_configuration: Option<String>,
}

pub(super) async fn create(call: &Call<'_>, request: Create) -> Result<Value, Fault> {
    let mut settings = PoolSettings {
        email_usernames: request
            .username_attributes
            .iter()
            .any(|name| name == "email"),
        custom_attributes: custom(&request.schema),
        ..PoolSettings::default()
    };
    apply(&mut settings, &request.settings)?;
    let pool = make(call.server, request.pool_name, settings).await?;
    // The first start's keys come first: until then, no pool has any.
    call.server.keys.wait().await?;
    let now = call.server.clock.now();
    call.server
        .keys
        .turn(&call.server.store, std::slice::from_ref(&pool.id), now)
        .await?;
    let described = to_user_pool_type(call.server, &pool).await?;
    Ok(json!({"UserPool": described}))
}

/// Makes a pool; its signing keys come with the next turn.
pub(crate) async fn make(
    server: &Server,
    name: String,
    settings: PoolSettings,
) -> Result<Pool, Fault> {
    let now = server.clock.now();
    let id = format!("{}_{}", server.region, random::alphanumeric(9)?);
    let pool = Pool {
        id,
        name,
        settings,
        created_at: now.0,
        updated_at: now.0,
    };
    server
        .directory
        .put_pool(&server.store, pool.clone())
        .await?;
    Ok(pool)
}

fn custom(schema: &[SchemaAttribute]) -> Vec<String> {
    let named = schema
        .iter()
        .map(|attribute| attribute.name.trim_start_matches("custom:"));
    let ours = named.filter(|name| *name != "sub" && !STANDARD_ATTRIBUTES.contains(name));
    ours.map(|name| format!("custom:{name}")).collect()
}

pub(super) async fn update(call: &Call<'_>, request: Update) -> Result<Value, Fault> {
    let mut pool = (*call.server.directory.pool(&request.user_pool_id)?).clone();
    apply(&mut pool.settings, &request.settings)?;
    pool.updated_at = call.server.clock.now().0;
    call.server
        .directory
        .put_pool(&call.server.store, pool)
        .await?;
    Ok(nothing())
}

fn apply(settings: &mut PoolSettings, request: &Settings) -> Result<(), Fault> {
    if let Some(policy) = request
        .policies
        .as_ref()
        .and_then(|policies| policies.password_policy.as_ref())
    {
        settings.password_policy = to_policy(policy)?;
    }
    if let Some(verified) = &request.auto_verified_attributes {
        settings.verify_email = verified.iter().any(|name| name == "email");
    }
    if let Some(config) = &request.admin_create_user_config {
        settings.admin_create_only = config.allow_admin_create_user_only.unwrap_or(false);
    }
    Ok(())
}

/// A policy that is given replaces the whole one; its absent flags are off, as at Cognito.
fn to_policy(policy: &Policy) -> Result<PasswordPolicy, Fault> {
    let defaults = PasswordPolicy::default();
    let minimum_length = policy.minimum_length.unwrap_or(defaults.minimum_length);
    if !(6..=99).contains(&minimum_length) {
        return Err(Fault::invalid("MinimumLength must be 6 to 99"));
    }
    Ok(PasswordPolicy {
        minimum_length,
        require_uppercase: policy.require_uppercase.unwrap_or(false),
        require_lowercase: policy.require_lowercase.unwrap_or(false),
        require_numbers: policy.require_numbers.unwrap_or(false),
        require_symbols: policy.require_symbols.unwrap_or(false),
        temporary_days: policy
            .temporary_password_validity_days
            .unwrap_or(defaults.temporary_days)
            .min(365),
    })
}

pub(super) async fn delete(call: &Call<'_>, request: OfPool) -> Result<Value, Fault> {
    let pool = call.server.directory.pool(&request.user_pool_id)?;
    call.server
        .directory
        .delete_pool(&call.server.store, &pool.id)
        .await?;
    call.server.keys.forget(&pool.id);
    Ok(nothing())
}

pub(super) async fn describe(call: &Call<'_>, request: OfPool) -> Result<Value, Fault> {
    let pool = call.server.directory.pool(&request.user_pool_id)?;
    let described = to_user_pool_type(call.server, &pool).await?;
    Ok(json!({"UserPool": described}))
}

pub(super) fn list(call: &Call<'_>) -> Value {
    let pools: Vec<Value> = call
        .server
        .directory
        .pools()
        .iter()
        .map(|pool| {
            json!({
                "Id": pool.id,
                "Name": pool.name,
                "CreationDate": seconds(pool.created_at),
                "LastModifiedDate": seconds(pool.updated_at),
            })
        })
        .collect();
    json!({"UserPools": pools})
}

pub(super) fn mfa_config(call: &Call<'_>, request: &MfaConfig) -> Result<Value, Fault> {
    call.server.directory.pool(&request.user_pool_id)?;
    Ok(json!({"MfaConfiguration": "OFF"}))
}

pub(super) fn set_mfa_config(call: &Call<'_>, request: &MfaConfig) -> Result<Value, Fault> {
    if request
        .mfa_configuration
        .as_deref()
        .is_some_and(|wanted| wanted != "OFF")
    {
        return Err(Fault::invalid("This pool has no second factors"));
    }
    mfa_config(call, request)
}

async fn to_user_pool_type(server: &Server, pool: &Pool) -> Result<Value, Fault> {
    let settings = &pool.settings;
    let users = server.store.count_users(&pool.id).await?;
    let mut described = json!({
        "Id": pool.id,
        "Name": pool.name,
        "Arn": format!("arn:aws:cognito-idp:{}:000000000000:userpool/{}", server.region, pool.id),
        "CreationDate": seconds(pool.created_at),
        "LastModifiedDate": seconds(pool.updated_at),
        "Policies": {"PasswordPolicy": settings.password_policy.to_json()},
        "DeletionProtection": "INACTIVE",
        "EstimatedNumberOfUsers": users,
        "MfaConfiguration": "OFF",
        "AdminCreateUserConfig": {"AllowAdminCreateUserOnly": settings.admin_create_only},
        "AutoVerifiedAttributes": if settings.verify_email { vec!["email"] } else { Vec::new() },
        "UsernameConfiguration": {"CaseSensitive": !settings.email_usernames},
        "AccountRecoverySetting": {"RecoveryMechanisms": [{"Name": "verified_email", "Priority": 1}]},
        "SchemaAttributes": schema(settings),
    });
    if settings.email_usernames {
        described["UsernameAttributes"] = json!(["email"]);
    }
    Ok(described)
}

fn schema(settings: &PoolSettings) -> Vec<Value> {
    let standard = std::iter::once("sub").chain(STANDARD_ATTRIBUTES);
    let custom = settings.custom_attributes.iter().map(String::as_str);
    standard
        .chain(custom)
        .map(|name| {
            let kind = if name.ends_with("_verified") {
                "Boolean"
            } else {
                "String"
            };
            json!({
                "Name": name,
                "AttributeDataType": kind,
                "DeveloperOnlyAttribute": false,
                "Mutable": name != "sub",
                "Required": name == "sub",
            })
        })
        .collect()
}
