//! The entities of the API: pools, app clients, users, sign-ins, codes, and the password policy.
//!
//! Depends on `error` alone. The store fills these types; operations check and change them.

mod app_client;
mod password_policy;
mod session;
mod user;
mod user_pool;

pub(crate) use self::app_client::AppClient;
pub(crate) use self::app_client::ClientSettings;
pub(crate) use self::password_policy::check_password;
pub(crate) use self::session::{Challenge, RefreshToken, Session};
pub(crate) use self::user::{User, UserAttribute, UserStatus, user_id};
pub(crate) use self::user_pool::PoolSettings;
pub(crate) use self::user_pool::{STANDARD_ATTRIBUTES, UserPool};
