//! User pools.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// A user pool.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct UserPool {
    /// `{region}_{nine letters and digits}`.
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) settings: PoolSettings,
    /// Names of the groups.
    pub(crate) groups: BTreeSet<String>,
    /// Signing key: PKCS #8 in base64.
    pub(crate) signing_key: String,
}

/// The settings of a user pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PoolSettings {
    /// Whether users sign in with their e-mail address and have a UUID as real username
    /// (`UsernameAttributes`).
    pub(crate) email_usernames: bool,
    /// Whether SignUp is rejected (`AllowAdminCreateUserOnly`).
    pub(crate) admin_create_only: bool,
    /// Names of custom attributes, with the prefix `custom:`.
    pub(crate) custom_attributes: Vec<String>,
}

/// Standard attributes (OpenID Connect Core section 5.1), except `sub`, which is read-only.
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

// === impl UserPool ===

impl UserPool {
    pub(crate) fn knows_attribute(&self, name: &str) -> bool {
        STANDARD_ATTRIBUTES.contains(&name)
            || self
                .settings
                .custom_attributes
                .iter()
                .any(|known| known == name)
    }
}
