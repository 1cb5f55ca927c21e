//! Users and their representation in the API.

use std::collections::BTreeMap;

use postern_common::from_row;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::JsonColumn;

/// A user, as stored.
#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) pool_id: String,
    /// Real username. In a pool whose users sign in with their e-mail address, it equals `sub`.
    pub(crate) username: String,
    pub(crate) sub: String,
    /// E-mail address in lower case, if the pool's users sign in with it.
    pub(crate) alias: Option<String>,
    pub(crate) status: UserStatus,
    pub(crate) enabled: i64,
    pub(crate) attributes: JsonColumn<BTreeMap<String, String>>,
    /// Argon2id PHC string; `None` for a user who never had a password.
    pub(crate) password: Option<String>,
    /// Number of password changes; rehashing the same password does not count.
    pub(crate) password_version: i64,
    /// Expiry of a password set by an administrator, in Unix milliseconds; `None` once the user has
    /// chosen one.
    pub(crate) temporary_until: Option<i64>,
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
}

from_row!(User {
    pool_id: String,
    username: String,
    sub: String,
    alias: Option<String>,
    status: UserStatus as String,
    enabled: i64,
    attributes: JsonColumn<BTreeMap<String, String>> as String,
    password: Option<String>,
    password_version: i64,
    temporary_until: Option<i64>,
    created_at: i64,
    updated_at: i64,
});

/// The status of a user's registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserStatus {
    Unconfirmed,
    Confirmed,
    ResetRequired,
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

// === impl UserStatus ===

impl UserStatus {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unconfirmed => "UNCONFIRMED",
            Self::Confirmed => "CONFIRMED",
            Self::ResetRequired => "RESET_REQUIRED",
            Self::ForceChangePassword => "FORCE_CHANGE_PASSWORD",
        }
    }
}

impl TryFrom<String> for UserStatus {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let all = [
            Self::Unconfirmed,
            Self::Confirmed,
            Self::ResetRequired,
            Self::ForceChangePassword,
        ];
        all.into_iter()
            .find(|status| status.name() == name)
            .ok_or_else(|| format!("user status `{name}`"))
    }
}

// === impl User ===

impl User {
    pub(crate) fn email(&self) -> Option<&str> {
        self.attributes.get("email").map(String::as_str)
    }

    pub(crate) fn email_verified(&self) -> bool {
        self.attributes
            .get("email_verified")
            .is_some_and(|flag| flag == "true")
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled != 0
    }

    /// Returns `sub` and the attributes that `readable` accepts, as `[{"Name", "Value"}]`.
    pub(crate) fn attribute_list(&self, readable: impl Fn(&str) -> bool) -> Vec<Value> {
        let sub = std::iter::once(("sub", self.sub.as_str()));
        let rest = self
            .attributes
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        sub.chain(rest.filter(|(name, _)| readable(name)))
            .map(|(name, value)| json!({"Name": name, "Value": value}))
            .collect()
    }

    /// Returns the `UserType` of the API: the response of AdminCreateUser and ListUsers.
    pub(crate) fn to_user_type(&self) -> Value {
        json!({
            "Username": self.username,
            "Attributes": self.attribute_list(|_| true),
            "UserCreateDate": seconds(self.created_at),
            "UserLastModifiedDate": seconds(self.updated_at),
            "Enabled": self.is_enabled(),
            "UserStatus": self.status.name(),
        })
    }
}

/// Converts Unix milliseconds to the timestamp format of the JSON 1.1 protocol: seconds with a
/// fraction.
pub(crate) fn seconds(millis: i64) -> Value {
    #[expect(
        clippy::cast_precision_loss,
        reason = "milliseconds since 1970 are far below 2^53"
    )]
    let seconds = millis as f64 / 1000.0;
    json!(seconds)
}
