//! The entities of the API: pools, app clients, users, sign-ins, and the password policy.

mod app_client;
mod password_policy;
mod session;
mod user;
mod user_pool;

pub(crate) use self::app_client::{AppClient, Feature, TokenRotation};
pub(crate) use self::password_policy::check_password;
pub(crate) use self::session::{Challenge, RefreshToken, Session};
pub(crate) use self::user::{User, UserAttribute, UserStatus, user_id};
pub(crate) use self::user_pool::UserPool;
pub(crate) use self::user_pool::{AdminCreateUserConfig, STANDARD_ATTRIBUTES, SchemaAttribute};
