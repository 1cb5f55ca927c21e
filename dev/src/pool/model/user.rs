//! Users and their representation in the API.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::pool::crypto::digest;

/// A user.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct User {
    pub(crate) pool_id: String,
    /// Real username. In a pool whose users sign in with their e-mail address, it equals `sub`.
    pub(crate) username: String,
    pub(crate) sub: String,
    pub(crate) status: UserStatus,
    pub(crate) is_enabled: bool,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) groups: BTreeSet<String>,
    /// Salt and hash; `None` for a user who never had a password.
    pub(crate) password: Option<String>,
    /// Number of times that all sign-ins of the user were revoked.
    pub(crate) sign_outs: u64,
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
}

/// The status of a user's registration.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum UserStatus {
    Unconfirmed,
    Confirmed,
    ForceChangePassword,
}

/// A user attribute on the wire.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct UserAttribute {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) value: String,
}

// === impl User ===

impl User {
    pub(crate) fn email(&self) -> Option<&str> {
        self.attributes.get("email").map(String::as_str)
    }

    /// Returns the id in the store.
    pub(crate) fn id(&self) -> String {
        user_id(&self.pool_id, &self.username)
    }

    /// Returns a digest that changes with the subject, the password and each sign-out: a proof of an
    /// earlier version is void.
    pub(crate) fn version(&self) -> String {
        let password = self.password.as_deref().unwrap_or_default();
        digest(&format!("{} {password} {}", self.sub, self.sign_outs))
    }

    pub(crate) fn email_verified(&self) -> bool {
        let verified = self.attributes.get("email_verified");
        verified.is_some_and(|verified| verified == "true")
    }

    /// Marks the address as verified.
    pub(crate) fn verify_email(&mut self) {
        self.attributes
            .insert("email_verified".to_owned(), "true".to_owned());
    }

    /// Sets the user's own password.
    pub(crate) fn set_password(&mut self, hash: String) {
        self.password = Some(hash);
        self.status = UserStatus::Confirmed;
    }

    /// Returns `sub` and the attributes that `readable` accepts, as `[{"Name", "Value"}]`.
    pub(crate) fn attribute_list(&self, readable: impl Fn(&str) -> bool) -> Vec<Value> {
        let sub = std::iter::once(("sub", self.sub.as_str()));
        let rest = self.attributes.iter();
        let rest = rest.map(|(name, value)| (name.as_str(), value.as_str()));
        sub.chain(rest.filter(|(name, _)| readable(name)))
            .map(|(name, value)| json!({"Name": name, "Value": value}))
            .collect()
    }

    /// Returns the `UserType` of the API. `attributes` is the name of the attributes, which differs in
    /// the response of AdminGetUser.
    pub(crate) fn to_user_type(&self, attributes: &str) -> Value {
        json!({
            "Username": self.username,
            attributes: self.attribute_list(|_| true),
            "UserCreateDate": seconds(self.created_at),
            "UserLastModifiedDate": seconds(self.updated_at),
            "Enabled": self.is_enabled,
            "UserStatus": self.status,
        })
    }
}

/// Returns the id of a user in the store.
pub(crate) fn user_id(pool_id: &str, username: &str) -> String {
    format!("{pool_id}/{username}")
}

/// Converts Unix milliseconds to the timestamp format of the JSON 1.1 protocol: seconds with a
/// fraction.
fn seconds(millis: i64) -> Value {
    #[expect(
        clippy::cast_precision_loss,
        reason = "milliseconds since 1970 are far below 2^53"
    )]
    let seconds = millis as f64 / 1000.0;
    json!(seconds)
}
