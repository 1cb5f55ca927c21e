//! App clients.

use postern_core::identity::secret_hash;
use serde::{Deserialize, Serialize};

use super::STANDARD_ATTRIBUTES;
use crate::pool::error::{ApiError, ApiResult};

/// An app client: an application that requests tokens from a pool. The members, stored and in the
/// API, are those of `UserPoolClientType`.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct AppClient {
    pub(crate) user_pool_id: String,
    pub(crate) client_name: String,
    #[serde(default)]
    pub(crate) client_id: String,
    pub(crate) client_secret: Option<String>,
    /// Permitted authentication flows.
    #[serde(default = "default_flows")]
    pub(crate) explicit_auth_flows: Vec<String>,
    /// Attributes that tokens and responses show; `None` means all standard ones.
    pub(crate) read_attributes: Option<Vec<String>>,
    /// Attributes that users may write; `None` means all standard ones.
    pub(crate) write_attributes: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) refresh_token_rotation: TokenRotation,
    /// `ENABLED` gives an unknown user the response of a wrong password.
    #[serde(default)]
    pub(crate) prevent_user_existence_errors: Feature,
}

/// Whether refresh tokens are replaced at each use.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct TokenRotation {
    pub(crate) feature: Feature,
    /// Time in which a rotated refresh token still works.
    pub(crate) retry_grace_period_seconds: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Feature {
    Enabled,
    #[default]
    #[serde(alias = "LEGACY")]
    Disabled,
}

/// Attributes that record the verification of another one: readable by clients, writable by
/// administrators only.
const VERIFICATION_FLAGS: [&str; 2] = ["email_verified", "phone_number_verified"];

// === impl AppClient ===

impl AppClient {
    pub(crate) fn may_read(&self, attribute: &str) -> bool {
        is_listed(self.read_attributes.as_deref(), attribute)
    }

    pub(crate) fn may_write(&self, attribute: &str) -> bool {
        !VERIFICATION_FLAGS.contains(&attribute)
            && is_listed(self.write_attributes.as_deref(), attribute)
    }

    /// Returns whether an unknown user gets the response of a wrong password.
    pub(crate) fn hides_users(&self) -> bool {
        self.prevent_user_existence_errors == Feature::Enabled
    }

    /// Returns the grace period of rotated refresh tokens in seconds, if the client rotates them.
    pub(crate) fn rotation_grace_s(&self) -> Option<u64> {
        let rotation = &self.refresh_token_rotation;
        let grace_s = rotation.retry_grace_period_seconds;
        (rotation.feature == Feature::Enabled).then_some(grace_s)
    }

    /// Fails if the flow is not enabled for the client.
    pub(crate) fn require_flow(&self, flow: &str) -> ApiResult {
        let wanted = format!("ALLOW_{flow}");
        if self.explicit_auth_flows.contains(&wanted) {
            return Ok(());
        }
        Err(ApiError::invalid(format!(
            "{flow} flow not enabled for this client"
        )))
    }

    /// Checks `SECRET_HASH` = base64(HMAC-SHA256(secret, username + client id)). The caller passes
    /// the username that the operation's rule requires. As in Cognito, a hash sent to a client
    /// without a secret is an error.
    pub(crate) fn check_secret_hash(&self, sent: Option<&str>, username: &str) -> ApiResult {
        let secret = self.client_secret.as_ref();
        let expected = secret.map(|secret| secret_hash(username, &self.client_id, secret));
        self.check("secret hash", expected.as_deref() == sent)
    }

    /// Checks a secret that was sent in clear (GetTokensFromRefreshToken, RevokeToken).
    pub(crate) fn check_secret(&self, sent: Option<&str>) -> ApiResult {
        self.check("client secret", self.client_secret.as_deref() == sent)
    }

    fn check(&self, what: &str, is_right: bool) -> ApiResult {
        if is_right {
            return Ok(());
        }
        let id = &self.client_id;
        let message = format!("Unable to verify {what} for client {id}");
        Err(ApiError::not_authorized(message))
    }
}

/// Returns Cognito's default of `ExplicitAuthFlows`.
fn default_flows() -> Vec<String> {
    ["REFRESH_TOKEN_AUTH", "USER_SRP_AUTH", "CUSTOM_AUTH"]
        .map(|flow| format!("ALLOW_{flow}"))
        .to_vec()
}

fn is_listed(names: Option<&[String]>, attribute: &str) -> bool {
    match names {
        Some(names) => names.iter().any(|name| name == attribute),
        None => STANDARD_ATTRIBUTES.contains(&attribute),
    }
}
