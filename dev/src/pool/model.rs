//! The entities of the API: pools, app clients, users, and the password policy.
//!
//! Depends on `error` alone. The store fills these types; operations check and change them.

mod app_client;
mod json_column;
mod password_policy;
mod user;
mod user_pool;

pub(crate) use self::app_client::AppClient;
pub use self::app_client::ClientSettings;
pub(crate) use self::json_column::{JsonColumn, to_json_text};
pub use self::password_policy::PasswordPolicy;
pub(crate) use self::user::{User, UserAttribute, UserStatus, seconds};
pub use self::user_pool::PoolSettings;
pub(crate) use self::user_pool::{STANDARD_ATTRIBUTES, UserPool};
