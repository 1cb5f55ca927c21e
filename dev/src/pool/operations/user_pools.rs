//! Operations on user pools.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{OperationCall, PoolRequest, empty_response};
use crate::pool::context::PoolContext;
use crate::pool::crypto::random;
use crate::pool::error::ApiError;
use crate::pool::model::{PasswordPolicy, PoolSettings, STANDARD_ATTRIBUTES, UserPool, seconds};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CreatePoolRequest {
    pool_name: String,
    #[serde(flatten)]
    settings: PoolSettingsRequest,
    #[serde(default)]
    username_attributes: Vec<String>,
    #[serde(default)]
    schema: Vec<SchemaAttribute>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct UpdatePoolRequest {
    user_pool_id: String,
    #[serde(flatten)]
    settings: PoolSettingsRequest,
}

/// The settings in a request. Absent members leave the setting unchanged.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PoolSettingsRequest {
    policies: Option<PoolPolicies>,
    auto_verified_attributes: Option<Vec<String>>,
    admin_create_user_config: Option<AdminCreateUserConfig>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PoolPolicies {
    password_policy: Option<PasswordPolicyRequest>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PasswordPolicyRequest {
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

pub(super) async fn create(
    call: &OperationCall<'_>,
    request: CreatePoolRequest,
) -> Result<Value, ApiError> {
    let mut settings = PoolSettings {
        email_usernames: request
            .username_attributes
            .iter()
            .any(|name| name == "email"),
        custom_attributes: custom_attributes(&request.schema),
        ..PoolSettings::default()
    };
    apply_settings(&mut settings, &request.settings)?;
    let pool = create_pool(call.context, request.pool_name, settings).await?;
    let described = to_user_pool_type(call.context, &pool).await?;
    Ok(json!({"UserPool": described}))
}

/// Creates a pool with its signing key.
pub(crate) async fn create_pool(
    context: &PoolContext,
    name: String,
    settings: PoolSettings,
) -> Result<UserPool, ApiError> {
    let now = context.clock.now();
    let id = format!("{}_{}", context.region, random::alphanumeric(9)?);
    let pool = UserPool {
        id,
        name,
        settings,
        created_at: now.0,
        updated_at: now.0,
    };
    context
        .directory
        .put_pool(&context.store, pool.clone())
        .await?;
    context.keys.add_pool(&context.store, &pool.id).await?;
    Ok(pool)
}

fn custom_attributes(schema: &[SchemaAttribute]) -> Vec<String> {
    let named = schema
        .iter()
        .map(|attribute| attribute.name.trim_start_matches("custom:"));
    let ours = named.filter(|name| *name != "sub" && !STANDARD_ATTRIBUTES.contains(name));
    ours.map(|name| format!("custom:{name}")).collect()
}

pub(super) async fn update(
    call: &OperationCall<'_>,
    request: UpdatePoolRequest,
) -> Result<Value, ApiError> {
    let mut pool = (*call.context.directory.pool(&request.user_pool_id)?).clone();
    apply_settings(&mut pool.settings, &request.settings)?;
    pool.updated_at = call.context.clock.now().0;
    call.context
        .directory
        .put_pool(&call.context.store, pool)
        .await?;
    Ok(empty_response())
}

fn apply_settings(
    settings: &mut PoolSettings,
    request: &PoolSettingsRequest,
) -> Result<(), ApiError> {
    if let Some(policy) = request
        .policies
        .as_ref()
        .and_then(|policies| policies.password_policy.as_ref())
    {
        settings.password_policy = parse_policy(policy)?;
    }
    if let Some(verified) = &request.auto_verified_attributes {
        settings.verify_email = verified.iter().any(|name| name == "email");
    }
    if let Some(config) = &request.admin_create_user_config {
        settings.admin_create_only = config.allow_admin_create_user_only.unwrap_or(false);
    }
    Ok(())
}

/// Converts a password policy. As in Cognito, it replaces the whole policy, and absent flags are
/// off.
fn parse_policy(policy: &PasswordPolicyRequest) -> Result<PasswordPolicy, ApiError> {
    let defaults = PasswordPolicy::default();
    let minimum_length = policy.minimum_length.unwrap_or(defaults.minimum_length);
    if !(6..=99).contains(&minimum_length) {
        return Err(ApiError::invalid("MinimumLength must be 6 to 99"));
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

pub(super) async fn delete(
    call: &OperationCall<'_>,
    request: PoolRequest,
) -> Result<Value, ApiError> {
    let pool = call.context.directory.pool(&request.user_pool_id)?;
    call.context
        .directory
        .delete_pool(&call.context.store, &pool.id)
        .await?;
    call.context.keys.remove_pool(&pool.id);
    Ok(empty_response())
}

async fn to_user_pool_type(context: &PoolContext, pool: &UserPool) -> Result<Value, ApiError> {
    let settings = &pool.settings;
    let users = context.store.count_users(&pool.id).await?;
    let mut described = json!({
        "Id": pool.id,
        "Name": pool.name,
        "Arn": format!("arn:aws:cognito-idp:{}:000000000000:userpool/{}", context.region, pool.id),
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
    let custom_attributes = settings.custom_attributes.iter().map(String::as_str);
    standard
        .chain(custom_attributes)
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
