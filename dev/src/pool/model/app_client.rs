//! App clients.

use postern_core::identity::secret_hash;
use serde::{Deserialize, Serialize};

use super::STANDARD_ATTRIBUTES;
use crate::pool::error::{ApiError, ApiResult};

/// An app client: an application that requests tokens from a pool.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct AppClient {
    pub(crate) id: String,
    pub(crate) pool_id: String,
    pub(crate) name: String,
    pub(crate) secret: Option<String>,
    pub(crate) settings: ClientSettings,
}

/// The settings of an app client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ClientSettings {
    /// Permitted authentication flows (`ExplicitAuthFlows`).
    pub(crate) flows: Vec<String>,
    /// Attributes that tokens and responses show; `None` means all standard ones.
    pub(crate) read_attributes: Option<Vec<String>>,
    /// Attributes that users may write; `None` means all standard ones.
    pub(crate) write_attributes: Option<Vec<String>>,
    /// Lifetime of access tokens in seconds. Default one hour.
    pub(crate) access_token_s: u64,
    /// Lifetime of ID tokens in seconds. Default one hour.
    pub(crate) id_token_s: u64,
    /// Lifetime of a refresh token and all its rotations, in seconds. Default 30 days.
    pub(crate) refresh_token_s: u64,
    /// Grace period in which a rotated refresh token still works, in seconds; `None` disables
    /// rotation.
    pub(crate) rotation_grace_s: Option<u64>,
    /// Whether an unknown user gets the response of a wrong password
    /// (`PreventUserExistenceErrors`). Default true.
    pub(crate) prevent_user_existence_errors: bool,
}

/// Attributes that record the verification of another one: readable by clients, writable by
/// administrators only.
const VERIFICATION_FLAGS: [&str; 2] = ["email_verified", "phone_number_verified"];

// === impl ClientSettings ===

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            flows: Vec::new(),
            read_attributes: None,
            write_attributes: None,
            access_token_s: 3600,
            id_token_s: 3600,
            refresh_token_s: 30 * 86_400,
            rotation_grace_s: None,
            prevent_user_existence_errors: true,
        }
    }
}

impl ClientSettings {
    /// Returns the settings with these authentication flows.
    pub(crate) fn with_flows(mut self, flows: &[&str]) -> Self {
        self.flows = flows.iter().map(|flow| (*flow).to_owned()).collect();
        self
    }
}

// === impl AppClient ===

impl AppClient {
    pub(crate) fn may_read(&self, attribute: &str) -> bool {
        match &self.settings.read_attributes {
            Some(named) => named.iter().any(|name| name == attribute),
            None => STANDARD_ATTRIBUTES.contains(&attribute),
        }
    }

    pub(crate) fn may_write(&self, attribute: &str) -> bool {
        !VERIFICATION_FLAGS.contains(&attribute)
            && match &self.settings.write_attributes {
                Some(named) => named.iter().any(|name| name == attribute),
                None => STANDARD_ATTRIBUTES.contains(&attribute),
            }
    }

    /// Fails if the flow is not enabled for the client.
    pub(crate) fn require_flow(&self, flow: &str) -> ApiResult {
        let wanted = format!("ALLOW_{flow}");
        if self.settings.flows.contains(&wanted) {
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
        let secret = self.secret.as_ref();
        let expected = secret.map(|secret| secret_hash(username, &self.id, secret));
        self.check("secret hash", expected.as_deref() == sent)
    }

    /// Checks a secret that was sent in clear (GetTokensFromRefreshToken, RevokeToken).
    pub(crate) fn check_secret(&self, sent: Option<&str>) -> ApiResult {
        self.check("client secret", self.secret.as_deref() == sent)
    }

    fn check(&self, what: &str, is_right: bool) -> ApiResult {
        if is_right {
            return Ok(());
        }
        let id = &self.id;
        let message = format!("Unable to verify {what} for client {id}");
        Err(ApiError::not_authorized(message))
    }
}
