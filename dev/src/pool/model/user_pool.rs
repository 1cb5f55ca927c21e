//! User pools.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::signing_key::SigningKey;

/// A user pool, with the settings of CreateUserPool.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct UserPool {
    /// `{region}_{nine letters and digits}`.
    pub(crate) id: String,
    #[serde(alias = "PoolName")]
    pub(crate) name: String,
    /// With `email`, users sign in with their address and have a UUID as real username.
    pub(crate) username_attributes: Vec<String>,
    pub(crate) admin_create_user_config: AdminCreateUserConfig,
    /// Custom attributes, with or without the prefix `custom:`.
    pub(crate) schema: Vec<SchemaAttribute>,
    /// Names of the groups.
    pub(crate) groups: BTreeSet<String>,
    /// PKCS #8 in base64.
    pub(crate) signing_key: String,
    /// `signing_key`, once it has been used. All clones share it.
    #[serde(skip)]
    pub(crate) parsed_key: Arc<OnceLock<SigningKey>>,
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct AdminCreateUserConfig {
    /// Whether SignUp is rejected.
    pub(crate) allow_admin_create_user_only: bool,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SchemaAttribute {
    pub(crate) name: String,
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
    pub(crate) fn has_email_usernames(&self) -> bool {
        self.username_attributes.iter().any(|name| name == "email")
    }

    pub(crate) fn knows_attribute(&self, name: &str) -> bool {
        let custom = name.strip_prefix("custom:");
        let mut schema = self.schema.iter();
        STANDARD_ATTRIBUTES.contains(&name)
            || schema.any(|it| Some(it.name.trim_start_matches("custom:")) == custom)
    }
}
