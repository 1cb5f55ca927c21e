//! Pools and app clients: what an operator decides about them.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use postern_common::Secret;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::fault::Fault;
use crate::password::PasswordPolicy;

/// A pool of users.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    /// `{region}_{nine letters and digits}`.
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) settings: PoolSettings,
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
}

/// What an operator decides about a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolSettings {
    /// Users sign in with their e-mail address and their real username is a UUID
    /// (`UsernameAttributes`).
    pub email_usernames: bool,
    /// SignUp sends a code to the address (`AutoVerifiedAttributes`).
    pub verify_email: bool,
    /// A user who signed up is confirmed at once, as by a pre sign-up trigger with
    /// `autoConfirmUser`.
    pub auto_confirm: bool,
    /// A forgotten password can be reset through an address that was never verified; using the code
    /// then verifies it. Cognito refuses; a pool whose users are confirmed by the service needs it.
    pub recover_unverified: bool,
    /// SignUp is refused (`AllowAdminCreateUserOnly`).
    pub admin_create_only: bool,
    /// Custom attributes, with the prefix `custom:`.
    pub custom_attributes: Vec<String>,
    /// What a password must have.
    pub password_policy: PasswordPolicy,
}

/// An app client: who may ask a pool for tokens.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) id: String,
    pub(crate) pool_id: String,
    pub(crate) name: String,
    pub(crate) secret: Option<Secret>,
    pub(crate) settings: ClientSettings,
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
}

/// What an operator decides about an app client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientSettings {
    /// `ExplicitAuthFlows`.
    pub flows: Vec<String>,
    /// Attributes that the client's tokens and calls show; `None` is every standard one.
    pub read_attributes: Option<Vec<String>>,
    /// Attributes that the client's users may write; `None` is every standard one.
    pub write_attributes: Option<Vec<String>>,
    /// Seconds that an access token is valid. Default one hour.
    pub access_token_s: u64,
    /// Seconds that an ID token is valid. Default one hour.
    pub id_token_s: u64,
    /// Seconds that a refresh token, or all that rotation makes of it, is valid. Default 30 days.
    pub refresh_token_s: u64,
    /// Rotation of refresh tokens, with the seconds in which a rotated one still works; `None` is
    /// no rotation.
    pub rotation_grace_s: Option<u64>,
    /// An unknown user is answered like a wrong password (`PreventUserExistenceErrors`). Default
    /// true.
    pub prevent_user_existence_errors: bool,
    /// RevokeToken works for the client (`EnableTokenRevocation`). Default true.
    pub token_revocation: bool,
    /// Minutes that a challenge waits for its answer (`AuthSessionValidity`). Default 3.
    pub auth_session_minutes: u64,
}

/// The standard attributes (OpenID Connect Core section 5.1), without `sub`, which nobody writes.
pub(crate) const STANDARD_ATTRIBUTES: [&str; 19] = [
    "address",
    "birthdate",
    "email",
    "email_verified",
    "family_name",
    "gender",
    "given_name",
    "locale",
    "middle_name",
    "name",
    "nickname",
    "phone_number",
    "phone_number_verified",
    "picture",
    "preferred_username",
    "profile",
    "updated_at",
    "website",
    "zoneinfo",
];

/// Attributes that say that another one was verified: readable, and written by administrators only.
const VERIFICATIONS: [&str; 2] = ["email_verified", "phone_number_verified"];

// === impl Pool ===

impl Pool {
    pub(crate) fn knows_attribute(&self, name: &str) -> bool {
        STANDARD_ATTRIBUTES.contains(&name)
            || self
                .settings
                .custom_attributes
                .iter()
                .any(|known| known == name)
    }
}

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
            token_revocation: true,
            auth_session_minutes: 3,
        }
    }
}

impl ClientSettings {
    /// The same with these flows.
    #[must_use]
    pub fn with_flows(mut self, flows: &[&str]) -> Self {
        self.flows = flows.iter().map(|flow| (*flow).to_owned()).collect();
        self
    }
}

// === impl Client ===

impl Client {
    pub(crate) fn may_read(&self, attribute: &str) -> bool {
        match &self.settings.read_attributes {
            Some(named) => named.iter().any(|name| name == attribute),
            None => STANDARD_ATTRIBUTES.contains(&attribute),
        }
    }

    pub(crate) fn may_write(&self, attribute: &str) -> bool {
        !VERIFICATIONS.contains(&attribute)
            && match &self.settings.write_attributes {
                Some(named) => named.iter().any(|name| name == attribute),
                None => STANDARD_ATTRIBUTES.contains(&attribute),
            }
    }

    pub(crate) fn refresh_lifetime(&self) -> Duration {
        Duration::from_secs(self.settings.refresh_token_s)
    }

    /// Refuses a flow that is not on the client's list.
    pub(crate) fn require_flow(&self, flow: &str) -> Result<(), Fault> {
        let wanted = format!("ALLOW_{flow}");
        if self.settings.flows.contains(&wanted) {
            return Ok(());
        }
        Err(Fault::invalid(format!(
            "{flow} flow not enabled for this client"
        )))
    }

    /// Checks `SECRET_HASH` = base64(HMAC-SHA256(secret, username + client id)) over the name that
    /// the rule of the call says. A client without a secret ignores it, as Cognito does not.
    pub(crate) fn check_secret_hash(
        &self,
        sent: Option<&str>,
        username: &str,
    ) -> Result<(), Fault> {
        match (&self.secret, sent) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err(Fault::not_authorized(format!(
                "Client {} is not configured for secret but secret was received",
                self.id
            ))),
            (Some(_), None) => Err(Fault::not_authorized(format!(
                "Client {} is configured with secret but SECRET_HASH was not received",
                self.id
            ))),
            (Some(secret), Some(sent)) => {
                let expected = secret_hash(username, &self.id, secret);
                if bool::from(expected.as_bytes().ct_eq(sent.as_bytes())) {
                    return Ok(());
                }
                Err(Fault::not_authorized(format!(
                    "Unable to verify secret hash for client {}",
                    self.id
                )))
            }
        }
    }

    /// Checks a secret that was sent as it is (GetTokensFromRefreshToken, RevokeToken).
    pub(crate) fn check_secret(&self, sent: Option<&str>) -> Result<(), Fault> {
        let matches = match (&self.secret, sent) {
            (None, None) => true,
            (Some(secret), Some(sent)) => secret.expose().as_bytes().ct_eq(sent.as_bytes()).into(),
            (None, Some(_)) | (Some(_), None) => false,
        };
        if matches {
            return Ok(());
        }
        Err(Fault::not_authorized(format!(
            "Unable to verify client secret for client {}",
            self.id
        )))
    }
}

fn secret_hash(username: &str, client_id: &str, secret: &Secret) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes())
        .expect("HMAC takes a key of any length (RFC 2104 section 2)");
    mac.update(username.as_bytes());
    mac.update(client_id.as_bytes());
    STANDARD.encode(mac.finalize().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(secret: Option<&str>, settings: ClientSettings) -> Client {
        Client {
            id: "c".into(),
            pool_id: "p".into(),
            name: "n".into(),
            secret: secret.map(Secret::from),
            settings,
            created_at: 0,
            updated_at: 0,
        }
    }

    #[test]
    fn a_secret_hash_is_over_the_name_and_the_client() {
        let client = client(Some("s"), ClientSettings::default());
        let right = secret_hash("ada", "c", &Secret::from("s"));
        assert!(client.check_secret_hash(Some(&right), "ada").is_ok());
        assert!(client.check_secret_hash(Some(&right), "bob").is_err());
        assert!(client.check_secret_hash(None, "ada").is_err());
    }

    #[test]
    fn nobody_writes_a_custom_attribute_or_a_verification_unless_the_client_says_so() {
        let open = client(None, ClientSettings::default());
        assert!(open.may_write("email") && open.may_read("email_verified"));
        assert!(!open.may_write("custom:service_id") && !open.may_read("custom:service_id"));
        let listed = ClientSettings {
            read_attributes: Some(vec!["custom:service_id".into()]),
            write_attributes: Some(vec!["email_verified".into()]),
            ..ClientSettings::default()
        };
        let listed = client(None, listed);
        assert!(listed.may_read("custom:service_id") && !listed.may_read("email"));
        assert!(!listed.may_write("email_verified"));
    }
}
