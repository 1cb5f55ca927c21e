//! Operations on user pools.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::pool::context::PoolContext;
use crate::pool::crypto::{self, random};
use crate::pool::error::ApiError;
use crate::pool::model::{PasswordPolicy, PoolSettings, STANDARD_ATTRIBUTES, UserPool};

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
pub(super) struct DescribePoolRequest {
    user_pool_id: String,
}

/// The settings in a request. Absent members leave the setting unchanged.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PoolSettingsRequest {
    policies: Option<PoolPolicies>,
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
    context: &PoolContext,
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
    let pool = create_pool(context, request.pool_name, settings).await?;
    Ok(json!({"UserPool": {"Id": pool.id, "Name": pool.name}}))
}

/// Creates a pool with its signing key.
pub(crate) async fn create_pool(
    context: &PoolContext,
    name: String,
    settings: PoolSettings,
) -> Result<UserPool, ApiError> {
    let id = format!("{}_{}", context.region, random::alphanumeric(9)?);
    let pool = UserPool {
        id,
        name,
        settings,
        groups: BTreeSet::new(),
        signing_key: crypto::new_signing_key().await?,
    };
    context.keys.add_pool(&pool)?;
    context.store.pools.put(&pool.id, pool.clone()).await?;
    Ok(pool)
}

fn custom_attributes(schema: &[SchemaAttribute]) -> Vec<String> {
    let named = schema
        .iter()
        .map(|attribute| attribute.name.trim_start_matches("custom:"));
    let ours = named.filter(|name| *name != "sub" && !STANDARD_ATTRIBUTES.contains(name));
    ours.map(|name| format!("custom:{name}")).collect()
}

pub(super) async fn describe(
    context: &PoolContext,
    request: DescribePoolRequest,
) -> Result<Value, ApiError> {
    let pool = context.pool(&request.user_pool_id)?;
    let username_attributes: &[&str] = match pool.settings.email_usernames {
        true => &["email"],
        false => &[],
    };
    Ok(json!({"UserPool": {
        "Id": pool.id, "Name": pool.name, "UsernameAttributes": username_attributes,
        "AdminCreateUserConfig": {"AllowAdminCreateUserOnly": pool.settings.admin_create_only},
    }}))
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
